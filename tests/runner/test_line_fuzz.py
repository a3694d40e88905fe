"""Any bytes as a line: one typed verdict, the same for the check at ingest as for the use.

The lines are good ones that were mutated, documents that are too deep, too large or say a thing
twice, and plain noise.
"""

import json
from uuid import UUID

import msgspec
from fuzzing import runs
from hypothesis import given
from hypothesis import strategies as st
from workshop import MODEL, make_item

from runner.domain.defaults import Defaults
from runner.domain.ids import FileId, JobId, ModelId, PriceId, ProjectId
from runner.domain.leases import Lease, ShardKey
from runner.domain.lines import Line, LineError, ParsedLine, parse_line
from runner.domain.pricing import Price
from runner.domain.sound_json import MAX_DEPTH
from runner.inference.bodies import BadBody
from runner.inference.requests import LineRequest, parse_request
from runner.line_formats.schemas import FORMATS
from web.reference.codes import LINE_CODES

LIMIT = 20_000
ENDPOINT = st.sampled_from(sorted(FORMATS))
BLOCK = st.sampled_from(
    [None, b'{"model":"m","messages":[{"role":"system","content":"s"}]}', b'{"temperature":0}']
)
NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([2**63, 2**63 - 1, -(2**63) - 1, 10**40, 1e308, -0.0, 5e-324]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted({name for each in FORMATS.values() for name in each.body.__struct_fields__})
MOSTLY = st.sampled_from((True, True, True, False))
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "tool"]), "content": st.text(max_size=9) | VALUES}
)
PROMPT = st.one_of(
    st.text(max_size=9),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.text(max_size=3), max_size=3),
    VALUES,
)
ASKED_IN = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
# Values that some field takes, so that the checks behind the types are reached.
LIKELY = st.one_of(
    *(st.integers(-2, 70), st.floats(-3, 3), st.booleans(), st.sampled_from(["x", "none", ""])),
    *(st.lists(st.text(max_size=3), max_size=3), st.lists(st.integers(-1, 9), max_size=3)),
    *(st.dictionaries(st.sampled_from(["1", "x", "type"]), NUMBERS, max_size=2), VALUES),
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A line in JSON of any spelling; most have no fault but in their body, if any."""
    body = {
        "model": draw(VALUES) if not draw(MOSTLY) else MODEL,
        "messages": draw(st.lists(MESSAGE, min_size=1, max_size=2)),
        "prompt": draw(PROMPT),
        "input": draw(PROMPT),
    }
    url = draw(ENDPOINT)
    for name in ("messages", "prompt", "input"):
        if name != ASKED_IN.get(url, "input") and draw(MOSTLY):
            del body[name]
    if draw(MOSTLY):
        body |= draw(st.dictionaries(st.sampled_from(FIELDS), LIKELY, max_size=2))
    custom_id = "a" if draw(MOSTLY) else draw(st.text(max_size=3))
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    if not draw(MOSTLY):
        line[draw(st.sampled_from(sorted(line)))] = draw(VALUES)
    if not draw(MOSTLY):
        del line[draw(st.sampled_from(sorted(line)))]
    return json.dumps(line, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A good line with some bytes cut out, doubled or replaced."""
    data = bytearray(make_item("a", "Hi \u00fc", temperature=0.5, n=1, stop=["x"]))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, max(0, len(data) - 1)))
        stop = min(len(data), start + draw(st.integers(0, 12)))
        noise = draw(st.sampled_from([b"", b'"', b"{", b"]", b",", b"\\u", b"\0", b"\xff", b"1e9"]))
        data[start:stop] = draw(st.sampled_from([noise, bytes(data[start:stop]) * 2]))
    return bytes(data)


@st.composite
def nested(draw: st.DrawFn) -> bytes:
    """A good line with a value in it that is deep."""
    levels = draw(st.sampled_from([1, MAX_DEPTH - 4, MAX_DEPTH, 900, 5_000]))
    opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]))
    inner = draw(st.sampled_from([b"1", b"", b"[" * 9]))
    deep = opening * levels + inner + closing * draw(st.sampled_from([levels, levels - 1]))
    name = draw(st.sampled_from([b"seed", b"messages", b"metadata"]))
    return make_item("a").replace(b'"model"', b'"%b": %b, "model"' % (name, deep))


@st.composite
def repeated(draw: st.DrawFn) -> bytes:
    """A good line with a field that comes twice; the last is the one that counts."""
    name = draw(st.sampled_from([b"model", b"messages", b"custom_id", b"url", b"body", b"stream"]))
    value = json.dumps(draw(VALUES)).encode()
    data = make_item("a", stream=False)
    twice = b'"%b": %b, "%b"' % (name, value, name)
    if draw(st.booleans()):
        return data.replace(b'"%b"' % name, twice, 1)
    return data[:-1] + b', "%b": %b}' % (name, value)


NOISE = st.binary(max_size=80)
LINES = st.one_of(documents(), documents(), mutants(), nested(), repeated(), NOISE)


def lease_of(endpoint: str, defaults: Defaults) -> Lease:
    """A lease of a shard that nobody needs to have."""
    nobody = UUID(int=1)
    return Lease(
        key=ShardKey(JobId(nobody), 0, 1),
        attempt=1,
        suspect=False,
        priority=0,
        project_id=ProjectId(nobody),
        api_key_id=None,
        model_id=ModelId(nobody),
        price=Price(PriceId(nobody), 0, 0, 0, 0),
        endpoint=endpoint,
        input_file_id=FileId(nobody),
        idx=(0,),
        defaults=defaults,
    )


def checked(data: bytes, endpoint: str, defaults: Defaults) -> ParsedLine | LineError:
    """What ingest says of a line."""
    try:
        return parse_line(data, endpoint, LIMIT, defaults)
    except LineError as error:
        return error


def used(data: bytes, endpoint: str, defaults: Defaults) -> LineRequest | BadBody:
    """What the worker makes of a line that passed."""
    try:
        return parse_request(data, lease_of(endpoint, defaults), 0)
    except BadBody as error:
        return error


@runs(400)
@given(LINES, ENDPOINT, MOSTLY, BLOCK)
def test_any_line_has_one_verdict_and_check_and_use_agree(
    data: bytes, endpoint: str, is_right: bool, block: bytes | None
) -> None:
    defaults = Defaults(block)
    if is_right:
        endpoint = next((name for name in FORMATS if b'"%b"' % name.encode() in data), endpoint)
    verdict = checked(data, endpoint, defaults)
    if isinstance(verdict, LineError):
        told(verdict.code, verdict.message, verdict.param)
        again = checked(data, endpoint, defaults)
        assert isinstance(again, LineError)
        assert (again.code, again.param) == (verdict.code, verdict.param)
        return
    assert 1 <= len(verdict.custom_id) <= 512
    assert verdict.custom_id.isprintable()
    request = used(data, endpoint, defaults)
    if isinstance(request, BadBody):
        told(request.code, request.message, request.param)
    else:
        assert (request.endpoint, request.model) == (endpoint, verdict.model)
        assert request.prompts
        assert msgspec.json.decode(data, type=Line).custom_id == verdict.custom_id


def told(code: str, message: str, param: str | None) -> None:
    """An error names its code and says a sentence; where it names a field, it is text."""
    assert code in LINE_CODES, code
    assert message.endswith((".", "'")), message
    assert len(message) < 600
    assert "\n" not in message
    message.encode()
    assert param is None or param.encode() or param == ""
