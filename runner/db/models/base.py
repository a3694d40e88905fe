"""The root of all tables: naming of constraints, types of columns."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import Integer, Text


class Base(DeclarativeBase):
    """Root of the tables; names of constraints follow one pattern."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        datetime: TIMESTAMP(timezone=True),
        str: Text,
        bytes: BYTEA,
        dict[str, Any]: JSONB,
        dict[str, str]: JSONB,
        list[str]: ARRAY(Text),
        list[int]: ARRAY(Integer),
    }


def one_of(column: str, values: type[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"
