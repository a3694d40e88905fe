"""Folders and buckets: reached below the allowed roots only, read whole, written whole."""

import base64
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from runner.domain.addresses import Address, parse_address
from runner.domain.errors import InvalidRequest, NotFound, TooLarge, Unavailable
from runner.services.stores import Stores

BIG = 1 << 40


def address(text: str) -> Address:
    return parse_address(text, "input_path")


def read(stores: Stores, text: str, max_bytes: int = BIG) -> bytes:
    return b"".join(stores.read(address(text), max_bytes))


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "house").mkdir()
    roots = (f"file://{tmp_path}/in", f"{tmp_path}/shared/{{project}}/", "s3://bucket/part")
    return Stores(roots, "house")


@pytest.mark.parametrize(
    "text",
    ["", "x", "http://host/a", "file://host/a", "file:///", "s3:///a", "s3://bucket", "s3://b/",
     "file:///a/../b", "file:///a//b", "file:///./a", "/a/..", "s3://b/%d/../x", "s3://b/a\0",
     "s3://b/a\nb", "s3://b/%Q", "s3://b/%", "s3://b/" + "x" * 1024, "file:///a/"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        address(text)
    assert refusal.value.param == "input_path"


def test_dates_in_names_are_those_of_the_zone() -> None:
    moment = datetime(2026, 12, 31, 18, 30, tzinfo=UTC)
    pattern = address("s3://b/%Y/%m-%d/%H%M.%j.100%%.jsonl")
    shown = pattern.at(moment, ZoneInfo("Asia/Kathmandu"))
    assert str(shown) == "s3://b/2027/01-01/0015.001.100%.jsonl"
    assert str(shown.beside(".errors.jsonl")) == "s3://b/2027/01-01/0015.001.100%.errors.jsonl"
    assert str(address("/srv/a.jsonl")) == "file:///srv/a.jsonl"


@pytest.mark.parametrize(
    "text",
    ["/etc/passwd", "{tmp}/inner/a", "{tmp}/in", "{tmp}/shared/other/a", "s3://bucket/other/a",
     "s3://bucket/party/a", "s3://elsewhere/part/a", "gs://bucket/part/a", "{tmp}/shared/a"],
)  # fmt: skip
def test_only_what_lies_below_a_root_is_reached(text: str, stores: Stores, tmp_path: Path) -> None:
    wanted = address(text.format(tmp=tmp_path))
    for act in (
        lambda: stores.check(wanted, "input_path"),
        lambda: list(stores.read(wanted, BIG)),
        lambda: stores.write(wanted, [b"x"]),
        lambda: stores.remove(wanted),
    ):
        with pytest.raises(InvalidRequest, match="TOKENMILL_PLACES") as refusal:
            act()
        assert refusal.value.code == "store_not_allowed"


def test_a_projects_name_never_widens_its_part(tmp_path: Path) -> None:
    for name in ("..", ".", "a/b", "%Y"):
        with pytest.raises(InvalidRequest):
            Stores((f"{tmp_path}/{{project}}",), name).check(address(f"{tmp_path}/x/y"), "p")


def test_a_link_does_not_lead_out_of_a_folder(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "in" / "folder").symlink_to(tmp_path)
    for text in (f"{tmp_path}/in/file", f"{tmp_path}/in/folder/secret"):
        with pytest.raises(NotFound, match="link"):
            read(stores, text)
        with pytest.raises(NotFound, match="link"):
            stores.write(address(text), [b"x"])
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_file_is_written_and_read_whole(stores: Stores, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000  # of more than one piece
    where = f"{tmp_path}/in/new folder/ä.jsonl"
    for content in (data, b"", b"x"):
        pieces = (content[n : n + 99_999] for n in range(0, len(content), 99_999))
        stores.write(address(where), pieces)
        assert read(stores, where) == content
    assert [path.name for path in (tmp_path / "in" / "new folder").iterdir()] == ["ä.jsonl"]
    stores.remove(address(where))
    stores.remove(address(where))
    with pytest.raises(NotFound, match="There is no file"):
        read(stores, where)


def test_what_fails_half_way_leaves_the_former_file(stores: Stores, tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x" * 9_000_000
        raise RuntimeError("the database is away")

    where = address(f"{tmp_path}/in/a.jsonl")
    stores.write(where, [b"former"])
    with pytest.raises(RuntimeError, match="away"):
        stores.write(where, pieces())
    assert read(stores, str(where)) == b"former"


def test_a_file_that_is_too_large_is_not_read(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").write_bytes(b"12345")
    assert read(stores, f"{tmp_path}/in/a", 5) == b"12345"
    with pytest.raises(TooLarge):
        read(stores, f"{tmp_path}/in/a", 4)


def test_a_file_that_changes_while_it_is_read_is_not_mixed(stores: Stores, tmp_path: Path) -> None:
    file = tmp_path / "in" / "a"
    file.write_bytes(b"a" * 5_000_000)
    pieces = stores.read(address(str(file)), BIG)
    next(pieces)
    file.write_bytes(b"b" * 5_000_001)
    with pytest.raises(Unavailable):
        list(pieces)


def test_a_folder_that_is_away_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as away:
        read(Stores((f"{tmp_path}/none",), "p"), f"{tmp_path}/none/a")
    assert "\n" not in away.value.message
    assert away.value.code == "store_unreachable"


class Bucket:
    """As much of S3 as one object at a time needs, over real HTTP."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}

    def __call__(self, environ: Any, start_response: Any) -> Any:  # noqa: ANN401
        request = Request(environ)
        return self._answer(request)(environ, start_response)

    def _answer(self, request: Request) -> Response:
        key = request.path
        if "uploads" in request.args:
            name = "InitiateMultipartUploadResult"
            body = f"<{name}><UploadId>1</UploadId></{name}>"
            return Response(body, mimetype="application/xml")
        if "delete" in request.args:
            names = re.findall("<Key>(.*?)</Key>", request.get_data(as_text=True))
            for name in names:
                self.objects.pop(f"{key}/{name}", None)
            told = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            return Response(f"<DeleteResult>{told}</DeleteResult>", mimetype="application/xml")
        if request.method == "POST":
            self.objects[key] = b"".join(self.parts[n] for n in sorted(self.parts))
            self.parts = {}
            body = "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
            return Response(body, mimetype="application/xml")
        if request.method == "PUT":
            data = request.get_data()
            if "partNumber" in request.args:
                self.parts[int(request.args["partNumber"])] = data
            else:
                self.objects[key] = data
            return Response(headers={"ETag": '"e"'})
        return self._content(request, key)

    def _content(self, request: Request, key: str) -> Response:
        if key not in self.objects:
            return Response(status=404)
        data = self.objects[key]
        tag = base64.b16encode(data[:8]).decode()
        headers = {"ETag": f'"{tag}"', "Last-Modified": "Mon, 30 Nov 2026 00:00:00 GMT"}
        response = Response(data, headers=headers)
        response.make_conditional(request, accept_ranges=True, complete_length=len(data))
        return response


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket that the environment leads to, as it would for any tool."""
    bucket = Bucket()
    server = make_server("127.0.0.1", 0, bucket, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield bucket
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_bucket_is_read_and_written_over_http(stores: Stores, bucket: Bucket) -> None:
    data = b"0123456789" * 900_000
    where = "s3://bucket/part/2026/a.jsonl"
    stores.write(address(where), [data])
    assert list(bucket.objects) == ["/bucket/part/2026/a.jsonl"]
    assert read(stores, where) == data
    stores.remove(address(where))
    assert bucket.objects == {}
    with pytest.raises(NotFound):
        read(stores, where)


def test_a_bucket_that_is_away_is_told(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(Unavailable, match="cannot be reached"):
        read(stores, "s3://bucket/part/a")
