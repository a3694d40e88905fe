"""Posting to addresses that strangers chose, without becoming their tool.

A name is resolved once, every address that it has must be public, and the connection goes to
exactly that address: checking first and resolving again would let a name change in between.
Redirects are not followed, proxies of the environment not used, answers read to a small end.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import httpcore2

from runner.domain.errors import InvalidRequest

PORTS = (443, 8443)
MAX_URL = 2000
_SECONDS = 5.0  # for each of connecting, sending and waiting
_WHOLE_SECONDS = 10.0
_ANSWER_BYTES = 64 * 1024
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # gateways make IPv4 of its last 32 bits


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request: a status, or why there is none."""

    status: int | None
    fault: str | None
    duration_ms: int

    @property
    def is_good(self) -> bool:
        return self.fault is None


class _Refused(OSError):
    """The address must not be spoken to."""


def check_url(url: str, trusted_hosts: Collection[str]) -> None:
    """Refuse what could never be posted to; names are resolved only when a message is sent.

    Raises:
        InvalidRequest: the sentence says what is wrong.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, _port(parts)
    except ValueError as error:
        raise InvalidRequest(f"The url cannot be read: {error}.", param="url") from None
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest(f"A url has up to {MAX_URL} printable characters.", param="url")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest("A url begins with https:// and a host.", param="url")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidRequest("A url has no user, password or fragment here.", param="url")
    if host in trusted_hosts:
        return
    if parts.scheme != "https" or port not in PORTS:
        raise InvalidRequest(
            "A url is https, on port 443 or 8443. (The operator may name other hosts in "
            "TOKENMILL_PLACES, as http://HOST.)",
            param="url",
        )
    literal = _as_address(host)
    if literal is not None and not literal.is_global:
        raise InvalidRequest("The url's address is not a public one.", param="url")


def post(url: str, headers: dict[str, str], body: bytes, trusted_hosts: Collection[str]) -> Answer:
    """Send once. Any fault of the other side or of the way there is in the answer."""
    started = time.monotonic()
    try:
        check_url(url, trusted_hosts)
        status = _send(url, headers, body, frozenset(trusted_hosts))
        fault = None if 200 <= status < 300 else f"The answer was {status}."
    except InvalidRequest as error:
        status, fault = None, error.message
    except (httpcore2.TimeoutException, TimeoutError):
        status, fault = None, "The answer took too long."
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
        status, fault = None, _clean(error)
    return Answer(status, fault, round((time.monotonic() - started) * 1000))


def _send(url: str, headers: dict[str, str], body: bytes, trusted: frozenset[str]) -> int:
    deadline = time.monotonic() + _WHOLE_SECONDS
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), _SECONDS)
    with httpcore2.ConnectionPool(
        ssl_context=ssl.create_default_context(), network_backend=_PublicNetwork(trusted)
    ) as pool:
        request = pool.stream(
            "POST",
            url,
            headers=list(headers.items()),
            content=body,
            extensions={"timeout": timeouts},
        )
        with request as response:
            received = 0
            for piece in response.iter_stream():
                received += len(piece)
                if received > _ANSWER_BYTES or time.monotonic() > deadline:
                    break
            return int(response.status)


class _PublicNetwork(httpcore2.NetworkBackend):
    """Connects to public addresses, and to trusted hosts wherever they are."""

    def __init__(self, trusted: frozenset[str]) -> None:
        self._trusted = trusted
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: "Iterable[httpcore2.SOCKET_OPTION] | None" = None,
    ) -> httpcore2.NetworkStream:
        address = resolve(host, port, host in self._trusted)
        return self._sockets.connect_tcp(address, port, timeout, local_address, socket_options)


def resolve(host: str, port: int, is_trusted: bool) -> str:
    """The address to connect to.

    Raises:
        OSError: there is none, or one of them is not public.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    for text in () if is_trusted else addresses:
        address = _as_address(text)
        if address is None or not address.is_global or address.is_multicast:
            raise _Refused("The host's address is not a public one.")
    return addresses[0]


def _as_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A literal address; one of IPv4 inside one of IPv6 is taken as the former."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _clean(error: Exception) -> str:
    """A sentence of a fault, without line breaks and not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"No answer: {text[:200]}."
