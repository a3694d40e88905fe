"""How many tokens each row guesses, so that guessing gains where it can and costs little elsewhere.

A guess is computed beside the row's known token. It gains a step of its row if it holds, and costs
what a token costs in a step that grows by it. Both are measured while the engine runs.
"""

from engine.proposer import NgramProposer
from engine.request import Request
from engine.step_plan import StepPlan

LEAST_NEEDED, MOST_NEEDED = 0.05, 0.95
"""Bounds of what a guess must promise: no measurement makes a bad one good, or a sure one bad."""
SLOWING = 1.01
"""What a token costs is the least that was seen, made so much dearer each step: the machine may
have become slower since."""
NEWEST = 0.2
"""Weight of the newest step in what a useful token costs."""


class Speculation:
    """Decides who guesses how much, and learns by what became of it."""

    def __init__(self, most: int) -> None:
        """A row guesses `most` tokens in a step at most; 0 turns it off."""
        self._most = most
        self._token_us = 0.0  # that one more token adds to a step: its share of a full one
        self._row_us = 0.0  # that one more token costs a row that doesn't guess; 0 until measured
        self._num_failed = 0  # guesses of the present step

    @property
    def needed(self) -> float:
        """The least probability of holding with which a guess is worth its cost."""
        if not self._row_us:
            return MOST_NEEDED
        return min(MOST_NEEDED, max(LEAST_NEEDED, self._token_us / self._row_us))

    def guess(self, plan: StepPlan, others_wait: bool) -> None:
        """Let the rows of a plan that are decodes so far guess, in their order.

        They have what is left of the step's tokens, or half of it where prompts want some too.
        """
        if not self._most:
            return
        room = plan.budget // 2 if others_wait else plan.budget
        for index, request in enumerate(plan.requests):
            token_ids = self.propose(request, room)
            plan.guess(index, token_ids)
            room -= len(token_ids)

    def propose(self, request: Request, room: int) -> list[int]:
        """What a row whose newest token alone is uncomputed guesses: at most `room` tokens.

        None unless all that is wanted is the likeliest token, and never more than can be taken in.
        """
        left = request.params.max_tokens - request.num_output_tokens - 1
        if not self._most or left <= 0 or not _is_plain(request):
            return []
        proposer = request.proposer = request.proposer or NgramProposer()
        proposer.check(request.token_ids)
        count = min(self._worthwhile(proposer.hold_rate), room, left)
        token_ids = proposer.propose(request.token_ids, max(1, count))
        if not token_ids:
            proposer.drift()
        elif count <= 0:
            proposer.foresee(request.num_tokens, token_ids[0])
            return []
        return token_ids

    def learn(self, request: Request, num_guessed: int, num_held: int) -> None:
        """Take in that of a row's guesses the first `num_held` held."""
        self._num_failed += num_guessed - num_held
        if request.proposer is not None:
            request.proposer.learn(num_guessed, num_held)

    def distrust(self, request: Request) -> None:
        """Let a row guess nothing in the next step."""
        if request.proposer is not None:
            request.proposer.hold_rate = 0.0

    def took(self, step_us: int, num_tokens: int) -> None:
        """Take in what a step of so many tokens took, guesses included."""
        num_useful = num_tokens - self._num_failed
        self._num_failed = 0
        if not self._most or num_useful <= 0:
            return
        token_us, row_us = step_us / num_tokens, step_us / num_useful
        if not self._row_us:
            self._token_us, self._row_us = token_us, row_us
            return
        self._token_us = min(self._token_us * SLOWING, token_us)
        self._row_us += NEWEST * (row_us - self._row_us)

    def _worthwhile(self, hold_rate: float) -> int:
        """How many guesses in a row are each worth their cost."""
        count, needed, holds = 0, self.needed, hold_rate
        while count < self._most and holds >= needed:
            count += 1
            holds *= hold_rate
        return count


def _is_plain(request: Request) -> bool:
    """Whether each of the next tokens is the likeliest, whatever those before it are."""
    # A penalty edits nothing before the first output token, and the tokens after it all the same.
    return request.takes_likeliest and not request.params.has_penalty
