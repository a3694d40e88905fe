"""Connections and transactions."""

from typing import Any

from sqlalchemy import Dialect, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError
from sqlalchemy.orm import Session, sessionmaker

from runner.db.connection import BoundedConnection

SessionFactory = sessionmaker[Session]

OUTAGES = (OperationalError, InterfaceError, TimeoutError)
"""What a transaction raises when the database is away, full, hung or overrun: repeat it later."""

PATIENCE_SECONDS = 900.0
"""For statements over a whole job of a million lines."""

_CONNECT_SECONDS = 5
_IDLE_IN_TRANSACTION_SECONDS = 300
# Of a server that was demoted, and of a transaction that was ended for being idle too long. The
# driver files them among our own faults, but another connection will do.
_AWAY_STATES = {"25006", "25P03"}


def create_database_engine(
    database_url: str, pool_size: int = 5, patience_seconds: float = PATIENCE_SECONDS
) -> Engine:
    """An engine whose connections are checked before use, so a restarted server is survived.

    ``patience_seconds`` bounds every statement, on the server and, should that hang, here.
    """
    engine = create_engine(
        database_url,
        pool_pre_ping=True,
        hide_parameters=True,  # errors are logged, and parameters hold prompts and outputs
        pool_size=pool_size,
        max_overflow=20,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "tokenmill",
            "options": _options(patience_seconds),
        },
    )

    def connect(
        _dialect: Dialect, _record: object, words: list[Any], parameters: dict[str, Any]
    ) -> BoundedConnection:
        connection = BoundedConnection.connect(*words, **parameters)
        connection.patience_seconds = patience_seconds
        return connection

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "handle_error", _tell_outages)
    return engine


def create_session_factory(
    database_url: str, pool_size: int = 5, patience_seconds: float = PATIENCE_SECONDS
) -> SessionFactory:
    """A factory of sessions; ``with factory.begin() as session`` is one transaction."""
    engine = create_database_engine(database_url, pool_size, patience_seconds)
    return sessionmaker(engine, expire_on_commit=False)


def _options(patience_seconds: float) -> str:
    """Settings of the server for each connection."""
    settings = {
        # A generic plan made while a partition is still empty would be kept while a million rows
        # arrive.
        "plan_cache_mode": "force_custom_plan",
        "statement_timeout": f"{int(patience_seconds * 1000)}",
        "idle_in_transaction_session_timeout": f"{_IDLE_IN_TRANSACTION_SECONDS * 1000}",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _tell_outages(context: ExceptionContext) -> None:
    """Have what another connection would cure look like the outage that it is."""
    error = context.original_exception
    if getattr(error, "sqlstate", None) in _AWAY_STATES:
        context.is_disconnect = True
        raise OperationalError(
            context.statement, None, error, hide_parameters=True, connection_invalidated=True
        ) from error
