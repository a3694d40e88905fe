"""The prompts of one model as its engine sees them, without the engine: for counting them."""

import json
from collections.abc import Sequence
from pathlib import Path

from engine.config import BLOCK_SIZE
from engine.tokenizer import Tokenizer
from runner.inference.local.constraints import Constraints
from runner.inference.requests import LineRequest
from runner.inference.truncation import PromptTokens


class LocalPrompts:
    """The tokenizer and chat template of a model folder. Belongs to one thread at a time."""

    block_size = BLOCK_SIZE

    def __init__(self, folder: Path, context: int) -> None:
        self.context: int | None = context
        self._tokenizer = Tokenizer(folder)
        self._constraints = Constraints(self._tokenizer)
        self.num_token_ids: int | None = _vocabulary(folder) or self._tokenizer.num_token_ids

    def tokens(self, request: LineRequest) -> PromptTokens:
        """The way of one line, its tools included."""
        return self._constraints.prompt_tokens(request.tools)

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text."""
        return self._tokenizer.encode_all(texts, add_special_tokens)


def _vocabulary(folder: Path) -> int | None:
    """How many embeddings the model has, by its config."""
    config = json.loads((folder / "config.json").read_bytes())
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None
