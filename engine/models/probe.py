"""Proof at load time that the engine's path computes what the plain model computes.

Cheaper and surer than a list of supported families: two short prompts go through chunked prefill,
a mixed batch and a decode, and their logits must agree with transformers' own attention.
"""

from dataclasses import dataclass

import torch

from engine.attention import AttentionBackend, open_attention
from engine.attention.backend import BatchLayout
from engine.errors import NotPaged
from engine.models.fused import FusedModel
from engine.models.loaded import LoadedModel

TOLERANCE = {torch.float32: 3e-4, torch.bfloat16: 5e-2}
"""Largest difference allowed, as a share of the plain model's largest logit."""
COARSE_TOLERANCE = 1.0
"""The same for layers that were proved before, and then rounded or packed: finds only nonsense."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A probe prompt, the blocks it is given and how many tokens it computes in each step."""

    token_ids: list[int]
    blocks: list[int]
    chunks: tuple[int, ...]


@torch.inference_mode()
def plain_answers(model: LoadedModel, block_size: int) -> list[torch.Tensor]:
    """The plain model's logits of each probe prompt: [tokens, vocab]."""
    first, second, _ = _prompts(model, block_size)
    return [model.plain_logits(prompt.token_ids) for prompt in (first, second)]


@torch.inference_mode()
def probe_model(
    model: LoadedModel | FusedModel,
    block_size: int,
    answers: list[torch.Tensor],
    tolerance: float | None = None,
) -> None:
    """Compare the paged path with the plain model's `plain_answers`.

    Args:
        tolerance: None is that of the model's dtype.

    Raises:
        NotPaged: their logits differ.
    """
    first, second, num_blocks = _prompts(model, block_size)
    attention = open_attention(model.shapes, block_size, model.device, model.dtype)
    attention.allocate(num_blocks)
    for prompt, plain in zip((first, second), answers, strict=True):
        limit = (tolerance or TOLERANCE[model.dtype]) * plain.abs().max()
        done = 0
        for step, chunk in enumerate(prompt.chunks):
            done += chunk
            if chunk:
                logits = _run_step(model, attention, [first, second], step)[prompt.blocks[0]]
                difference = (logits - plain[done - 1]).abs().max()
                # Written so that NaN on either side counts as a disagreement.
                if not difference <= limit:
                    raise NotPaged(
                        f"{model.name} gives other logits through the paged lane than by itself "
                        f"(by {difference:.2g}, allowed {limit:.2g})"
                    )


def _prompts(model: LoadedModel | FusedModel, block_size: int) -> tuple[_Prompt, _Prompt, int]:
    """Two prompts over interleaved blocks, the first one longer than a block where it may be."""
    length = min(block_size + 3, 40, model.max_model_len)
    num_blocks = -(-length // block_size)
    token_ids = [(7 * i + 3) % model.vocab_size for i in range(length)]
    half = length // 2
    # The step order: chunk alone, chunk beside a whole prompt, two decodes.
    first = _Prompt(token_ids, list(range(num_blocks, 0, -1)), (half, length - half - 1, 1))
    short = min(5, length)
    second = _Prompt(token_ids[-short:][::-1], [0], (0, short - 1, 1))
    return first, second, num_blocks + 1


def _run_step(
    model: LoadedModel | FusedModel,
    attention: AttentionBackend,
    prompts: list[_Prompt],
    step: int,
) -> dict[int, torch.Tensor]:
    """Logits after each prompt's chunk of this step, keyed by the prompt's first block."""
    parts = [(sum(p.chunks[:step]), p.chunks[step], p) for p in prompts if p.chunks[step]]
    # Single queries first by ascending length, as BatchLayout asks.
    parts.sort(key=lambda part: (part[1] != 1, part[0]))
    attention.begin(
        BatchLayout(
            query_lens=[n for _, n, _ in parts],
            context_lens=[start + n for start, n, _ in parts],
            block_tables=[p.blocks for _, _, p in parts],
        )
    )
    token_ids = [t for start, n, p in parts for t in p.token_ids[start : start + n]]
    positions = [i for start, n, _ in parts for i in range(start, start + n)]
    last_rows = torch.tensor([n for _, n, _ in parts]).cumsum(0) - 1
    logits = model.logits(
        torch.tensor(token_ids, device=model.device),
        torch.tensor(positions, device=model.device),
        last_rows.to(model.device),
        attention,
    )
    return {p.blocks[0]: row for (_, _, p), row in zip(parts, logits, strict=True)}
