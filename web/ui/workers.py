"""The page of workers: who computes which model now, and how fast."""

import zlib

from flask import Blueprint, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from runner.domain.errors import NotFound
from runner.domain.ids import WORKER_PREFIX, WorkerId, decode, encode
from runner.services import drains
from runner.services.operators import is_operator, require_operator
from web.request_scope import current_session
from web.ui.guard import current_caller, require_session, require_token
from web.ui.live import next_poll

bp = Blueprint("workers", __name__)
bp.before_request(require_session)


@bp.app_template_filter("worker_id")
def outer_id(worker_id: WorkerId) -> str:
    """The id of a worker as in a form's address."""
    return encode(WORKER_PREFIX, worker_id)


@bp.get("/workers")
def show_workers() -> ResponseReturnValue:
    """The engine workers that live."""
    return render_template("workers.html", **_shown())


@bp.get("/workers/live")
def show_list() -> ResponseReturnValue:
    """The list alone, for the page that shows it already."""
    return render_template("worker_list.html", **_shown())


@bp.post("/workers/<worker_id>/drain")
def drain_worker(worker_id: str) -> ResponseReturnValue:
    """Have a worker lease nothing more, and show them all."""
    require_token()
    session, caller, wanted = current_session(), current_caller(), _read(worker_id)
    require_operator(session, caller)
    drains.drain_worker(session, wanted, caller)
    return redirect(url_for("ui.workers.show_workers"), 303)


@bp.post("/workers/<worker_id>/undrain")
def undrain_worker(worker_id: str) -> ResponseReturnValue:
    """Let a drained worker lease again, and show them all."""
    require_token()
    session, caller, wanted = current_session(), current_caller(), _read(worker_id)
    require_operator(session, caller)
    drains.undrain_worker(session, wanted, caller)
    return redirect(url_for("ui.workers.show_workers"), 303)


def _shown() -> dict[str, object]:
    session = current_session()
    found = drains.list_workers(session)
    now = f"{zlib.crc32(repr(found).encode()):x}"
    return {
        "workers": found,
        "may_drain": is_operator(session, current_caller()),
        "poll": next_poll(now),
    }


def _read(worker_id: str) -> WorkerId:
    value = decode(WORKER_PREFIX, worker_id)
    if value is None:
        raise NotFound("There is no such worker.", param="worker_id")
    return WorkerId(value)
