"""What a step gives of its head: logits for some rows, the likeliest token for all."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a step shall give of the head's products.

    Attributes:
        num_logits: of the first so many rows the logits.
        num_ids: tokens that may be taken: the first so many of the vocabulary.
    """

    num_logits: int
    num_ids: int


@dataclass(frozen=True, slots=True)
class Likeliest:
    """For each row of a step.

    Attributes:
        token_ids: the likeliest token, the lowest among equals.
        finite: False where its logits hold NaN or infinity; the token means nothing then.
    """

    token_ids: list[int]
    finite: list[bool]

    def following(self, start: int, guesses: list[int]) -> tuple[tuple[int, ...], bool]:
        """The tokens that follow a sequence, and whether the first of them means anything.

        Args:
            start: the row of its last known token; those of its guesses come behind.
            guesses: tokens that it was supposed to go on with. One holds if it is the likeliest
                where it stands and those before it hold. What follows one whose logits aren't
                finite is left to the next step: only there it is known to be wanted.
        """
        held = 0
        for guess in guesses:
            at = start + held
            if guess != self.token_ids[at] or not self.finite[at + 1]:
                break
            held += 1
        return tuple(self.token_ids[start : start + held + 1]), self.finite[start]
