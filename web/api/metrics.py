"""``/metrics``: for a Prometheus on this host, or for one that has a key."""

from ipaddress import ip_address

from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST

from runner.domain.errors import NotFound, Unauthenticated
from web.auth import require_key
from web.request_scope import current_metrics

bp = Blueprint("metrics", __name__)

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")


@bp.get("/metrics")
def show_metrics() -> Response:
    """All figures; to others than this host and holders of a key there is no such page."""
    if not _is_local():
        try:
            require_key()
        except Unauthenticated:
            raise NotFound("There is no such page.") from None
    return Response(current_metrics().text(), content_type=CONTENT_TYPE_LATEST)


def _is_local() -> bool:
    """Whether the caller is on this host; behind a proxy nobody is."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    try:
        address = ip_address(request.remote_addr or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
