"""Prompt lookup: guesses what follows by what followed the same tokens before.

After "Prompt Lookup Decoding" (Saxena, 2023): no second model, the request's own tokens are the
draft. Nothing here knows whether a guess is worth its cost; that is `engine.speculation`'s.
"""

from array import array
from collections.abc import Sequence

SHORTEST, LONGEST = 2, 4
"""Tokens at the end that are looked for: one alone says little, and more say hardly more."""
WIDTH = 4
"""Bytes of a token id in the text that is searched."""
PRIOR = 0.5
"""A new row's `hold_rate`: high enough to try a few guesses while a step has much to spare."""
DECAY = 0.8
"""Weight of what was known before against one more guess: about the last five count."""
DRIFT = 0.02
"""Share of the way back to the prior that is gone in a step which tells nothing."""


class NgramProposer:
    """What one sequence has said so far, ready to be searched, and how well its guesses held.

    Attributes:
        hold_rate: estimate of the probability that a guess holds, given that those before it did.
    """

    def __init__(self) -> None:
        self.hold_rate = PRIOR
        # bytearray.rfind searches ids at some bytes a nanosecond, and growing it is all the upkeep.
        self._known = bytearray()
        self._foreseen: tuple[int, int] | None = None  # a place in the sequence, and what it holds

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens that may follow, or none; `token_ids` only grows from call to call.

        They are what followed the most recent earlier occurrence of the last tokens, of four if
        they occurred before, else of three, else of two. Where that reaches the end it goes on with
        what it proposes itself, so a loop of any period is continued.
        """
        self._known += array("i", token_ids[len(self._known) // WIDTH :]).tobytes()
        follows = self._place_behind_match()
        if follows is None:
            return []
        found = list(token_ids[follows : follows + count])
        period = len(token_ids) - follows
        return (found * -(-count // period))[:count]

    def foresee(self, place: int, token_id: int) -> None:
        """Note what would have been guessed of a place in the sequence, had a guess been due."""
        self._foreseen = (place, token_id)

    def check(self, token_ids: Sequence[int]) -> None:
        """Learn from what was foreseen, as from a guess that cost nothing."""
        if self._foreseen is not None and self._foreseen[0] < len(token_ids):
            place, token_id = self._foreseen
            self._foreseen = None
            self.learn(1, int(token_ids[place] == token_id))

    def learn(self, num_guessed: int, num_held: int) -> None:
        """Take in that of so many guesses in a row the first `num_held` held."""
        self.hold_rate = 1 - (1 - self.hold_rate) * DECAY**num_held
        if num_held < num_guessed:
            self.hold_rate *= DECAY

    def drift(self) -> None:
        """A step has passed that told nothing: what was learned grows old."""
        self.hold_rate += DRIFT * (PRIOR - self.hold_rate)

    def _place_behind_match(self) -> int | None:
        """Where the most recent occurrence of the longest known end, but the end itself, ends."""
        end = len(self._known) - WIDTH
        follows: int | None = None
        for num_tokens in range(SHORTEST, LONGEST + 1):
            found = self._find_last(bytes(self._known[-num_tokens * WIDTH :]), end)
            if found < 0:
                break
            end = found + num_tokens * WIDTH  # a longer one ends where a shorter one does
            follows = end // WIDTH
        return follows

    def _find_last(self, pattern: bytes, end: int) -> int:
        """The last place of whole tokens that match and end by `end`; -1 if there is none."""
        found = self._known.rfind(pattern, 0, end)
        while found % WIDTH and found > 0:  # bytes that match across tokens are no match
            found = self._known.rfind(pattern, 0, found + len(pattern) - 1)
        return found
