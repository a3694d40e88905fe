"""Lines of /v1/embeddings: what is honoured, what is refused by name, and the shape of answers."""

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from test_line_bodies import lease_for, line_of, refusal_of, request_of
from test_sampling_fields import answer_to, load_backend
from tiny_models import save_model
from workshop import MODEL, Workshop

from engine.tokenizer import Tokenizer
from runner.domain.leases import ItemInput
from runner.inference.backend import LineRefusal, Outcome
from runner.inference.local.backend import LocalBackend
from runner.services import reports
from runner.worker.lines import finished_outcome

EMBEDDINGS = "/v1/embeddings"
HIDDEN = 64
TEXTS = ["the land", "once upon a time"]


def answer_of(backend: LocalBackend, body: dict[str, object]) -> tuple[dict[str, Any], Outcome]:
    lease = lease_for(EMBEDDINGS)
    backend.submit(backend.prepare(lease, ItemInput(0, "a", line_of(body, EMBEDDINGS))))
    ended: list[Outcome] = []
    while backend.unfinished:
        ended += backend.step()
    (outcome,) = (outcome for outcome in ended if outcome.task.lease is lease)
    item = finished_outcome(outcome)
    assert not item.failed
    return json.loads(item.line)["response"]["body"], outcome


def vectors_of(answer: dict[str, Any]) -> list[list[float]]:
    return [entry["embedding"] for entry in answer["data"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def resident(folder: Path) -> LocalBackend:
    return load_backend(folder)


@pytest.fixture
def local(resident: LocalBackend) -> Iterator[LocalBackend]:
    yield resident
    assert resident.unfinished == 0
    assert resident.stats()["kv_blocks_used"] == 0


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 17}, "dimensions"),
        ({"dimensions": "all"}, "dimensions"),
        ({"pooling": "max"}, "pooling"),
        ({"temperature": 1}, "temperature"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_line_that_cannot_be_honoured_is_refused_by_name(
    changes: dict[str, object], param: str
) -> None:
    refusal = refusal_of({"input": "a", **changes}, EMBEDDINGS)
    assert refusal.param == param
    assert refusal.message.endswith(".")


def test_what_a_line_asks_for_is_understood() -> None:
    asked = {"dimensions": 3, "encoding_format": "base64", "pooling": "MEAN", "user": "someone"}
    request = request_of({"input": [[1, 2], [3]], **asked}, EMBEDDINGS)
    assert [prompt.token_ids for prompt in request.prompts] == [(1, 2), (3,)]
    options = request.embedding
    assert options is not None
    assert (options.pooling, options.dimensions, options.encoding_format) == ("mean", 3, "base64")


def test_the_answer_has_the_shape_of_the_contract() -> None:
    answer = answer_to({"input": TEXTS}, EMBEDDINGS)
    CreateEmbeddingResponse.model_validate(answer, strict=True)
    assert set(answer) == {"object", "data", "model", "usage"}
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert {entry["object"] for entry in answer["data"]} == {"embedding"}
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_base64_holds_the_same_numbers_as_the_list(local: LocalBackend) -> None:
    told, _ = answer_of(local, {"input": TEXTS})
    coded, _ = answer_of(local, {"input": TEXTS, "encoding_format": "base64"})
    for numbers, text in zip(vectors_of(told), vectors_of(coded), strict=True):
        raw = base64.b64decode(text)  # type: ignore[arg-type]
        assert len(raw) == 4 * HIDDEN
        assert list(struct.unpack(f"<{HIDDEN}f", raw)) == np.float32(numbers).tolist()
        assert np.linalg.norm(np.float32(numbers)) == pytest.approx(1, abs=1e-6)


def test_texts_and_their_token_ids_have_the_same_vectors(local: LocalBackend, folder: Path) -> None:
    ids = [Tokenizer(folder).encode(text, add_special_tokens=True) for text in TEXTS]
    texts, _ = answer_of(local, {"input": TEXTS})
    tokens, _ = answer_of(local, {"input": ids})
    alone, _ = answer_of(local, {"input": ids[1]})
    np.testing.assert_allclose(vectors_of(texts), vectors_of(tokens), atol=2e-6)
    np.testing.assert_allclose(vectors_of(alone)[0], vectors_of(texts)[1], atol=2e-6)
    assert texts["usage"]["total_tokens"] == sum(map(len, ids))


def test_dimensions_are_those_of_the_model_or_fewer(local: LocalBackend) -> None:
    whole, _ = answer_of(local, {"input": "the land"})
    short, _ = answer_of(local, {"input": "the land", "dimensions": 5})
    cut = np.float32(vectors_of(whole)[0][:5])
    np.testing.assert_allclose(vectors_of(short)[0], cut / np.linalg.norm(cut), atol=1e-6)
    lease = lease_for(EMBEDDINGS)
    body: dict[str, object] = {"input": "the land", "dimensions": HIDDEN + 1}
    with pytest.raises(LineRefusal, match=f"{HIDDEN}") as caught:
        local.submit(local.prepare(lease, ItemInput(0, "a", line_of(body, EMBEDDINGS))))
    assert (caught.value.status, caught.value.param) == (400, "dimensions")


def test_an_input_that_the_model_cannot_take_is_called_input(local: LocalBackend) -> None:
    lease = lease_for(EMBEDDINGS)
    for body, code in (
        ({"input": [[1], [512]]}, "invalid_params"),
        ({"input": [[1], [2] * 257]}, "context_length_exceeded"),
    ):
        item = ItemInput(0, "a", line_of(body, EMBEDDINGS))  # type: ignore[arg-type]
        task = local.prepare(lease, item)
        with pytest.raises(LineRefusal) as caught:
            local.submit(task)
        assert (caught.value.status, caught.value.code) == (400, code)
        if code == "invalid_params":
            assert caught.value.param == "input"


def test_the_model_folder_says_how_to_pool_and_a_line_may_choose(
    local: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    plain, _ = answer_of(local, {"input": "the land"})
    last, _ = answer_of(local, {"input": "the land", "pooling": "last"})
    mean, _ = answer_of(local, {"input": "the land", "pooling": "mean"})
    assert vectors_of(plain) == vectors_of(last) != vectors_of(mean)
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "1_Pooling").mkdir()
    config = tmp_path / "1_Pooling" / "config.json"
    config.write_text('{"pooling_mode_mean_tokens": true}')
    by_folder, _ = answer_of(load_backend(tmp_path), {"input": "the land"})
    np.testing.assert_allclose(vectors_of(by_folder), vectors_of(mean), atol=2e-6)
    config.write_text('{"pooling_mode_cls_token": true}')
    unknown = load_backend(tmp_path)
    item = ItemInput(0, "a", line_of({"input": "the land"}, EMBEDDINGS))
    with pytest.raises(LineRefusal) as caught:
        unknown.prepare(lease_for(EMBEDDINGS), item)
    assert caught.value.param == "pooling"
    answer_of(unknown, {"input": "the land", "pooling": "last"})


def test_embeddings_run_beside_lines_that_generate(local: LocalBackend) -> None:
    asked: dict[str, object] = {"prompt": "tin", "max_tokens": 5, "ignore_eos": True}
    text = local.prepare(
        lease_for("/v1/completions"), ItemInput(0, "t", line_of(asked, "/v1/completions"))
    )
    local.submit(text)
    answer, outcome = answer_of(local, {"input": TEXTS, "pooling": "mean"})
    assert len(answer["data"]) == 2
    assert outcome.metrics.output_tokens == outcome.metrics.first_token_us == 0
    assert outcome.metrics.prompt_tokens == answer["usage"]["prompt_tokens"]


def test_a_job_of_embeddings_is_accounted_for_by_its_input_alone(workshop: Workshop) -> None:
    lines = [
        json.dumps(
            {
                "custom_id": f"e{number}",
                "method": "POST",
                "url": EMBEDDINGS,
                "body": {"model": MODEL, "input": ["x " * (number + 1), "y"]},
            }
        ).encode()
        for number in range(3)
    ]
    job_id = workshop.make_job(lines, endpoint=EMBEDDINGS)
    workshop.drain()
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded) == ("completed", 3)
    assert (job.totals.prompt_tokens, job.totals.output_tokens) == (9, 0)
    assert {row.output_tokens for row in workshop.usage(job_id).values()} == {0}
    for line in workshop.parsed(job_id, "output"):
        CreateEmbeddingResponse.model_validate(line["response"]["body"], strict=True)
    with workshop.sessions() as session:
        report = reports.job_report(session, workshop.caller.project_id, job_id)
    assert report.account.first_token.p50 is None
    assert report.account.total.p50 is not None
