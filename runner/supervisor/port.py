"""Ports of the web page: which one is free."""

import socket

from runner.supervisor.errors import SupervisorError


def usable_port(host: str, port: int) -> int:
    """The port itself where it is free, any free one for 0; an error that names a way out."""
    try:
        return _bind(host, port)
    except OSError as error:
        raise SupervisorError(
            f"Port {port} on {host} can't be used: {error.strerror}. "
            "Choose another with --port, or --port 0 for any.",
            code="port_in_use",
        ) from error


def _bind(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])
