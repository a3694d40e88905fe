"""Tags: short words by which files are found."""

from collections.abc import Iterable

from runner.domain.errors import InvalidRequest

MOST_TAGS, TAG_LETTERS = 16, 64


def check_tags(tags: Iterable[str], param: str = "tags") -> list[str]:
    """The tags, each once and in order.

    Raises:
        InvalidRequest: they are too many, or one is empty, too long or cannot be shown.
    """
    found = sorted(set(tags))
    if len(found) > MOST_TAGS:
        raise InvalidRequest(f"{param} holds at most {MOST_TAGS} tags.", param=param)
    for tag in found:
        if not 1 <= len(tag) <= TAG_LETTERS or not tag.isprintable() or "," in tag or " " in tag:
            raise InvalidRequest(
                f"{param}: a tag has 1 to {TAG_LETTERS} characters without spaces and commas, "
                f"not {tag[:TAG_LETTERS]!r}.",
                param=param,
            )
    return found
