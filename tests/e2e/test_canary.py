"""Prompts, answers and keys are in no log of a whole run, however it goes wrong."""

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from installation import Server, chat_line, eventually, run_cli, running_server
from openai import OpenAI
from openai.types import Batch

CANARY = "canary-7f3a9"
MODEL = "stub-of-canaries"
CRASH = f"{CANARY}-crash"
WRONG_KEY = f"tm-{CANARY}-wrong-key"
ENDED = {"completed", "failed", "expired", "cancelled"}
NOT_LOGS = {"postgres", "pgdata", "models", "bin"}  # the truth itself keeps what it was given


@pytest.fixture(scope="module")
def canary_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An installation whose one worker dies of a word."""
    data_dir = tmp_path_factory.mktemp("canary")
    run_cli(data_dir, "models", "add", MODEL, f"stub:?rows=8&crash_on={CRASH}")
    with running_server(data_dir, "--model", MODEL, lease_seconds="6") as server:
        yield server


def run(client: OpenAI, content: bytes, **extra: object) -> Batch:
    """Submit lines and wait for the batch's end."""
    batch = submit(client, content, **extra)

    def ended() -> Batch | None:
        found = client.batches.retrieve(batch.id)
        return found if found.status in ENDED else None

    return eventually(ended)


def submit(client: OpenAI, content: bytes, **extra: object) -> Batch:
    file = client.files.create(file=(f"{CANARY}.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"note": CANARY},
        extra_body=extra,
    )


def answers_of(client: OpenAI, file_id: str | None) -> list[str]:
    """The texts of an output file, but for those too short to be told from a log's own words."""
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).iter_lines()]
    texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    return [text for text in texts if text.count(" ") >= 2]


def logs_of(data_dir: Path) -> dict[Path, bytes]:
    """Everything that an installation has written but for its database and its models."""
    return {
        path: path.read_bytes()
        for path in data_dir.rglob("*")
        if path.is_file() and not NOT_LOGS & set(path.relative_to(data_dir).parts[:-1])
    }


def misuse(server: Server) -> None:
    """Requests that fail, each with something in it that must not be told."""
    with server.client() as client:
        for body in ({"purpose": CANARY}, {"bytes": CANARY}):
            with pytest.raises(openai.BadRequestError):
                client.post("/uploads", body=body, cast_to=object)
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(CANARY)
        with pytest.raises(openai.BadRequestError):
            client.batches.create(
                input_file_id="file-x", endpoint="/v1/chat/completions", completion_window=CANARY
            )
    with server.client(key=WRONG_KEY) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.slow
def test_no_log_of_a_run_holds_a_prompt_an_answer_or_a_key(canary_server: Server) -> None:
    server = canary_server
    good = [chat_line(f"a{n}", MODEL, f"{CANARY} number {n}") for n in range(40)]
    bad = [
        b'{"custom_id": "%b", not json\n' % CANARY.encode(),
        chat_line("b1", CANARY, "x"),
        chat_line("b2", MODEL, CANARY, **{CANARY: CANARY}),
        chat_line("b3", MODEL, CANARY, temperature=CANARY),
    ]
    shared = {"messages": [{"role": "system", "content": f"{CANARY} for all"}]}
    with server.client() as client:
        done = run(client, b"".join(good), defaults=shared)
        assert done.status == "completed"
        texts = answers_of(client, done.output_file_id)
        assert len(texts) > 10
        shown = run_cli(server.data_dir, "jobs", "show", done.id, "--project", "tests")
        assert (shown["state"], shown["defaults"]) == ("completed", shared)
        assert run(client, b"".join(good + bad)).status == "failed"
        assert run(client, b"".join(good + bad), on_invalid="skip").status == "completed"
        misuse(server)
        poisoned = submit(client, chat_line("poison", MODEL, f"{CRASH} now"))
        eventually(lambda: server.status()["children"]["engine-1"]["restarts"])
        client.batches.cancel(poisoned.id)
    logs = logs_of(server.data_dir)
    assert {"web.log", "cpu.log", "engine-1.log"} <= {path.name for path in logs}
    assert b"metrics: http://127.0.0.1:" in b"".join(logs.values())
    for path, data in logs.items():
        for secret in (CANARY, server.key, *texts):
            assert secret.encode() not in data, path
