"""What one request wants changed in its logits before a token is drawn, ready to be applied.

The state belongs to the request and follows its output tokens only, so chunking, batching and
preemption cannot touch it. Nothing here names a device; `engine.logits` does the arithmetic.
"""

from array import array
from collections.abc import Iterable, Sequence

from engine.grammar import GrammarState
from engine.sampling_params import SamplingParams


class LogitEdits:
    """Bias, penalties and the end tokens that come too early, as flat arrays; and the grammar.

    Attributes:
        params: of the request.
        bias_ids, bias_values: the logit bias.
        seen_ids, seen_counts: tokens that are penalised, with how often the output holds them;
            with a repetition penalty the prompt's tokens are among them, counted 0 times.
        end_ids: tokens that would end the request.
        num_output_tokens: output tokens seen so far.
        grammar: where the output stands in its grammar, or None.
    """

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Iterable[int], end_ids: Iterable[int]
    ) -> None:
        self.params = params
        self.bias_ids = array("q", params.logit_bias)
        self.bias_values = array("d", params.logit_bias.values())
        self.end_ids = array("q", end_ids)
        self.num_output_tokens = 0
        self.grammar: GrammarState | None = params.grammar.start() if params.grammar else None
        prompt = dict.fromkeys(prompt_token_ids) if params.repetition_penalty != 1 else {}
        self.seen_ids = array("q", prompt)
        self.seen_counts = array("q", [0]) * len(prompt)
        self._slot_of = {token_id: slot for slot, token_id in enumerate(prompt)}

    @classmethod
    def of(
        cls, params: SamplingParams, prompt_token_ids: Sequence[int], end_ids: Iterable[int]
    ) -> "LogitEdits | None":
        """The edits of a new request, or None where it asks for none."""
        if params.logit_bias or params.has_penalty or params.min_tokens or params.grammar:
            return cls(params, prompt_token_ids, end_ids)
        return None

    @property
    def is_early(self) -> bool:
        """Whether the next token may not end the request yet."""
        return self.num_output_tokens < self.params.min_tokens

    @property
    def has_any(self) -> bool:
        """Whether the next token's logits change at all."""
        return (
            bool(self.bias_ids) or bool(self.seen_ids) or self.is_early or self.grammar is not None
        )

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        self.num_output_tokens += 1
        if self.grammar is not None:
            self.grammar.accept(token_id)
        if not self.params.has_penalty:
            return
        slot = self._slot_of.setdefault(token_id, len(self.seen_ids))
        if slot == len(self.seen_ids):
            self.seen_ids.append(token_id)
            self.seen_counts.append(0)
        self.seen_counts[slot] += 1
