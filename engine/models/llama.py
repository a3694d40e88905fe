"""The decoder that Llama, Mistral, Qwen2, Qwen3, SmolLM and others share, taken apart.

A model is recognised by its modules and not by its name: every parameter must have its place in
the shape below, so nothing is left out unseen. What its code does besides (a factor on the
embedding, say) the probe notices.
"""

from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import nn

from engine.models.loaded import LoadedModel
from engine.models.rotations import Rotations

INPUT_MULTIPLE = 32
"""The kernels take inputs in steps of one AMX tile."""
OUTPUT_MULTIPLE = 16
"""Between layers outputs come in whole panels; only the head may end inside one."""
ROTATION_ERROR = 1e-6
"""Of a cosine that is computed in another order; at most a few units in its last place."""


class NotFusable(Exception):
    """The model hasn't the shape that the fused layers compute; the message says what differs."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The modules of one layer: linear layers by their outputs, norms by what they norm."""

    input_norm: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    out: nn.Linear
    mlp_norm: nn.Module
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear

    @property
    def linears(self) -> list[nn.Linear]:
        return [self.query, self.key, self.value, self.out, self.gate, self.up, self.down]

    @property
    def norms(self) -> list[nn.Module]:
        optional = [norm for norm in (self.query_norm, self.key_norm) if norm is not None]
        return [self.input_norm, self.mlp_norm, *optional]


@dataclass(frozen=True, slots=True)
class Parts:
    """The modules of a model; the head's weight may be the embedding's."""

    embedding: nn.Embedding
    layers: list[LayerParts]
    final_norm: nn.Module
    head: nn.Linear
    rotations: Rotations
    epsilon: float


@torch.inference_mode()
def take_apart(model: LoadedModel) -> Parts:
    """Find the modules of a model of Llama's shape; the model stays as it is.

    Raises:
        NotFusable: it has another shape.
    """
    network = model.network
    try:
        body = network.get_submodule("model")
        layers = [_layer_parts(layer) for layer in body.get_submodule("layers").children()]
        embedding, head = body.get_submodule("embed_tokens"), network.get_submodule("lm_head")
        final_norm, rotary = body.get_submodule("norm"), body.get_submodule("rotary_emb")
    except AttributeError as error:
        raise NotFusable(f"no module where Llama has one ({error})") from None
    if type(embedding) is not nn.Embedding or type(head) is not nn.Linear:
        raise NotFusable("its embedding or head is not a plain one")
    norms = [final_norm, *chain.from_iterable(layer.norms for layer in layers)]
    parts = Parts(embedding, layers, final_norm, head, _rotations(rotary, model), _epsilon(norms))
    _check_parameters(network, parts)
    _check_sizes(model, parts)
    return parts


def _layer_parts(layer: nn.Module) -> LayerParts:
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    children = dict(attention.named_children())
    gate = torch.linspace(-8, 8, 64)
    activation = mlp.get_submodule("act_fn")
    if not torch.allclose(activation(gate), F.silu(gate)):
        raise NotFusable("its activation is not SiLU")
    return LayerParts(
        input_norm=layer.get_submodule("input_layernorm"),
        query=_linear(attention, "q_proj"),
        key=_linear(attention, "k_proj"),
        value=_linear(attention, "v_proj"),
        query_norm=children.get("q_norm"),
        key_norm=children.get("k_norm"),
        out=_linear(attention, "o_proj"),
        mlp_norm=layer.get_submodule("post_attention_layernorm"),
        gate=_linear(mlp, "gate_proj"),
        up=_linear(mlp, "up_proj"),
        down=_linear(mlp, "down_proj"),
    )


def _linear(module: nn.Module, name: str) -> nn.Linear:
    linear = module.get_submodule(name)
    if type(linear) is not nn.Linear:
        raise NotFusable(f"its {name} is a {type(linear).__name__}")
    return linear


def _epsilon(norms: list[nn.Module]) -> float:
    """The one epsilon of all norms, each an RMSNorm by its class's name."""
    epsilons: set[float] = set()
    for norm in norms:
        if "RMSNorm" not in type(norm).__name__:
            raise NotFusable(f"it norms with {type(norm).__name__}")
        epsilons.add(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))
    if len(epsilons) != 1:
        raise NotFusable(f"its norms have epsilons {epsilons}")
    return epsilons.pop()


def _rotations(rotary: nn.Module, model: LoadedModel) -> Rotations:
    """What the module computes, proved by its own tables: both halves of a head turn by the same
    angles, each pair of elements by a frequency of its own, or it is not Llama's."""
    last = model.max_model_len - 1
    positions = torch.tensor([i for i in (0, 1, 2, 3, 77, 1000, last // 2, last) if i <= last])
    try:
        tables = rotary(torch.empty(1, dtype=torch.float32), positions[None])
        frequencies, factor = rotary.inv_freq, rotary.attention_scaling
    except (TypeError, AttributeError):
        raise NotFusable("its rotation depends on more than the position") from None
    assert isinstance(frequencies, torch.Tensor)
    assert isinstance(factor, int | float)
    if 2 * len(frequencies) > model.shapes[0].key_dim:
        raise NotFusable("it rotates more than a head")
    rotations = Rotations(frequencies.float().clone(), float(factor))
    for table, half in zip(tables, rotations.compute(positions), strict=True):
        both = torch.cat([half, half], dim=-1)
        if table[0].shape != both.shape or not torch.allclose(table[0], both, atol=ROTATION_ERROR):
            raise NotFusable("it rotates neighbours and not halves")
    return rotations


def _check_parameters(network: nn.Module, parts: Parts) -> None:
    """Every parameter must belong to a module that we found."""
    modules = [parts.embedding, parts.head, parts.final_norm]
    for layer in parts.layers:
        modules += [*layer.linears, *layer.norms]
    known = {id(parameter) for module in modules for parameter in module.parameters(recurse=False)}
    extra = [name for name, parameter in network.named_parameters() if id(parameter) not in known]
    if extra:
        raise NotFusable(f"it has weights that Llama has not ({', '.join(extra[:3])})")
    odd = {parameter.dtype for parameter in network.parameters()} - {parts.embedding.weight.dtype}
    if odd:
        raise NotFusable(f"some of its weights are {odd}")


def _check_sizes(model: LoadedModel, parts: Parts) -> None:
    """The kernels' multiples, and one shape for all layers."""
    if len(parts.layers) != len(model.shapes) or len(set(model.shapes)) != 1:
        raise NotFusable("its layers differ in shape")
    shape = model.shapes[0]
    widths = {tuple(linear.weight.shape for linear in layer.linears) for layer in parts.layers}
    if len(widths) != 1:
        raise NotFusable("its layers differ in width")
    for layer in parts.layers:
        if any(linear.in_features % INPUT_MULTIPLE for linear in layer.linears):
            raise NotFusable(f"a width is not a multiple of {INPUT_MULTIPLE}")
        if any(linear.out_features % OUTPUT_MULTIPLE for linear in layer.linears):
            raise NotFusable(f"a width is not a multiple of {OUTPUT_MULTIPLE}")
        if any(
            _size(norm) not in (None, shape.key_dim) for norm in (layer.query_norm, layer.key_norm)
        ):
            raise NotFusable("it norms all heads together")
        if layer.key.out_features != shape.num_kv_heads * shape.key_dim:
            raise NotFusable("its keys are not what its attention stores")
    if shape.key_dim % OUTPUT_MULTIPLE:
        raise NotFusable(f"its heads are not a multiple of {OUTPUT_MULTIPLE}")


def _size(norm: nn.Module | None) -> int | None:
    return None if norm is None else sum(p.numel() for p in norm.parameters())
