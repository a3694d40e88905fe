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
