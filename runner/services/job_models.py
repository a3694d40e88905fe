"""The models that a job's lines name: its shards are of one each, at the price pinned for it."""

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from runner.db.copy import copy_rows
from runner.db.models import Job, JobModel, Model
from runner.domain.ids import ModelId
from runner.domain.intake import PlannedShard
from runner.domain.states import ShardState
from runner.services.models import price_at

_SHARD_COLUMNS = ("job_id", "shard_no", "model_id", "price_id", "idx", "state")
_OPEN, _FOLLOWING = ShardState.OPEN.value, ShardState.FOLLOWING.value


def write_shards(
    session: Session, job_id: UUID, priced_at: datetime, shards: Sequence[PlannedShard]
) -> list[JobModel]:
    """Give a job its first shards; returns its models, each with the price of that moment."""
    models: dict[ModelId, JobModel] = {}
    for shard in shards:
        if shard.model_id not in models:
            price = price_at(session, shard.model_id, priced_at)
            models[shard.model_id] = JobModel(
                job_id=job_id,
                model_id=shard.model_id,
                price_id=price.id,
                lines=0,
                shards=0,
                copies=0,
            )
        model = models[shard.model_id]
        if shard.follows:
            model.copies += len(shard.idx)
        else:
            model.lines += len(shard.idx)
            model.shards += 1
    rows = (
        (job_id, each.shard_no, each.model_id, models[each.model_id].price_id, each.idx, state)
        for each in shards
        for state in [_FOLLOWING if each.follows else _OPEN]
    )
    copy_rows(session, "shards", _SHARD_COLUMNS, rows)
    session.add_all(models.values())
    session.flush()
    return list(models.values())


def sole_model(models: Sequence[JobModel]) -> UUID | None:
    """The model of a job that has just one."""
    return models[0].model_id if len(models) == 1 else None


def names(model_id: ModelId) -> ColumnElement[bool]:
    """Whether lines of a job name a model."""
    return (
        select(JobModel.job_id)
        .where(JobModel.job_id == Job.id, JobModel.model_id == model_id)
        .exists()
    )


def model_names(session: Session, job_ids: Collection[UUID]) -> dict[UUID, tuple[str, ...]]:
    """The names of the models of some jobs, in their order."""
    if not job_ids:
        return {}
    query = (
        select(JobModel.job_id, Model.name)
        .join(Model, Model.id == JobModel.model_id)
        .where(JobModel.job_id.in_(job_ids))
        .order_by(Model.name)
    )
    found: dict[UUID, tuple[str, ...]] = {}
    for job_id, name in session.execute(query):
        found[job_id] = (*found.get(job_id, ()), name)
    return found
