"""What an engine has done since it was opened: steps, their time, and tokens."""

from dataclasses import dataclass

from engine.request import Request
from engine.step_plan import StepPlan


@dataclass(slots=True)
class Counters:
    """Counts that only grow, but for `last_step_us`; EngineStats says what each one means."""

    steps: int = 0
    last_step_us: int = 0
    busy_us: int = 0
    host_us: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    copies: int = 0
    guessed_tokens: int = 0
    held_tokens: int = 0

    def take_step(self, plan: StepPlan, step_us: int, runner_us: int) -> None:
        """Charge a step's wall time to its requests by tokens; the shares add up exactly.

        Args:
            step_us: the whole step, microseconds, from the end of the one before if that left work:
                so a caller that never idles while there is work finds all its time in the shares.
            runner_us: the part of it that the runner took.
        """
        self.steps += 1
        self.last_step_us = step_us
        self.busy_us += step_us
        self.host_us += step_us - runner_us
        if not plan.requests:
            return
        total = sum(plan.num_tokens)
        shares = [step_us * num_tokens // total for num_tokens in plan.num_tokens]
        shares[0] += step_us - sum(shares)
        for request, share in zip(plan.requests, shares, strict=True):
            request.device_us += share

    def take_guesses(self, num_guessed: int, num_held: int) -> None:
        """Count what a request guessed in a step, and how many of that held."""
        self.guessed_tokens += num_guessed
        self.held_tokens += num_held

    def take_computed(self, request: Request) -> None:
        """Count the prompt of a request that has ended, and what it computed again."""
        self.recomputed_tokens += request.num_recomputed_tokens
        self.prompt_tokens += request.num_prompt_tokens

    def take_copy(self, request: Request) -> None:
        """Count a request that was answered by an equal one."""
        self.prompt_tokens += request.num_prompt_tokens
        self.copies += 1
