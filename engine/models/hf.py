"""The only file that adapts to transformers: loading, our attention, one packed forward."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from engine.attention import AttentionBackend
from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.config import EngineConfig
from engine.errors import InvalidParams, UnsupportedModel

ATTENTION_NAME = "tokenmill_paged"
PLAIN_ATTENTION_NAME = "eager"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")
MULTIMODAL_KEYS = ("vision_config", "audio_config", "image_token_id", "image_token_index")


class LoadedModel:
    """A causal language model whose attention reads and writes our paged pool.

    Attributes:
        shapes: the KV cache of each attention layer.
        vocab_size: rows of the embedding; every token id must be below.
        max_model_len: longest sequence in tokens.
        device, dtype: where and in what the forward runs.
        name: class of the model, for people.
    """

    def __init__(self, network: torch.nn.Module, max_model_len: int) -> None:
        self._network = network
        self.max_model_len = max_model_len
        weight: torch.Tensor = network.get_input_embeddings().weight  # type: ignore[operator]
        self.vocab_size = int(weight.shape[0])
        self.device = weight.device
        self.dtype = weight.dtype
        self.name = type(network).__name__
        self.shapes = self._record_shapes()

    def logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """Run a packed batch that `attention.begin` was told about.

        Args:
            token_ids: [tokens], the sequences one after the other.
            positions: [tokens], the position of each token in its sequence.
            rows: [rows], indices of the tokens whose logits are wanted.
            attention: the backend that holds the batch's layout and the KV pool.

        Returns:
            [rows, vocab]
        """
        output = self._network(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            paged_attention=attention,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def plain_logits(self, token_ids: list[int]) -> torch.Tensor:
        """[tokens, vocab] of one sequence by transformers' own attention, for comparison."""
        self._network.set_attn_implementation(PLAIN_ATTENTION_NAME)  # type: ignore[operator]
        try:
            ids = torch.tensor([token_ids], device=self.device)
            logits: torch.Tensor = self._network(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._network.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
        return logits

    @torch.inference_mode()
    def _record_shapes(self) -> list[LayerShape]:
        """Learn the cache's shape from the attention calls of one token, not from config names."""
        recorder = _ShapeRecorder()
        first = torch.zeros(1, dtype=torch.long, device=self.device)
        self.logits(first, first, first, recorder)
        layers = sorted(recorder.shapes)
        if not layers or layers != list(range(len(layers))):
            raise UnsupportedModel(
                f"{self.name} keeps state outside attention layers, which the paged engine can't "
                "hold; choose a model whose every layer is attention."
            )
        return [recorder.shapes[layer] for layer in layers]


def load_from_folder(config: EngineConfig) -> LoadedModel:
    """Load the weights of `config.model` and put our attention in.

    Raises:
        UnsupportedModel: the folder can't be served.
        InvalidParams: `max_model_len` is more than the model was trained for.
    """
    folder = Path(config.model)
    settings = _read_settings(folder)
    _refuse_unsupported(settings)
    _refuse_pickles(folder)
    max_model_len = _max_model_len(config.max_model_len, settings.get("max_position_embeddings"))
    device = torch.device(config.device)
    network = _load_network(folder, choose_dtype(config.dtype, device)).to(device).eval()
    if not getattr(network, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{type(network).__name__} doesn't let its attention be replaced, so the paged engine "
            "can't run it; choose another model."
        )
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    network.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
    return LoadedModel(network, max_model_len)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the forward; "auto" is bfloat16 only where hardware multiplies it."""
    if name == "float32":
        return torch.float32
    if name == "bfloat16" or _multiplies_bfloat16(device):
        return torch.bfloat16
    return torch.float32


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        # Emulated support would be slower than float32.
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedModel(
            f"{path} can't be read: {error.strerror}; give a complete model folder."
        ) from error
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise UnsupportedModel(f"{path} must hold a JSON object.")
    return settings


def _refuse_unsupported(settings: dict[str, Any]) -> None:
    model_type = settings.get("model_type")
    if "auto_map" in settings:
        raise UnsupportedModel(
            "The model's config.json names remote code (auto_map), which is never run; use a model "
            "that transformers supports by itself."
        )
    if settings.get("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{model_type} is an encoder-decoder model; the engine serves decoder-only models."
        )
    if any(settings.get(key) is not None for key in MULTIMODAL_KEYS):
        raise UnsupportedModel(
            f"{model_type} is a multimodal model; the engine serves text-only models. Use its "
            "text-only checkpoint if there is one."
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedModel(
            f"The installed transformers knows no causal language model of type {model_type!r}; "
            "update transformers or choose another model."
        )


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise UnsupportedModel(
            f"The weights are pickles ({', '.join(pickles[:3])}), which can run code when loaded; "
            "convert them to safetensors."
        )
    raise UnsupportedModel(f"{folder} holds no *.safetensors weights; give a complete folder.")


def _max_model_len(wanted: int | None, trained: object) -> int:
    if not isinstance(trained, int):
        if wanted is None:
            raise UnsupportedModel(
                "The model's config.json has no max_position_embeddings; set max_model_len."
            )
        return wanted
    if wanted is not None and wanted > trained:
        raise InvalidParams(
            f"max_model_len is {wanted:,} but the model was trained for {trained:,} positions.",
            "max_model_len",
        )
    return wanted or trained


def _load_network(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    transformers_logging.disable_progress_bar()
    try:
        network, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=PLAIN_ATTENTION_NAME,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    # Foreign code reads a foreign folder: whatever it raises, this folder can't be served.
    except Exception as error:
        raise UnsupportedModel(f"transformers can't load {folder}: {error}") from error
    # Without this check missing weights would be random numbers, with no more than a warning.
    missing = sorted(report["missing_keys"])
    if missing:
        raise UnsupportedModel(
            f"{folder} lacks {len(missing)} weights ({', '.join(missing[:3])}, ...); "
            "download the model again."
        )
    assert isinstance(network, torch.nn.Module)
    return network


def _paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,  # noqa: ANN401 - transformers fixes this signature and adds to it per family
) -> tuple[torch.Tensor, None]:
    """Transformers' attention interface over our backend.

    Args:
        query: [1, heads, tokens, dim], rotated; key and value likewise with their kv heads.

    Returns:
        [1, tokens, heads, value dim], and no weights.
    """
    backend: AttentionBackend | None = kwargs.get("paged_attention")
    if backend is None:
        raise UnsupportedModel(
            f"{type(module).__name__} doesn't pass arguments through to its attention, so the "
            "paged engine can't run it; choose another model."
        )
    if kwargs.get("s_aux") is not None:
        raise UnsupportedModel("The model uses attention sinks, which are not supported yet.")
    layer = module.layer_idx
    assert isinstance(layer, int)
    options = AttentionOptions(
        scale=kwargs.get("scaling") or query.shape[-1] ** -0.5,
        window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
    )
    out = backend.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        options,
    )
    return out[None], None


class _ShapeRecorder:
    """A backend without a pool, for one token: its attention is the value itself."""

    name = "shape recorder"

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        _, kv_heads, value_dim = value.shape
        self.shapes[layer] = LayerShape(kv_heads, key.shape[-1], value_dim)
        return value.repeat_interleave(query.shape[1] // kv_heads, dim=1)

    def block_bytes(self) -> int:
        return 0

    def allocate(self, num_blocks: int) -> None:
        raise NotImplementedError

    def begin(self, layout: BatchLayout) -> None:
        raise NotImplementedError
