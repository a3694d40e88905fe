"""What was spent: sums over the roll-up, by whatever dimensions are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, String, cast, false, func, literal, select, true
from sqlalchemy.orm import Session

from runner.db.models import Job, LatencyDay, Model, Price, Project, Schedule, UsageDay
from runner.domain.errors import InvalidRequest
from runner.domain.ids import API_KEY_PREFIX, JOB_PREFIX, ProjectId, decode, encode
from runner.domain.latency import Measure, Percentiles, percentiles_of

DIMENSIONS = ("day", "project", "key", "model", "tag", "schedule", "job")
MOST_GROUPS = 50_000

_Query = Select[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which part of the roll-up: days are UTC and inclusive, names are exact; None means all.

    ``key`` and ``job`` are outer ids. A job of several tags is in the scope of each of them.
    """

    project_id: ProjectId | None = None
    first: date | None = None
    last: date | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    schedule: str | None = None
    job: str | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise InvalidRequest(
                f"The first day, {self.first}, is after the last, {self.last}.",
                code="invalid_value",
                param="from",
            )


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums over the lines of one group. Money is in nano-units, times are in microseconds.

    ``group`` has a text for each dimension asked for; None where a job has no such thing.
    """

    group: tuple[str | None, ...]
    lines: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_us: int = 0
    energy_uj: int = 0
    metered_lines: int = 0
    reused_lines: int = 0
    saved_nano: int = 0
    billed_nano: int = 0
    run_cost_nano: int = 0

    @property
    def margin_nano(self) -> int:
        """What is left of the bill once the device time is paid; negative for a loss."""
        return self.billed_nano - self.run_cost_nano


@dataclass(frozen=True, slots=True)
class Charge:
    """The roll-up's finest row with the price list that was in force for it."""

    spent: Spent
    day: date
    job_id: UUID
    model: str
    project: str
    project_id: UUID
    api_key: str | None
    tags: tuple[str, ...]
    schedule: str | None
    price_id: UUID
    currency: str
    input_nano_per_million: int
    cached_nano_per_million: int
    output_nano_per_million: int
    reused_nano_per_million: int


_SUMS = tuple(name for name in Spent.__dataclass_fields__ if name != "group")


def read_dimensions(text: str) -> tuple[str, ...]:
    """The dimensions of a comma-separated list.

    Raises:
        InvalidRequest: one is unknown or named twice.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in DIMENSIONS:
            raise InvalidRequest(
                f"{name[:40]!r} is no dimension; choose of {', '.join(DIMENSIONS)}.",
                code="invalid_value",
                param="group_by",
            )
    if len(set(names)) < len(names):
        raise InvalidRequest("group_by names a dimension twice.", param="group_by")
    return names


def spent_by(session: Session, scope: Scope, by: Sequence[str] = ()) -> list[Spent]:
    """Sums by dimensions: in order of days where days are asked for first, else the dearest first.

    By tags, a job counts under each of its tags: groups then add up to more than the whole.

    Raises:
        InvalidRequest: there would be more than ``MOST_GROUPS`` groups, or an id is none.
    """
    columns = [_DIMENSIONS[name].label(name) for name in by]
    sums = [func.coalesce(func.sum(UsageDay.__table__.c[name]), 0).label(name) for name in _SUMS]
    query = _within(select(*columns, *sums), scope, with_tags="tag" in by)
    if columns:
        query = query.group_by(*columns)
    billed = func.sum(UsageDay.billed_nano).desc()
    order = [columns[0], billed, *columns[1:]] if by[:1] == ("day",) else [billed, *columns]
    rows = session.execute(query.order_by(*order).limit(MOST_GROUPS + 1)).all()
    if len(rows) > MOST_GROUPS:
        raise InvalidRequest(
            f"These are more than {MOST_GROUPS:,} groups; ask for fewer days or dimensions.",
            param="group_by",
        )
    width = len(by)
    return [
        Spent(
            tuple(map(_text, by, row[:width])),
            *map(int, row[width:]),
        )
        for row in rows
    ]


def spent_in_all(session: Session, scope: Scope) -> Spent:
    """The whole of a scope."""
    return replace(spent_by(session, scope)[0], group=())


def latencies(session: Session, scope: Scope) -> dict[Measure, Percentiles]:
    """Percentiles of the lines of a scope, from histograms: right to 5 %."""
    in_scope = _within(
        select(UsageDay.job_id, UsageDay.day, UsageDay.model_id).distinct(), scope
    ).subquery()
    query = (
        select(LatencyDay.measure, LatencyDay.bucket, func.sum(LatencyDay.lines))
        .join(
            in_scope,
            (in_scope.c.job_id == LatencyDay.job_id)
            & (in_scope.c.day == LatencyDay.day)
            & (in_scope.c.model_id == LatencyDay.model_id),
        )
        .group_by(LatencyDay.measure, LatencyDay.bucket)
    )
    histograms: dict[int, dict[int, int]] = {}
    for measure, bucket, lines in session.execute(query):
        histograms.setdefault(measure, {})[bucket] = int(lines)
    return {measure: percentiles_of(histograms.get(measure, {})) for measure in Measure}


def charges(session: Session, scope: Scope) -> list[Charge]:
    """Every row of the roll-up in a scope, in order of days and jobs."""
    sums = [UsageDay.__table__.c[name] for name in _SUMS]
    columns: tuple[ColumnElement[Any], ...] = (
        UsageDay.day.expression,
        UsageDay.job_id.expression,
        _DIMENSIONS["model"],
        Project.name.expression,
        UsageDay.project_id.expression,
        _DIMENSIONS["key"],
        func.coalesce(Job.tags, cast(literal("{}"), Job.tags.type)),
        Schedule.name.expression,
        UsageDay.price_id.expression,
        Price.currency.expression,
        Price.input_nano_per_million.expression,
        Price.cached_nano_per_million.expression,
        Price.output_nano_per_million.expression,
        Price.reused_nano_per_million.expression,
    )
    query = _within(select(*sums, *columns), scope).join(Price, Price.id == UsageDay.price_id)
    query = query.order_by(UsageDay.day, UsageDay.job_id, UsageDay.model_id, UsageDay.price_id)
    return [_charge(row, len(sums)) for row in session.execute(query)]


def _charge(row: Row[*tuple[Any, ...]], width: int) -> Charge:
    day, job_id, model, project, project_id, key, tags, schedule, price_id, *prices = row[width:]
    return Charge(
        spent=Spent((), *map(int, row[:width])),
        day=day,
        job_id=job_id,
        model=model,
        project=project,
        project_id=project_id,
        api_key=_text("key", key),
        tags=tuple(tags),
        schedule=schedule,
        price_id=price_id,
        currency=prices[0],
        input_nano_per_million=prices[1],
        cached_nano_per_million=prices[2],
        output_nano_per_million=prices[3],
        reused_nano_per_million=prices[4],
    )


_TAG = func.unnest(Job.tags).table_valued("tag").render_derived()
_DIMENSIONS: dict[str, ColumnElement[Any]] = {
    "day": UsageDay.day.expression,
    "project": Project.name.expression,
    "key": UsageDay.api_key_id.expression,
    "model": func.coalesce(Model.name, cast(UsageDay.model_id, String)),
    "tag": _TAG.c.tag,
    "schedule": Schedule.name.expression,
    "job": UsageDay.job_id.expression,
}
_PREFIXES = {"key": API_KEY_PREFIX, "job": JOB_PREFIX}


def _text(dimension: str, value: object) -> str | None:
    """A value of a dimension, for people and files."""
    if isinstance(value, UUID):
        return encode(_PREFIXES[dimension], value)
    return None if value is None else str(value)


def _within(query: _Query, scope: Scope, with_tags: bool = False) -> _Query:
    """Read a query from the roll-up with what is known of its jobs, within a scope."""
    query = (
        query.select_from(UsageDay)
        .outerjoin(Project, Project.id == UsageDay.project_id)
        .outerjoin(Model, Model.id == UsageDay.model_id)
        .outerjoin(Job, Job.id == UsageDay.job_id)
        .outerjoin(Schedule, Schedule.id == Job.schedule_id)
    )
    if with_tags:
        query = query.outerjoin(_TAG, true())
    conditions = (
        None if scope.project_id is None else UsageDay.project_id == scope.project_id,
        None if scope.first is None else UsageDay.day >= scope.first,
        None if scope.last is None else UsageDay.day <= scope.last,
        None if scope.key is None else _is(UsageDay.api_key_id, API_KEY_PREFIX, scope.key),
        None if scope.model is None else _DIMENSIONS["model"] == scope.model,
        None if scope.tag is None else Job.tags.contains([scope.tag]),
        None if scope.schedule is None else Schedule.name == scope.schedule,
        None if scope.job is None else _is(UsageDay.job_id, JOB_PREFIX, scope.job),
    )
    return query.where(*(condition for condition in conditions if condition is not None))


def _is(column: Any, prefix: str, text: str) -> ColumnElement[bool]:  # noqa: ANN401
    """Whether a column is what an outer id names; what cannot be an id names nothing."""
    value = decode(prefix, text)
    return false() if value is None else column == value
