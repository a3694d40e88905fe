"""The two ways to compute a model, behind one shape: our paged attention, or transformers' own."""

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.attention import open_attention
from engine.config import EngineConfig
from engine.kv_cache import pool_blocks
from engine.lane import PAGED, Lane
from engine.model_runner import ModelRunner
from engine.models import FusedModel, LoadedModel
from engine.step_size import fit_step

if TYPE_CHECKING:
    from engine.models.padded import PaddedModel


def open_lane(
    model: "LoadedModel | FusedModel | PaddedModel", config: EngineConfig, num_token_ids: int
) -> Lane:
    """Size the pool and make ready to run; `num_token_ids` ids from 0 may be sampled.

    Raises:
        InvalidParams: the memory doesn't hold one sequence, or one block, or the lane has no such
            KV cache as was asked for.
    """
    if not isinstance(model, LoadedModel | FusedModel):
        # Only what needs transformers waits for its import.
        from engine.padded_lane import open_padded_lane  # noqa: PLC0415

        return open_padded_lane(model, config, num_token_ids)
    kv_cache = config.quantisation.kv_cache
    attention = open_attention(model.shapes, config.block_size, model.device, model.dtype, kv_cache)
    num_blocks = pool_blocks(config, attention.block_bytes(), model.max_model_len)
    attention.allocate(num_blocks)
    details = f"attention: {attention.name}, lane: {PAGED}"
    runner = ModelRunner(model, attention, num_token_ids)
    if not isinstance(model, FusedModel):
        # Nothing else tells the likeliest token of many rows without their logits.
        config = replace(config, num_speculative_tokens=0)
    if config.step_seconds is not None:
        config = fit_step(runner, config, num_blocks, model.max_model_len)
    return Lane(PAGED, "", details, runner, num_blocks, config, whole_prompts=False)
