"""A model as transformers runs it: its own attention, its own caches, the steps of `generate`.

Beside `hf.py` this is where transformers' moving API is met: `generate` prepares the inputs of
each forward by a method of the model, which some families replace, so the same method is asked.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from engine.models.cache_rows import can_join
from engine.models.positions import has_positions_by_length

STATE_NAMES = ("cache", "state")

State = dict[str, Any]
"""What a forward leaves for the next one: a cache, a state, or nothing where all is recomputed."""


class PaddedModel:
    """A causal language model that keeps transformers' own attention and caches.

    Attributes:
        reason: why it isn't in the paged lane; a clause without a full stop.
        batches: several sequences may be extended at once; found out by the probe.
        replays: extending gives other logits than a whole prompt does, in transformers too, so a
            sequence must come back the way it came; found out by the probe.
        vocab_size: rows of the embedding; every token id must be below.
        hidden_size: None; states come out of this lane in too many shapes to be pooled.
        max_model_len: longest sequence in tokens.
        device, dtype: where and in what the forward runs.
        name: class of the model, for people.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - transformers is untyped
        max_model_len: int,
        reason: str,
    ) -> None:
        self._network = network
        self._accepted = frozenset(inspect.signature(network.forward).parameters)
        self.reason = reason
        self.batches = False
        self.replays = False
        self.hidden_size: int | None = None
        self.max_model_len = max_model_len
        weight: torch.Tensor = self._network.get_input_embeddings().weight
        self.vocab_size = int(weight.shape[0])
        self.device = weight.device
        self.dtype = weight.dtype
        self.name = type(network).__name__

    def restart(
        self, token_ids: Sequence[int], num_prompt_tokens: int
    ) -> tuple[torch.Tensor, State]:
        """`start` for a sequence that was started with its prompt and extended before."""
        if not self.replays:
            return self.start(token_ids)
        logits, state = self.start(token_ids[:num_prompt_tokens])
        for length in range(num_prompt_tokens + 1, len(token_ids) + 1):
            rows, state = self.extend([token_ids[:length]], state)
            logits = rows[0]
        return logits, state

    def start(self, token_ids: Sequence[int]) -> tuple[torch.Tensor, State]:
        """Compute a whole sequence; returns [vocab] after its last token, and its state."""
        state: State = {}
        if self._network._supports_default_dynamic_cache():
            state["cache"] = DynamicCache(config=self._network.config.get_text_config(decoder=True))
        ids = torch.tensor([token_ids], device=self.device)
        logits, state = self._forward(ids, state, {"is_first_iteration": True})
        return logits[0], state

    def extend(
        self, sequences: Sequence[Sequence[int]], state: State
    ) -> tuple[torch.Tensor, State]:
        """Compute the last token of each sequence.

        Args:
            sequences: all token ids of each row; all but the last are in `state`.
            state: of these rows, padded on the left; it may be changed in place.

        Returns:
            [rows, vocab] after the last tokens, and the new state.
        """
        if len(sequences) == 1:
            ids = torch.tensor([sequences[0]], device=self.device)
            return self._forward(ids, state, {"next_sequence_length": 1} if state else {})
        lengths = torch.tensor([len(ids) for ids in sequences], device=self.device)
        longest = max(len(ids) for ids in sequences)
        slots = torch.arange(longest, device=self.device)
        mask = (slots >= longest - lengths[:, None]).long()
        ids = torch.tensor([[ids[-1]] for ids in sequences], device=self.device)
        extras: dict[str, Any] = {"next_sequence_length": 1, "position_ids": lengths[:, None] - 1}
        if not bool(mask.all()):
            extras["attention_mask"] = mask
        return self._forward(ids, state, extras)

    def plain_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab] of one sequence in one forward without a cache, for comparison."""
        ids = torch.tensor([token_ids], device=self.device)
        logits: torch.Tensor = self._network(input_ids=ids, use_cache=False).logits[0]
        return logits

    def generated(
        self, token_ids: Sequence[int], max_tokens: int
    ) -> tuple[list[int], torch.Tensor]:
        """What transformers' `generate` makes of a prompt: all token ids, and [new, vocab]."""
        ids = torch.tensor([token_ids], device=self.device)
        output = self._network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return output.sequences[0].tolist(), torch.cat(output.logits)

    def may_batch(self, state: State) -> bool:
        """Whether rows may share a forward, as far as the kind of model tells."""
        layer_types = getattr(self._network.config, "layer_types", None) or []
        return (
            list(state) == ["cache"]
            and can_join(state["cache"])
            # A chunk's bounds are counted from the first slot, which padding moves.
            and "chunked_attention" not in layer_types
            and not has_positions_by_length(self._network.config, self.max_model_len)
        )

    def _forward(
        self, ids: torch.Tensor, state: State, extras: dict[str, Any]
    ) -> tuple[torch.Tensor, State]:
        """[rows, vocab] after the last slot, and what the next forward needs."""
        positions = torch.arange(ids.shape[1], device=self.device)[None]
        wanted = {"position_ids": positions, "logits_to_keep": 1, **extras}
        kept = {
            name: value
            for name, value in wanted.items()
            if name in self._accepted or name not in ("position_ids", "logits_to_keep")
        }
        inputs = self._network.prepare_inputs_for_generation(ids, use_cache=True, **kept, **state)
        output = self._network(**inputs, return_dict=True)
        left = {name: output[name] for name in STATE_NAMES if output.get(name) is not None}
        return output.logits[:, -1], left
