"""Nobody is made to post to places that only we can reach."""

import socket
from collections.abc import Iterator

import pytest
from receiver import Receiver, receiving

from runner import outbound
from runner.domain.errors import InvalidRequest
from runner.outbound import check_url, post, resolve

HEADERS = {"content-type": "application/json"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "https://example.org:22/",
        "https://user:pw@example.org/",
        "https://example.org/#part",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "ftp://example.org/",
        "https:///nowhere",
        "https://example.org:port/",
        "https://exa mple.org/",
        "https://example.org/\n",
        "https://[::1",
        "https://example.org/" + "x" * 2000,
        "",
    ],
)
def test_an_address_that_could_never_do_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_url(url, ())
    assert caught.value.param == "url"


@pytest.mark.parametrize("url", ["https://example.org/a?b=c", "https://example.org:8443/"])
def test_a_public_https_address_will_do(url: str) -> None:
    check_url(url, ())


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0"])
def test_other_ways_to_write_this_host_are_found_out(host: str) -> None:
    with pytest.raises(OSError, match=r"not a public one|not known|No address"):
        resolve(host, 443, is_trusted=False)


def test_a_name_with_one_private_address_among_others_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [("93.184.215.14", 443), ("192.168.0.1", 443)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", answer) for answer in answers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
    with pytest.raises(OSError, match="not a public one"):
        resolve("mixed.example", 443, is_trusted=False)


def test_the_name_is_resolved_once_and_that_address_is_spoken_to(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    """A name that turns private after the check finds that there is no second look."""
    answers = ["93.184.215.14", "127.0.0.1"]
    asked: list[str] = []

    def flip(host: str, *_args: object, **_more: object) -> list[object]:
        if host[0].isdigit():  # the socket asks for the address that was chosen
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 8443))]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), 8443))]

    reached: list[object] = []

    def connect(address: tuple[str, int], *_args: object, **_more: object) -> None:
        reached.append(address[0])
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(socket, "getaddrinfo", flip)
    monkeypatch.setattr(socket, "create_connection", connect)
    answer = post("https://flip.example:8443/", HEADERS, b"{}", ())
    assert answer.status is None
    assert asked == ["flip.example"]
    assert reached == ["93.184.215.14"]
    assert receiver.received == []


def test_a_trusted_host_may_be_private_and_plain(receiver: Receiver) -> None:
    answer = post(receiver.url, HEADERS, b"{}", (receiver.host,))
    assert (answer.status, answer.fault) == (200, None)
    assert receiver.received[0].body == b"{}"


def test_without_trust_a_private_host_hears_nothing(receiver: Receiver) -> None:
    answer = post(receiver.url, HEADERS, b"{}", ())
    assert answer.status is None
    assert receiver.received == []


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.statuses = [302]
    receiver.answer_headers = {"location": receiver.url + "/elsewhere"}
    answer = post(receiver.url, HEADERS, b"{}", (receiver.host,))
    assert (answer.status, answer.fault) == (302, "The answer was 302.")
    assert len(receiver.received) == 1


def test_a_long_answer_is_not_read_to_its_end(receiver: Receiver) -> None:
    receiver.answer_bytes = b"x" * (8 << 20)
    answer = post(receiver.url, HEADERS, b"{}", (receiver.host,))
    assert answer.is_good


def test_nobody_there_is_told_in_words(receiver: Receiver) -> None:
    free = receiver.url.replace(receiver.url.split(":")[2], "1/")
    answer = post(free, HEADERS, b"{}", (receiver.host,))
    assert answer.status is None
    assert answer.fault is not None
    assert answer.fault.startswith("No answer: ")


def test_a_silent_receiver_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        answer = post(url, HEADERS, b"{}", ("127.0.0.1",))
    assert (answer.status, answer.fault) == (None, "The answer took too long.")
