"""The faults that end one request while the engine goes on, in words for whoever sent it."""

from engine.block_manager import BlockManager
from engine.errors import GrammarFault, InvalidLogits, PromptTooLong
from engine.request import Request


def never_fits(request: Request, blocks: BlockManager) -> PromptTooLong:
    """Of a request that needs more blocks than an idle engine has."""
    return PromptTooLong(
        f"The request needs {blocks.blocks_for(request.num_tokens):,} KV blocks, more "
        f"than the {blocks.num_free_blocks:,} there are; shorten it or give the pool "
        "more memory."
    )


def invalid_logits(request: Request) -> InvalidLogits:
    """Of a request whose logits or states hold NaN or infinity."""
    return InvalidLogits(
        f"What the model computed of {request.num_tokens:,} tokens is not finite; try float32, or "
        "check the model's weights."
    )


def grammar_fault(request: Request) -> GrammarFault:
    """Of a request whose grammar could not go on."""
    assert request.grammar is not None
    return GrammarFault(
        f"The output could not follow its grammar after {request.num_output_tokens - 1:,} tokens: "
        f"{request.grammar.fault}. Make it simpler."
    )
