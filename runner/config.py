"""The settings of one installation: the only module that reads the environment."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from runner.failpoints import arm, parse_plan

# OpenAI's own limits of a batch, for trying out there what will run here and the reverse.
_PROFILES = {"openai": {"max_file_bytes": 200 * 1024**2, "max_job_lines": 50_000}}


class Settings(BaseSettings):
    """Every setting, with its unit in its name.

    Each is read from ``TOKENMILL_<NAME>``; the two service addresses also from the plain
    ``DATABASE_URL`` and ``BROKER_URL`` that hosting platforms set. Without addresses the embedded
    services of ``data_dir`` are used.
    """

    model_config = SettingsConfigDict(env_prefix="TOKENMILL_", frozen=True, populate_by_name=True)

    data_dir: Path = Path(".tokenmill")
    database_url: str | None = Field(default=None, validation_alias="DATABASE_URL")
    broker_url: str | None = Field(default=None, validation_alias="BROKER_URL")

    limits: Literal["default", "openai"] = "default"  # the profile of the two limits below
    max_file_bytes: int = Field(default=4 * 1024**3, gt=0)
    max_job_lines: int = Field(default=1_000_000, gt=0)
    max_line_bytes: int = Field(default=10 * 1024**2, gt=0)
    shard_lines: int = Field(default=64, gt=0)

    lease_seconds: float = Field(default=60.0, gt=0)
    grace_seconds: float = Field(default=25.0, ge=0)

    device: str = "cpu"
    dtype: str = "auto"
    quantize: Annotated[tuple[Literal["int8", "int4", "kv-int8"], ...], NoDecode] = ()
    memory_utilization: float = Field(default=0.5, gt=0, lt=1)
    max_num_seqs: int | None = Field(default=None, gt=0)  # None: by device
    max_num_batched_tokens: int | None = Field(default=None, gt=0)
    log_format: str = Field(default="console", pattern="^(console|json)$")
    # What users may have us reach: folders and buckets that schedules read and write, such as
    # s3://acme/in file:///srv/in, and receivers of webhooks that are private or speak plain HTTP,
    # such as http://hooks.intern.
    places: Annotated[tuple[str, ...], NoDecode] = ()
    failpoints: str = ""  # for debugging only: see runner/failpoints.py

    @model_validator(mode="before")
    @classmethod
    def _fill_profile(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A profile gives limits that are not set themselves."""
        return {**_PROFILES.get(values.get("limits", "default"), {}), **values}

    @field_validator("quantize", "places", mode="before")
    @classmethod
    def _split(cls, several: object) -> object:
        """Several are separated by spaces."""
        return several.split() if isinstance(several, str) else several

    @field_validator("failpoints")
    @classmethod
    def _check_failpoints(cls, plan: str) -> str:
        parse_plan(plan)
        return plan

    @field_validator("quantize")
    @classmethod
    def _check_quantize(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        if {"int8", "int4"} <= set(parts):
            raise ValueError("weights are kept in int8 or in int4, not in both")
        return parts

    @field_validator("places")
    @classmethod
    def _check_places(cls, places: tuple[str, ...]) -> tuple[str, ...]:
        """A bare host would be taken for a folder, and never be found."""
        for place in places:
            if "://" not in place and not place.startswith("/"):
                raise ValueError(
                    f"{place!r} is no place: write a folder or bucket as file:///srv/in or "
                    "s3://acme/in, and a receiver of webhooks as http://HOST"
                )
        return places

    @property
    def heartbeat_seconds(self) -> float:
        """How often a worker says that it lives: three may be lost before its leases lapse."""
        return self.lease_seconds / 4

    @property
    def tick_seconds(self) -> float:
        """How often the database is looked through, should every message have been lost."""
        return min(5.0, self.lease_seconds / 6)

    @property
    def stores(self) -> tuple[str, ...]:
        """Roots of the folders and buckets that schedules may read and write."""
        return tuple(place for place in self.places if not _is_web(place))

    @property
    def webhook_hosts(self) -> tuple[str, ...]:
        """Hosts that webhooks may reach though they are private or speak plain HTTP."""
        return tuple(urlsplit(place).hostname or "" for place in self.places if _is_web(place))

    @property
    def models_dir(self) -> Path:
        """Where model folders live on this host."""
        return self.data_dir / "models"

    @property
    def failpoint_marks(self) -> Path:
        """Where the installation remembers which fail-points were reached ``once``."""
        return self.data_dir / "run" / "failpoints"


def _is_web(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def load_settings(data_dir: Path | None = None) -> Settings:
    """The settings of the environment; a ``data_dir`` given on the command line wins."""
    settings = Settings()
    if data_dir is not None:
        settings = settings.model_copy(update={"data_dir": data_dir})
    return settings.model_copy(update={"data_dir": settings.data_dir.expanduser().resolve()})


def arm_failpoints(settings: Settings) -> None:
    """Have this process heed its plan of fail-points; each entry point of a process calls it."""
    arm(parse_plan(settings.failpoints), settings.failpoint_marks)


def child_environment(settings: Settings, database_url: str, broker_url: str) -> dict[str, str]:
    """The environment of a child process that must find the same installation as we do."""
    return os.environ | {
        "DATABASE_URL": database_url,
        "BROKER_URL": broker_url,
        "TOKENMILL_DATA_DIR": str(settings.data_dir),
    }
