"""The document is valid, complete, and true of what the code takes and answers."""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import Contract
from flask import Flask
from flask.testing import FlaskClient
from openapi_spec_validator import validate
from visitor import Tags, assert_harmless
from wire_lines import CHAT, chat, line, lines_of

from runner.domain.answers import UNFINISHED_MESSAGES
from runner.domain.lines import ENDPOINTS
from runner.line_formats.schemas import FORMATS
from web.reference.codes import LINE_CODES, REQUEST_CODES, RUN_CODES

Upload = Callable[..., dict[str, Any]]
RunBatch = Callable[..., dict[str, Any]]
MakeBatch = Callable[..., dict[str, Any]]

ROOT = Path(__file__).parents[2]
RAISED_IN = ("web", "runner/services", "runner/domain", "runner/inference/requests.py")
RAISED_IN = (*RAISED_IN, "runner/inference/sampling.py", "runner/inference/bodies.py")
NOT_ON_THE_WIRE = {"backup_failed", "ingest_lost", "profile_failed"}
OTHERS: dict[str, dict[str, object]] = {
    "/v1/embeddings": {"input": ["Once", "Twice"], "encoding_format": "base64"},
    "/v1/responses": {
        "input": "Once",
        "top_logprobs": 1,
        "include": ["message.output_text.logprobs"],
    },
}
PROMPT = {"model": "org/tiny", "prompt": ["Once", "Twice"], "logprobs": 2, "n": 2}


@pytest.fixture
def document(client: FlaskClient) -> dict[str, Any]:
    """The document, which needs no key."""
    answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    return answer.get_json()


@pytest.fixture
def contract(app: Flask, contracts: list[Contract]) -> Contract:
    return contracts[0]


def test_the_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    validate(document)


def test_every_route_of_the_api_is_in_the_document_and_no_other(
    app: Flask, document: dict[str, Any]
) -> None:
    routes = {
        (method.lower(), rule.rule.replace("<path:", "<").replace("<", "{").replace(">", "}"))
        for rule in app.url_map.iter_rules()
        if not rule.endpoint.startswith("ui.") and rule.endpoint != "reference.page"
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    told = {(method, path) for path, each in document["paths"].items() for method in each}
    assert told == routes


def test_every_operation_says_what_it_is_and_has_a_name_of_its_own(
    document: dict[str, Any],
) -> None:
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert all(len(each["summary"]) > 5 for each in operations)
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)


def test_only_health_figures_and_the_document_need_no_key(document: dict[str, Any]) -> None:
    free = {
        path
        for path, methods in document["paths"].items()
        for each in methods.values()
        if each.get("security") == []
    }
    assert free == {"/livez", "/readyz", "/metrics", "/openapi.json"}


def test_every_endpoint_has_its_line_format(document: dict[str, Any]) -> None:
    assert set(FORMATS) == set(ENDPOINTS)
    kinds = document["components"]["schemas"]["InputLine"]["oneOf"]
    assert len(kinds) == len(ENDPOINTS)


def test_what_a_create_may_hold_is_told_with_its_bounds(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["CreateBatch"]["properties"]
    assert {"priority", "on_invalid", "defaults", "metadata", "output_expires_after"} <= set(fields)
    assert (fields["priority"]["minimum"], fields["priority"]["maximum"]) == (-100, 100)
    assert fields["endpoint"]["enum"] == list(ENDPOINTS)
    assert fields["on_invalid"]["enum"] == ["fail", "skip"]


def test_every_code_that_is_raised_is_in_the_table() -> None:
    raised = {code for path in _sources() for code in _codes(ast.parse(path.read_text()))}
    assert {"invalid_json", "url_mismatch", "not_found", "invalid_value"} <= raised
    assert raised - NOT_ON_THE_WIRE <= {*REQUEST_CODES, *LINE_CODES, *RUN_CODES}
    assert set(UNFINISHED_MESSAGES) <= set(LINE_CODES)


def test_the_page_is_whole_and_runs_nothing(client: FlaskClient, document: dict[str, Any]) -> None:
    answer = client.get("/reference")
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert_harmless(answer.text)
    tags = Tags(answer.text)
    assert "script" not in {tag for tag, _ in tags.found}
    places = {attributes.get("id") for _, attributes in tags.found}
    for methods in document["paths"].values():
        assert {each["operationId"] for each in methods.values()} <= places
    assert set(document["components"]["schemas"]) <= places
    links = {str(attributes.get("href")) for tag, attributes in tags.found if tag == "a"}
    assert {link[1:] for link in links if link.startswith("#")} <= places


def test_lines_and_answers_of_a_whole_run_are_as_the_document_says(
    api: FlaskClient, run_batch: RunBatch, make_batch: MakeBatch, contract: Contract, model: str
) -> None:
    """The objects themselves are checked with every answer of every test of this folder."""
    good = chat("a", n=2, logprobs=True, top_logprobs=2, temperature=0.5, stop=["x"])
    assert contract.faults("InputLine", json.loads(good)) == []
    batch = run_batch(b"\n".join([good, b"nonsense", chat("b", n=0)]), on_invalid="skip")
    other = {"body": PROMPT, "url": "/v1/completions"}
    second = run_batch(line("c", **other), endpoint="/v1/completions")
    assert contract.faults("InputLine", json.loads(line("c", **other))) == []
    answers = [*lines_of(api, batch["output_file_id"]), *lines_of(api, second["output_file_id"])]
    assert len(answers) == 2
    for answer in answers:
        assert contract.faults("OutputLine", answer) == []
    failed = lines_of(api, batch["error_file_id"])
    assert len(failed) == 2
    for answer in failed:
        assert contract.faults("ErrorLine", answer) == []
    for url, body in OTHERS.items():
        text = line("d", body={"model": "org/tiny", **body}, url=url)
        assert contract.faults("InputLine", json.loads(text)) == []
        (answer,) = lines_of(api, run_batch(text, endpoint=url)["output_file_id"])
        assert contract.faults("OutputLine", answer) == []
    assert api.get(f"/api/jobs/{batch['id']}/report").status_code == 200
    assert api.get("/v1/batches").status_code == 200


def test_a_line_that_was_never_run_is_as_the_document_says(
    api: FlaskClient,
    contract: Contract,
    upload: Upload,
    make_batch: MakeBatch,
    ingest: Callable[[str], None],
    model: str,
) -> None:
    batch = make_batch(input_file_id=upload(chat("a"))["id"])
    ingest(batch["id"])
    assert api.post(f"/v1/batches/{batch['id']}/cancel").status_code == 200
    lines = api.get(f"/api/jobs/{batch['id']}/errors").data.split(b"\n")[:-1]
    assert all(contract.faults("ErrorLine", json.loads(text)) == [] for text in lines)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("InputLine", {"custom_id": "", "method": "POST", "url": CHAT, "body": {}}),
        ("InputLine", {"custom_id": "a", "method": "GET", "url": CHAT, "body": {}}),
        ("InputLine", {"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {}}),
        ("InputLine", {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"colour": 1}}),
        ("ErrorEnvelope", {"error": {"message": "No.", "type": "invalid_request_error"}}),
        ("FileObject", {}),
    ],
)
def test_the_schemas_let_not_everything_pass(
    contract: Contract, name: str, value: dict[str, Any]
) -> None:
    assert contract.faults(name, value) != []


def _sources() -> Iterator[Path]:
    for place in RAISED_IN:
        path = ROOT / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def _codes(tree: ast.AST) -> Iterator[str]:
    """The codes that a module raises: ``code="…"``, ``code = "…"``, and those given by place."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                yield code
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                texts = (each.value for each in ast.walk(value) if isinstance(each, ast.Constant))
                yield from (text for text in texts if len(str(text)) > 2)
            case ast.Call(
                func=ast.Name(id="LineError" | "LineFault"),
                args=[ast.Constant(value=str(code)), *_],
            ):
                yield code
            case ast.Call(func=ast.Name(id="BadBody"), args=[_, _, ast.Constant(value=str(code))]):
                yield code
