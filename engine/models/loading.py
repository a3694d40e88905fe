"""Loading by transformers, in the fastest lane that a probe trusts the model in."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from engine.attention.cpu import DTYPES
from engine.config import EngineConfig
from engine.errors import EngineError, InvalidParams, NotPaged, UnsupportedModel
from engine.kernels import KernelsUnavailable, load_kernels
from engine.models.calibration import measure_reaches
from engine.models.fused import FusedModel
from engine.models.hf import load_from_folder, page_attention
from engine.models.kept import keep_model
from engine.models.llama import NotFusable, take_apart
from engine.models.loaded import LoadedModel
from engine.models.packed import is_faster, pack_linears
from engine.models.packing import pack_model
from engine.models.padded import PaddedModel
from engine.models.padded_probe import probe_padded_model
from engine.models.precision import fits_in_float32, in_float32
from engine.models.probe import COARSE_TOLERANCE, plain_answers, probe_model
from engine.quantisation import INT8, PLAIN

logger = logging.getLogger(__name__)

MAX_TOLD = 200
"""Letters of a foreign error that go into a reason, which people read in a report."""


def load_and_prove(
    config: EngineConfig, text: Sequence[int]
) -> LoadedModel | FusedModel | PaddedModel:
    """As `load_model`, from the folder itself; a fused model is kept for the next time."""
    try:
        network, max_model_len = load_from_folder(config)
        try:
            return _fused(_paged(network, max_model_len, config.block_size), config, text)
        except NotPaged as error:
            _refuse_quantisation(config, error.message)
            model = PaddedModel(network, max_model_len, error.message)
        with in_float32(network) if fits_in_float32(network) else nullcontext():
            probe_padded_model(model)
    except EngineError:
        raise
    # Foreign code runs on a foreign folder: whatever it raises, this model can't be served.
    except Exception as error:
        raise UnsupportedModel(
            f"transformers can't load or run the model in {config.model}: {error}"
        ) from error
    return model


def _fused(
    model: LoadedModel, config: EngineConfig, text: Sequence[int]
) -> LoadedModel | FusedModel:
    """The model with fused layers if it has their shape and they prove right, else as it is."""
    answers = plain_answers(model, config.block_size)
    weights = config.quantisation.weights
    try:
        reaches = measure_reaches(model, take_apart(model), list(text)) if weights == INT8 else []
        fused = fuse(model)
    except NotFusable as reason:
        _refuse_quantisation(config, str(reason))
        logger.info("%s runs without fused layers: %s.", model.name, reason)
        return _packed(model, config, answers)
    try:
        # The plain layers first: a rounded one may not be near enough to prove anything.
        probe_model(fused, config.block_size, answers)
        if weights == PLAIN:
            keep_model(config, fused.packed, answers)
        else:
            fused.quantise(weights, reaches)
            probe_model(fused, config.block_size, answers, COARSE_TOLERANCE)
        return fused
    except NotPaged as error:
        _refuse_quantisation(config, error.message)
        logger.warning("%s runs without fused layers: %s.", model.name, error.message)
    # Its weights went into the fused layers.
    network, _ = load_from_folder(config)
    return page_attention(network, model.max_model_len)


def fuse(model: LoadedModel) -> FusedModel:
    """The model with fused layers; `model` can't run after that.

    Raises:
        NotFusable: it is not of their shape, or there are no kernels; it is whole.
    """
    if model.device.type != "cpu" or model.dtype not in DTYPES:
        raise NotFusable(f"the kernels don't know {model.dtype} on {model.device}")
    try:
        kernels = load_kernels()
    except KernelsUnavailable as error:
        raise NotFusable(str(error)) from None
    return FusedModel(pack_model(model, kernels), kernels)


def _packed(model: LoadedModel, config: EngineConfig, answers: list[torch.Tensor]) -> LoadedModel:
    """The model with its linear layers packed where that is faster and proves right."""
    try:
        kernels = load_kernels() if model.device.type == "cpu" else None
    except KernelsUnavailable:
        kernels = None
    if kernels is None or not pack_linears(model.network, kernels, is_faster):
        return model
    try:
        # Each layer was proved by itself; now only nonsense must be found out.
        probe_model(model, config.block_size, answers, COARSE_TOLERANCE)
        return model
    # A family may look into the weights of its layers.
    except Exception as error:
        logger.warning("%s runs without packed layers: %s.", model.name, error)
    network, _ = load_from_folder(config)
    return page_attention(network, model.max_model_len)


def _refuse_quantisation(config: EngineConfig, reason: str) -> None:
    """Without fused layers there are no kernels for quantised weights.

    Raises:
        InvalidParams: the weights were to be quantised.
    """
    weights = config.quantisation.weights
    if weights != PLAIN:
        raise InvalidParams(
            f"The model's weights can't be in {weights}: that takes the layers in C++, without "
            f"which it runs ({reason}). Set weights to {PLAIN}.",
            "weights",
        )


def _paged(
    network: Any,  # noqa: ANN401 - transformers is untyped
    max_model_len: int,
    block_size: int,
) -> LoadedModel:
    """The model in the paged lane.

    Raises:
        NotPaged: it doesn't fit there, or the probe disagrees.
    """
    own_attention = network.config._attn_implementation
    try:
        model = page_attention(network, max_model_len)
        _probe_paged(model, network, block_size)
        return model
    except (MemoryError, torch.OutOfMemoryError):
        raise
    # A family may stumble over what only the paged lane does to it.
    except Exception as error:
        if network.config._attn_implementation != own_attention:
            network.set_attn_implementation(own_attention)
        if isinstance(error, NotPaged):
            raise
        told = str(error).partition("\n")[0][:MAX_TOLD]
        raise NotPaged(f"{type(network).__name__} fails in the paged lane: {told}") from error


def _probe_paged(model: LoadedModel, network: torch.nn.Module, block_size: int) -> None:
    """Probe the model as it will run, and once more in float32 if rounding may be to blame."""
    try:
        probe_model(model, block_size, plain_answers(model, block_size))
    except NotPaged:
        if model.dtype is torch.float32 or not fits_in_float32(network):
            raise
        with in_float32(network):
            exact = LoadedModel(network, model.max_model_len)
            probe_model(exact, block_size, plain_answers(exact, block_size))
