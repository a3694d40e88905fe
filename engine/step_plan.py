"""What one step computes: requests, and of each how many tokens."""

from dataclasses import dataclass, field

from engine.request import Request


@dataclass(slots=True)
class StepPlan:
    """One step: `num_tokens[i]` tokens of `requests[i]`, the known ones and then its guesses.

    `budget` is the number of tokens the step may still take; one prompt that can't be cut may take
    more. `stuck` is a request that can never be scheduled, found when nothing else could run.
    """

    budget: int
    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_preempted: int = 0
    stuck: Request | None = None

    def add(self, request: Request, num_tokens: int) -> None:
        self.requests.append(request)
        self.num_tokens.append(num_tokens)
        self.budget -= num_tokens

    def guess(self, index: int, token_ids: list[int]) -> None:
        """Have the request at this place guess, in the stead of what it guessed before."""
        request = self.requests[index]
        more = len(token_ids) - len(request.guesses)
        request.guesses = token_ids
        self.num_tokens[index] += more
        self.budget -= more

    def discard(self, request: Request) -> None:
        """Take a request out again, if it was planned."""
        request.guesses = []
        if request in self.requests:
            index = self.requests.index(request)
            del self.requests[index]
            self.budget += self.num_tokens.pop(index)
