"""Loading by transformers, and putting our attention in: the file that its moving API is met in."""

from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from engine.attention import AttentionBackend
from engine.attention.backend import AttentionOptions
from engine.config import EngineConfig
from engine.errors import NotPaged, UnsupportedModel
from engine.models.folder import choose_max_model_len, read_settings
from engine.models.loaded import ATTENTION_NAME, LoadedModel
from engine.models.positions import has_positions_by_length, trained_length
from engine.tracing import stretch


def load_from_folder(config: EngineConfig) -> tuple[torch.nn.Module, int]:
    """Load the weights of `config.model`; returns the network and the longest sequence in tokens.

    Raises:
        UnsupportedModel: the folder can't be served.
        InvalidParams: `max_model_len` is more than the model was trained for.
    """
    folder = Path(config.model)
    settings = read_settings(folder)
    if settings.get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedModel(
            "The installed transformers knows no causal language model of type "
            f"{settings.get('model_type')!r}; update transformers or choose another model."
        )
    model_config = AutoConfig.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    max_model_len = choose_max_model_len(config.max_model_len, trained_length(model_config))
    device = torch.device(config.device)
    return _load_network(folder, choose_dtype(config.dtype, device)).to(
        device
    ).eval(), max_model_len


def page_attention(network: torch.nn.Module, max_model_len: int) -> LoadedModel:
    """Put our attention in.

    Raises:
        NotPaged: the network's layers are beyond it.
    """
    name = type(network).__name__
    if not getattr(network, "_supports_attention_backend", False):
        raise NotPaged(f"{name} doesn't let its attention be replaced")
    if has_positions_by_length(network.config, max_model_len):
        raise NotPaged(
            f"{name} turns positions by another measure in sequences beyond its original length, "
            f"and a sequence may have {max_model_len:,} tokens"
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


def _load_network(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    transformers_logging.disable_progress_bar()
    network, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
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
        raise NotPaged(f"{type(module).__name__} doesn't get the arguments of the forward")
    layer = module.layer_idx
    assert isinstance(layer, int)
    options = AttentionOptions(
        scale=kwargs.get("scaling") or query.shape[-1] ** -0.5,
        window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )
    with stretch("attention"):
        out = backend.attend(
            layer,
            query[0].transpose(0, 1),
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            options,
        )
    return out[None], None
