"""Connections and transactions."""

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session, sessionmaker

SessionFactory = sessionmaker[Session]

_CONNECT_SECONDS = 5
# A generic plan made while a partition is still empty would be kept while a million rows arrive.
_OPTIONS = "-c plan_cache_mode=force_custom_plan"


def create_database_engine(database_url: str, pool_size: int = 5) -> Engine:
    """An engine whose connections are checked before use, so a restarted server is survived."""
    return create_engine(
        database_url,
        pool_pre_ping=True,
        hide_parameters=True,  # errors are logged, and parameters hold prompts and outputs
        pool_size=pool_size,
        max_overflow=20,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "tokenmill",
            "options": _OPTIONS,
        },
    )


def create_session_factory(database_url: str, pool_size: int = 5) -> SessionFactory:
    """A factory of sessions; ``with factory.begin() as session`` is one transaction."""
    return sessionmaker(create_database_engine(database_url, pool_size), expire_on_commit=False)
