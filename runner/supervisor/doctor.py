"""Checks of an installation: what is wrong, and what to do about it."""

import errno
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from runner.config import Settings
from runner.db import migrate
from runner.embedded import (
    EmbeddedError,
    ServiceUrls,
    broker_answers,
    database_answers,
    find_programs,
    free_room,
    recorded,
)
from runner.supervisor.errors import SupervisorError
from runner.supervisor.port import usable_port
from runner.supervisor.spec import UpOptions
from runner.supervisor.up_state import is_up

_OLDEST_PYTHON = (3, 11)
_FREE_BYTES = 4 * 1024**3
_FREE_SPACE = "Free some space: a full disk stops the database. It goes on by itself after that."
_GIB = 1024**3


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing, and no reason not to start."""
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report; the remedy is empty where nothing is to be done."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def examine(settings: Settings, options: UpOptions) -> Iterator[Check]:
    """Every check in turn, those first that others rest on."""
    yield _python()
    yield _data_dir(settings.data_dir)
    yield _programs(settings)
    yield from _services(settings)
    yield _models(settings.models_dir)
    yield _compiler()
    yield _port(settings, options)


def _python() -> Check:
    version = ".".join(str(number) for number in sys.version_info[:3])
    if sys.version_info >= _OLDEST_PYTHON:
        return Check("python", Verdict.OK, version)
    return Check("python", Verdict.PROBLEM, version, "Install Python 3.11 or newer.")


def _data_dir(data_dir: Path) -> Check:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = data_dir / ".doctor"
        probe.touch()
        probe.unlink()
        free = shutil.disk_usage(data_dir).free
        room = free_room(data_dir)
    except OSError as error:
        remedy = "Choose a folder that you may write with --data-dir."
        if error.errno == errno.ENOSPC:
            remedy = _FREE_SPACE
        return Check("data directory", Verdict.PROBLEM, str(error), remedy)
    detail = f"{data_dir}, {free / _GIB:.1f} GiB free"
    if room < 0:
        detail += ", the disk is nearly full: uploads are refused and new jobs wait"
        return Check("data directory", Verdict.PROBLEM, detail, _FREE_SPACE)
    if free < _FREE_BYTES:
        remedy = "Make room soon: with less than a reserve uploads are refused."
        return Check("data directory", Verdict.NOTE, detail, remedy)
    return Check("data directory", Verdict.OK, detail)


def _programs(settings: Settings) -> Check:
    if settings.database_url and settings.broker_url:
        detail = "not needed: DATABASE_URL and BROKER_URL are set"
        return Check("server programs", Verdict.OK, detail)
    try:
        found = find_programs(settings.data_dir)
    except EmbeddedError as error:
        return Check("server programs", Verdict.PROBLEM, "missing or unfit", error.message)
    except OSError as error:
        return Check("server programs", Verdict.PROBLEM, str(error), "Repair the installation.")
    return Check("server programs", Verdict.OK, "; ".join(found))


def _services(settings: Settings) -> Iterator[Check]:
    urls = addresses(settings)
    if urls is None:
        yield Check("services", Verdict.NOTE, "not running", "Start with `tokenmill up`.")
        return
    broker = broker_answers(urls.broker_url)
    yield _reachable("broker", broker, settings.broker_url is not None)
    database = database_answers(urls.database_url)
    yield _reachable("database", database, settings.database_url is not None)
    if database:
        yield _migrations(urls.database_url)


def addresses(settings: Settings) -> ServiceUrls | None:
    """Where the services of this installation should be; None before the first start."""
    known = recorded(settings.data_dir)
    database_url = settings.database_url or (known.database_url if known else None)
    broker_url = settings.broker_url or (known.broker_url if known else None)
    if database_url is None or broker_url is None:
        return None
    return ServiceUrls(database_url, broker_url)


def _reachable(name: str, answers: bool, given: bool) -> Check:
    if answers:
        return Check(name, Verdict.OK, "answers")
    variable = f"{name.upper()}_URL"
    remedy = (
        f"Check {variable} and that the server runs."
        if given
        else "Start it with `tokenmill up`; see `tokenmill logs` for why it stopped."
    )
    return Check(name, Verdict.PROBLEM, "does not answer", remedy)


def _migrations(database_url: str) -> Check:
    try:
        behind = migrate.pending(database_url)
    except SQLAlchemyError as error:
        remedy = "Check that the role may read the schema."
        return Check("migrations", Verdict.PROBLEM, str(error), remedy)
    if behind:
        remedy = "`tokenmill up` applies what is missing."
        return Check("migrations", Verdict.PROBLEM, "the schema is older than the code", remedy)
    return Check("migrations", Verdict.OK, "at head")


def _models(models_dir: Path) -> Check:
    names = sorted(path.parent.name for path in models_dir.glob("*/config.json"))
    if names:
        return Check("models", Verdict.OK, ", ".join(names))
    remedy = f"Put a model's folder (config.json, safetensors) below {models_dir}."
    return Check("models", Verdict.NOTE, f"none in {models_dir}", remedy)


def _compiler() -> Check:
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return Check("C++ compiler", Verdict.OK, found)
    remedy = "Install g++ to make the CPU engine faster."
    return Check("C++ compiler", Verdict.NOTE, "none found", remedy)


def _port(settings: Settings, options: UpOptions) -> Check:
    if is_up(settings.data_dir):
        return Check("port", Verdict.OK, "Tokenmill is up")
    try:
        usable_port(options.host, options.port)
    except SupervisorError as error:
        return Check("port", Verdict.PROBLEM, f"{options.port} is taken", error.message)
    return Check("port", Verdict.OK, f"{options.port} is free")
