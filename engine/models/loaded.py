"""A causal language model of transformers with our attention in it, in one packed forward."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.attention import AttentionBackend
from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.errors import NotPaged

ATTENTION_NAME = "tokenmill_paged"
PLAIN_ATTENTION_NAME = "eager"


class LoadedModel:
    """A causal language model whose attention reads and writes our paged pool.

    Attributes:
        shapes: the KV cache of each attention layer.
        options: what each attention layer asks for.
        vocab_size: rows of the embedding; every token id must be below.
        max_model_len: longest sequence in tokens.
        hidden_size: length of the states after the final norm; None where they can't be had.
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
        self.shapes, self.options = self._record_layers()
        self._backbone, self.hidden_size = self._find_backbone()

    @property
    def network(self) -> torch.nn.Module:
        """Transformers' own module, for one who takes its weights."""
        return self._network

    def seconds(self) -> dict[str, float]:
        """Seconds by part of the forward, as far as it knows: nothing."""
        return {}

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

    def hidden_and_logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `logits`, with the states after the final norm that they are made of.

        Returns:
            [tokens, hidden] of all tokens, and [rows, vocab]. Without rows the head does not run.
        """
        with _listening(self._backbone) as states:
            if len(rows):
                logits = self.logits(token_ids, positions, rows, attention)
            else:
                self._backbone(
                    input_ids=token_ids[None],
                    position_ids=positions[None],
                    use_cache=False,
                    paged_attention=attention,
                )
                logits = torch.empty(0, self.vocab_size, device=self.device)
        return states[0][0], logits

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
    def _record_layers(self) -> tuple[list[LayerShape], list[AttentionOptions]]:
        """Learn about the layers from the attention calls of one token, not from config names."""
        recorder = _ShapeRecorder()
        first = torch.zeros(1, dtype=torch.long, device=self.device)
        self.logits(first, first, first, recorder)
        layers = sorted(recorder.shapes)
        if not layers or layers != list(range(len(layers))):
            raise NotPaged(f"{self.name} keeps state outside attention layers")
        self._check_layer_types(recorder)
        shapes = [recorder.shapes[layer] for layer in layers]
        return shapes, [recorder.options[layer] for layer in layers]

    @torch.inference_mode()
    def _find_backbone(self) -> tuple[torch.nn.Module, int | None]:
        """All that is below the head, the final norm included, and the length of its states.

        Most families call their `base_model`; some go past it to the decoder inside.
        """
        first = torch.zeros(1, dtype=torch.long, device=self.device)
        for find in (lambda: self._network.base_model, self._network.get_decoder):
            backbone: torch.nn.Module = find()  # type: ignore[assignment, operator]
            with _listening(backbone) as states:
                self.logits(first, first, first, _ShapeRecorder())
            if states and backbone is not self._network:
                return backbone, int(states[0].shape[-1])
        return self._network, None

    def _check_layer_types(self, recorder: "_ShapeRecorder") -> None:
        """Keep out layers whose mask goes beyond causal and a window that attention is told of.

        The probe's prompts are too short to notice: such masks begin to matter at thousands of
        tokens.
        """
        layer_types = getattr(self._network.config, "layer_types", None) or []
        for layer, kind in enumerate(layer_types):
            is_windowed = kind == "sliding_attention" and recorder.has_window(layer)
            if kind != "full_attention" and not is_windowed:
                raise NotPaged(f"{self.name} has layers of type {kind}")


@contextmanager
def _listening(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collect the first output of each call of a module, as long as the context lasts."""
    heard: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output: heard.append(output[0]))
    try:
        yield heard
    finally:
        hook.remove()


class _ShapeRecorder:
    """A backend without a pool, for one token: its attention is the value itself."""

    name = "shape recorder"

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.options: dict[int, AttentionOptions] = {}

    def has_window(self, layer: int) -> bool:
        options = self.options.get(layer)
        return options is not None and options.window is not None

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
        self.options[layer] = options
        return value.repeat_interleave(query.shape[1] // kv_heads, dim=1)

    def block_bytes(self) -> int:
        return 0

    def allocate(self, num_blocks: int) -> None:
        raise AssertionError("it records shapes and holds no cache")

    def begin(self, layout: BatchLayout) -> None:
        raise AssertionError("it records shapes and holds no cache")
