"""The compose file and the Dockerfile agree with the code they start."""

import ast
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from celery import Celery
from celery.bin.celery import celery as celery_command
from gunicorn.config import Config

from runner.config import Settings, load_settings
from runner.embedded import ServiceUrls
from runner.supervisor import UpOptions
from runner.supervisor.spec import process_table

ROOT = Path(__file__).parents[2]
APPS = {"migrate", "web", "beat", "cpu-worker", "gpu-worker"}
# Options that the supervisor sets for its own host and compose for its containers.
OF_THE_PLACE = {"--bind", "--schedule", "-n"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert set(loaded["volumes"]) == {"database", "models"}
    return dict(loaded["services"])


def test_every_part_is_there(services: dict[str, Any]) -> None:
    assert set(services) == APPS | {"postgres", "valkey"}


def test_nothing_starts_before_the_schema_is_ready(services: dict[str, Any]) -> None:
    for name in APPS - {"migrate"}:
        depends = services[name]["depends_on"]
        assert depends["migrate"] == {"condition": "service_completed_successfully"}, name
        assert depends["valkey"] == {"condition": "service_healthy"}, name
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["migrate"]["restart"] == "no"


def test_what_others_wait_for_has_a_health_check(services: dict[str, Any]) -> None:
    for name in ("postgres", "valkey", "web"):
        assert services[name]["healthcheck"]["test"], name


def test_no_password_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = re.findall(r"\$\{(\w*PASSWORD)([^}]*)\}", text)
    assert {name for name, _ in used} == {"POSTGRES_PASSWORD", "VALKEY_PASSWORD"}
    assert all(rest.startswith(":?") for _, rest in used)


def test_settings_that_are_set_exist(services: dict[str, Any]) -> None:
    known = {f"TOKENMILL_{name.upper()}" for name in Settings.model_fields}
    known |= {"DATABASE_URL", "BROKER_URL"}
    for name in APPS:
        assert set(services[name]["environment"]) <= known, name
        assert {"DATABASE_URL", "BROKER_URL"} <= set(services[name]["environment"]), name


def test_the_gpu_worker_reserves_a_card(services: dict[str, Any]) -> None:
    reserved = services["gpu-worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_only_the_page_is_published_and_on_loopback(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["web"]
    assert published["web"][0].startswith("127.0.0.1:")


@pytest.mark.parametrize("name", sorted(APPS - {"migrate"}))
def test_commands_name_modules_that_exist(services: dict[str, Any], name: str) -> None:
    command = services[name]["command"]
    assert command[:2] == ["python", "-m"]
    assert importlib.util.find_spec(command[2]) is not None
    named = command[-1].partition(":")[0] if name == "web" else command[command.index("-A") + 1]
    assert importlib.util.find_spec(named) is not None


def test_the_migration_is_python_that_names_what_exists(services: dict[str, Any]) -> None:
    program, flag, script = services["migrate"]["command"]
    assert (program, flag) == ("python", "-c")
    for node in ast.parse(script).body:
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("name", ["beat", "cpu-worker", "gpu-worker"])
def test_celery_accepts_its_options(services: dict[str, Any], name: str) -> None:
    # --engine is an option of our own, which only our application registers.
    words = [word for word in services[name]["command"][5:] if word != "--engine"]
    verb = celery_command.commands[words[0]]
    place = SimpleNamespace(app=Celery(set_as_current=False))
    assert isinstance(verb.make_context(words[0], words[1:], obj=place), click.Context)


def test_gunicorn_accepts_its_options(services: dict[str, Any]) -> None:
    options = Config().parser().parse_args(services["web"]["command"][3:])
    assert options.args == ["web:create_app()"]


@pytest.mark.parametrize(
    ("service", "process"),
    [("web", "web"), ("beat", "beat"), ("cpu-worker", "cpu"), ("gpu-worker", "engine-1")],
)
def test_containers_run_what_the_supervisor_runs(
    services: dict[str, Any], tmp_path: Path, service: str, process: str
) -> None:
    urls = ServiceUrls("postgresql://d", "redis://b")
    table = process_table(load_settings(tmp_path), UpOptions(), urls)
    specs = {spec.name: list(spec.command) for spec in table}
    assert bare(services[service]["command"]) == bare(specs[process])


def bare(command: list[str]) -> list[str]:
    """A command without its interpreter and without what differs between places."""
    words = command[1:]
    after = {index + 1 for index, word in enumerate(words) if word in OF_THE_PLACE}
    return [word for index, word in enumerate(words) if index not in after]


def test_the_dockerfile_copies_every_package_and_runs_unprivileged() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and " " in line}
    assert {"engine", "runner", "web", "migrations"} <= copied
    assert "USER tokenmill" in lines
    assert any("pip install" in line and "-c constraints.txt" in line for line in lines)
