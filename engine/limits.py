"""What one loaded model can take: the checks of whatever comes through the door."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.errors import InvalidParams, PromptTooLong
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a request.

    Attributes:
        max_model_len: most tokens of a sequence, prompt and output.
        vocab_size: ids below it have an embedding.
        num_token_ids: ids below it can be sampled.
        tokenizer_token_ids: ids that the tokenizer knows, as a grammar's vocabulary has them.
    """

    max_model_len: int
    vocab_size: int
    num_token_ids: int
    tokenizer_token_ids: int

    def check_params(self, params: SamplingParams) -> None:
        """Raise InvalidParams, naming the first field that is wrong or not for this model."""
        params.validate()
        if any(token_id >= self.vocab_size for token_id in params.stop_token_ids):
            raise InvalidParams(
                f"stop_token_ids must be below {self.vocab_size:,}.", "stop_token_ids"
            )
        if any(token_id >= self.num_token_ids for token_id in params.logit_bias):
            raise InvalidParams(
                f"logit_bias names token ids from 0 to {self.num_token_ids - 1:,}.", "logit_bias"
            )
        grammar = params.grammar
        if grammar and grammar.vocabulary.num_token_ids != self.tokenizer_token_ids:
            raise InvalidParams("The grammar is of another model's tokens.", "grammar")

    def check_prompt(self, prompt_token_ids: Sequence[int], num_output_tokens: int) -> None:
        """Raise InvalidParams, or PromptTooLong without room for so many output tokens."""
        if not prompt_token_ids:
            raise InvalidParams("The prompt is empty; send at least one token.", "prompt")
        if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= self.vocab_size:
            raise InvalidParams(
                f"The prompt's token ids must be from 0 to {self.vocab_size - 1:,}.", "prompt"
            )
        if len(prompt_token_ids) + num_output_tokens > self.max_model_len:
            output = "and with at least one output token it" if num_output_tokens else "which"
            raise PromptTooLong(
                f"The prompt has {len(prompt_token_ids):,} tokens, {output} would pass the limit "
                f"of {self.max_model_len:,}; shorten it."
            )

    def within_room(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """The parameters with the `max_tokens` that can come: admission goes by them."""
        room = self.max_model_len - num_prompt_tokens
        if params.max_tokens <= room:
            return params
        return replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
