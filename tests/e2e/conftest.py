"""One installation with the real model for those end-to-end tests that ask it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from installation import Server, running_server
from openai import OpenAI

from runner.model_library import BUILTIN_MODEL


@pytest.fixture(scope="package")  # what lingers takes time and memory from the tests of others
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("installation")
    place = data_dir / "models" / BUILTIN_MODEL
    shutil.copytree(smollm2_folder, place)
    with running_server(data_dir, places="http://127.0.0.1") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with server.client() as client:
        yield client
