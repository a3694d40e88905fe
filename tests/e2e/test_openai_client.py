"""The official ``openai`` client, unchanged, against a live server with the real model."""

import base64
import json
from pathlib import Path

import numpy as np
import openai
import pytest
from installation import Server, chat_line, eventually, run_cli
from openai import OpenAI
from openai.types import Batch, CreateEmbeddingResponse
from openai.types.responses import Response

from runner.model_library import BUILTIN_MODEL

ENDED = {"completed", "failed", "expired", "cancelled"}


def submit(
    client: OpenAI, content: bytes | Path, endpoint: str = "/v1/chat/completions", **extra: object
) -> Batch:
    file = client.files.create(file=content, purpose="batch")
    assert client.files.wait_for_processing(file.id).status == "processed"
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        extra_body=extra,
    )


def line(custom_id: str, url: str, **body: object) -> bytes:
    whole = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(whole).encode() + b"\n"


def wait(client: OpenAI, batch: Batch) -> Batch:
    def ended() -> Batch | None:
        found = client.batches.retrieve(batch.id)
        return found if found.status in ENDED else None

    return eventually(ended, seconds=150)


def lines_of(client: OpenAI, file_id: str | None) -> list[dict]:  # type: ignore[type-arg]
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).iter_lines()]


def test_a_file_uploaded_from_a_path_is_answered_in_line_order(
    client: OpenAI, tmp_path: Path
) -> None:
    path = tmp_path / "input.jsonl"
    questions = [f"What is {n} plus {n}?" for n in range(6)]
    path.write_bytes(
        b"".join(
            chat_line(f"q{n}", BUILTIN_MODEL, text, max_tokens=8, temperature=0)
            for n, text in enumerate(questions)
        )
    )
    batch = wait(client, submit(client, path))
    assert batch.status == "completed"
    assert batch.error_file_id is None
    assert batch.model == BUILTIN_MODEL
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (6, 6)
    lines = lines_of(client, batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"q{n}" for n in range(6)]
    usage = [line["response"]["body"]["usage"] for line in lines]
    assert all(line["response"]["body"]["choices"][0]["message"]["content"] for line in lines)
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(use["completion_tokens"] for use in usage)
    assert batch.usage.input_tokens == sum(use["prompt_tokens"] for use in usage)
    assert client.files.retrieve(batch.output_file_id or "").purpose == "batch_output"


def test_embeddings_and_responses_are_read_by_the_client_and_long_prompts_shortened(
    server: Server, client: OpenAI
) -> None:
    texts = ["A cat sleeps.", "The cat is asleep.", "Taxes rise in March."]
    asked = {"input": texts, "pooling": "mean"}
    vectors = submit(
        client,
        line("v", "/v1/embeddings", **asked)
        + line("w", "/v1/embeddings", **asked, encoding_format="base64"),
        "/v1/embeddings",
        defaults={"model": BUILTIN_MODEL},
    )
    said = submit(
        client,
        line("r", "/v1/responses", input="Say yes.", instructions="Be brief.")
        + line("t", "/v1/responses", input="word " * 9000),
        "/v1/responses",
        defaults={
            "model": BUILTIN_MODEL,
            "max_output_tokens": 4,
            "temperature": 0,
            "truncate_prompt": "keep_system_and_last",
            "truncate_prompt_tokens": 60,
        },
    )
    vectors, said = wait(client, vectors), wait(client, said)
    assert (vectors.status, said.status) == ("completed", "completed")
    numbers, coded = (
        entry["response"]["body"] for entry in lines_of(client, vectors.output_file_id)
    )
    told = CreateEmbeddingResponse.model_validate(numbers)
    cat, asleep, taxes = np.array([entry.embedding for entry in told.data])
    assert cat @ asleep > cat @ taxes
    assert np.linalg.norm(taxes) == pytest.approx(1)
    raw = base64.b64decode(coded["data"][0]["embedding"])
    np.testing.assert_allclose(np.frombuffer(raw, "<f4"), cat, atol=2e-2)
    assert vectors.usage is not None
    assert (vectors.usage.output_tokens, told.usage.total_tokens) == (0, told.usage.prompt_tokens)
    bodies = [entry["response"]["body"] for entry in lines_of(client, said.output_file_id)]
    brief, long = (Response.model_validate(body) for body in bodies)
    assert brief.output_text
    assert long.usage is not None
    assert 50 <= long.usage.input_tokens <= 60
    assert long.status == "incomplete"
    assert bodies[1]["truncated_prompt_tokens"] > 8900
    shown = run_cli(server.data_dir, "jobs", "show", said.id, "--project", "tests")["report"]
    account = shown["account"]
    assert account["truncated_lines"] == 1
    assert account["truncated_tokens"] == bodies[1]["truncated_prompt_tokens"]


def test_bytes_are_uploaded_and_a_line_that_cannot_run_fails_alone(client: OpenAI) -> None:
    good = chat_line("good", BUILTIN_MODEL, "Say yes.", max_tokens=4, temperature=0)
    hot = chat_line("hot", BUILTIN_MODEL, "Say yes.", temperature=3)
    long = chat_line("long", BUILTIN_MODEL, "word " * 9000, max_tokens=4)
    batch = wait(client, submit(client, good + hot + long))
    assert batch.status == "completed"
    assert [line["custom_id"] for line in lines_of(client, batch.output_file_id)] == ["good"]
    faults = {line["custom_id"]: line for line in lines_of(client, batch.error_file_id)}
    assert set(faults) == {"hot", "long"}
    errors = {name: line["response"]["body"]["error"] for name, line in faults.items()}
    assert errors["hot"]["param"] == "temperature"
    assert errors["long"]["code"] == "context_length_exceeded"
    assert {line["response"]["status_code"] for line in faults.values()} == {400}


def test_a_bad_file_fails_with_every_bad_line_named(client: OpenAI) -> None:
    good = chat_line("a", BUILTIN_MODEL, "x")
    lines = [
        good,
        b"{not json}\n",
        good,
        b"\n",
        chat_line("b", "no-such-model", "x"),
        chat_line("c", BUILTIN_MODEL, "x", stream=True),
        b'{"custom_id": "d", "method": "POST", "url": "/v1/chat/completions"}\n',
    ]
    batch = wait(client, submit(client, b"".join(lines)))
    assert batch.status == "failed"
    assert batch.output_file_id is None
    assert batch.error_file_id is None
    assert batch.errors is not None
    found = [(error.line, error.code) for error in batch.errors.data or []]
    assert found == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (5, "model_not_found"),
        (6, "streaming_unsupported"),
        (7, "missing_required_parameter"),
    ]


def test_a_cancelled_batch_keeps_what_is_done_and_its_counts_add_up(client: OpenAI) -> None:
    content = b"".join(
        chat_line(f"c{n}", BUILTIN_MODEL, "Count to a thousand.", max_tokens=4 if n == 0 else 400)
        for n in range(30)
    )
    batch = submit(client, content)
    eventually(lambda: (client.batches.retrieve(batch.id).request_counts or 0).completed, 90)  # type: ignore[union-attr]
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    batch = wait(client, batch)
    assert batch.status == "cancelled"
    done = lines_of(client, batch.output_file_id)
    rest = lines_of(client, batch.error_file_id)
    assert len(done) + len(rest) == 30
    assert {line["custom_id"] for line in done + rest} == {f"c{n}" for n in range(30)}
    assert all(line["error"]["code"] == "batch_cancelled" for line in rest)
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)


def test_sixty_batches_are_paged_through_once_each(client: OpenAI) -> None:
    file = client.files.create(file=chat_line("p", "no-such-model", "x"), purpose="batch")
    made = {
        client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"number": str(number)},
        ).id
        for number in range(60)
    }
    listed = [batch.id for batch in client.batches.list(limit=20)]
    assert len(listed) == len(set(listed))
    assert made <= set(listed)


def test_errors_are_the_clients_own_exceptions(server: Server, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.batches.retrieve("batch_" + "0" * 26)
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as unknown:
        client.batches.create(
            input_file_id="file-" + "0" * 26,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
    assert unknown.value.param == "input_file_id"
    with server.client(key="tm-wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_the_model_is_listed_and_a_deleted_file_is_gone(client: OpenAI) -> None:
    assert BUILTIN_MODEL in {model.id for model in client.models.list()}
    file = client.files.create(file=b"{}\n", purpose="batch")
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
