"""The form of a schedule: terms as its fields show them, and terms as a browser sends them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from runner.domain.budgets import amount, read_amount
from runner.domain.catch_up import CatchUp
from runner.domain.errors import InvalidRequest
from runner.domain.ids import FILE_PREFIX, FileId, decode, encode
from runner.domain.lines import ENDPOINTS
from runner.domain.overlap import Overlap
from runner.services.schedule_records import Terms
from web.ui.plan_form import PRIORITY, RUN_HOURS, WINDOW, WINDOWS, read_hours, read_priority

_ON_INVALID, _ON_BUDGET, _MAX_COST = "on_invalid", "on_budget", "max_cost"
_DEDUPE = "dedupe"
_TAGS, _METADATA, _DEFAULTS = "tags", "metadata", "defaults"
_SOURCES = (("tag", "the newest file with the tag"), ("path", "the address"), ("file", "the file"))
_NEW = Terms("", "", ENDPOINTS[0])

CHOICES: Mapping[str, Any] = {
    "endpoints": ENDPOINTS,
    "catch_ups": list(CatchUp),
    "overlaps": list(Overlap),
    "sources": _SOURCES,
    "windows": WINDOWS,
}


def source(terms: Terms) -> tuple[str, str]:
    """Which of the three inputs it is, and its name."""
    if terms.input_file_id is not None:
        return "file", encode(FILE_PREFIX, terms.input_file_id)
    return ("tag", terms.input_tag) if terms.input_tag else ("path", terms.input_path or "")


def schedule_options(terms: Terms | None) -> dict[str, str]:
    """What the fold of options shows, by field; of a new schedule, what it has unless told."""
    terms = terms or _NEW
    limit, metadata = terms.max_cost_nano, terms.metadata
    return {
        PRIORITY: str(terms.priority),
        WINDOW: terms.completion_window,
        RUN_HOURS: terms.run_hours or "",
        _ON_INVALID: terms.on_invalid,
        _DEDUPE: terms.dedupe,
        _MAX_COST: "" if limit is None else amount(limit).replace(",", ""),
        _ON_BUDGET: terms.on_budget,
        _TAGS: "\n".join(terms.tags),
        _METADATA: "" if metadata is None else msgspec.json.encode(metadata).decode(),
        _DEFAULTS: "" if terms.defaults is None else terms.defaults.decode(),
    }


def read_terms(form: Mapping[str, str], former: Terms | None = None) -> Terms:
    """The terms that a form asks for; an option that it lacks stays as it was.

    Raises:
        InvalidRequest: a field cannot be read; ``param`` names it. The services check the rest.
    """
    given = {name: value.strip() for name, value in form.items()}
    kind, named = given.get("source", ""), given.get("input", "")
    if not named:
        raise InvalidRequest("Say which input it reads.", param="input")
    file_id = decode(FILE_PREFIX, named) or UUID(int=0)  # which no file has
    terms = former or _NEW
    return replace(
        _with_options(terms, schedule_options(terms) | given),
        name=given.get("name", ""),
        cron=given.get("cron", ""),
        zone=given.get("zone", "") or "UTC",
        endpoint=given.get("endpoint", ENDPOINTS[0]),
        catch_up=given.get("catch_up", terms.catch_up),
        overlap=given.get("overlap", terms.overlap),
        input_file_id=FileId(file_id) if kind == "file" else None,
        input_tag=named if kind == "tag" else None,
        input_path=named if kind == "path" else None,
        output_path=given.get("output_path") or None,
    )


def _with_options(terms: Terms, given: Mapping[str, str]) -> Terms:
    cost, block = given[_MAX_COST], given[_DEFAULTS]
    return replace(
        terms,
        priority=read_priority(given),
        completion_window=given[WINDOW],
        run_hours=read_hours(given),
        on_invalid=given[_ON_INVALID],
        dedupe=given[_DEDUPE],
        max_cost_nano=read_amount(cost, _MAX_COST) if cost else None,
        on_budget=given[_ON_BUDGET],
        tags=tuple(filter(None, map(str.strip, given[_TAGS].splitlines()))),
        metadata=_read_metadata(given[_METADATA]),
        defaults=block.encode() if block else None,
    )


def _read_metadata(text: str) -> dict[str, str] | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(
            'metadata is a JSON object of texts, such as {"team": "search"}.', param=_METADATA
        ) from None
