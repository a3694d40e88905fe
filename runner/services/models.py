"""The registry of models and their versioned prices."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from runner.db.models import Model, Price
from runner.domain import pricing
from runner.domain.errors import NotFound
from runner.domain.ids import ModelId, PriceId
from runner.services.audit import record


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model that lines may name."""

    id: ModelId
    name: str
    path: str
    context_length: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewModel:
    """What registering needs: the folder is on every host at the same path."""

    name: str
    path: str
    context_length: int
    manifest: dict[str, str]


@dataclass(frozen=True, slots=True)
class PriceList:
    """Nano-units per million tokens, per hour of device time, and per million reused lines."""

    input_nano_per_million: int = 50_000_000
    cached_nano_per_million: int = 12_500_000
    output_nano_per_million: int = 200_000_000
    device_nano_per_hour: int = 50_000_000
    reused_nano_per_million: int = 0


def register_model(session: Session, new: NewModel, prices: PriceList) -> ModelRecord:
    """Add a model with its first price list, or point an existing name at a new folder."""
    row = session.scalars(select(Model).where(Model.name == new.name)).one_or_none()
    if row is None:
        row = Model(name=new.name, path=new.path, manifest={}, context_length=0)
        session.add(row)
        session.flush()
        set_price(session, ModelId(row.id), prices)
    row.path, row.manifest, row.context_length = new.path, new.manifest, new.context_length
    row.retired_at = None
    session.flush()
    session.refresh(row)
    record(session, "model.register", new.name)
    return _record_of(row)


def list_models(session: Session) -> list[ModelRecord]:
    """The models in use, by name."""
    rows = session.scalars(select(Model).where(Model.retired_at.is_(None)).order_by(Model.name))
    return [_record_of(row) for row in rows]


def get_model(session: Session, name: str) -> ModelRecord:
    """The model of that name."""
    query = select(Model).where(Model.name == name, Model.retired_at.is_(None))
    row = session.scalars(query).one_or_none()
    if row is None:
        raise NotFound(
            f"The model {name[:100]!r} does not exist. See GET /v1/models or: tokenmill models ls.",
            code="model_not_found",
            param="model",
        )
    return _record_of(row)


def set_price(session: Session, model_id: ModelId, prices: PriceList) -> PriceId:
    """A new version of the price list, valid from now; running jobs keep theirs."""
    row = Price(
        model_id=model_id,
        valid_from=func.clock_timestamp(),
        input_nano_per_million=prices.input_nano_per_million,
        cached_nano_per_million=prices.cached_nano_per_million,
        output_nano_per_million=prices.output_nano_per_million,
        device_nano_per_hour=prices.device_nano_per_hour,
        reused_nano_per_million=prices.reused_nano_per_million,
    )
    session.add(row)
    session.flush()
    record(session, "price.set", str(model_id))
    return PriceId(row.id)


def price_at(session: Session, model_id: UUID, moment: datetime) -> pricing.Price:
    """The price list in force at a moment; a model's first list also covers the time before it."""
    query = (
        select(Price)
        .where(Price.model_id == model_id)
        .order_by(
            (Price.valid_from <= moment).desc(),
            func.abs(func.extract("epoch", Price.valid_from - moment)),
        )
        .limit(1)
    )
    return price_of(session.scalars(query).one())


def price_now(session: Session, model_id: UUID) -> pricing.Price:
    """The price list that a job made now would have."""
    return price_at(session, model_id, session.scalars(select(func.now())).one())


def price_of(row: Price) -> pricing.Price:
    """The arithmetic form of a price row."""
    return pricing.Price(
        id=PriceId(row.id),
        input_nano_per_million=row.input_nano_per_million,
        cached_nano_per_million=row.cached_nano_per_million,
        output_nano_per_million=row.output_nano_per_million,
        device_nano_per_hour=row.device_nano_per_hour,
        reused_nano_per_million=row.reused_nano_per_million,
    )


def _record_of(row: Model) -> ModelRecord:
    return ModelRecord(
        id=ModelId(row.id),
        name=row.name,
        path=row.path,
        context_length=row.context_length,
        created_at=row.created_at,
    )
