"""``/api/workers``: the engine workers of the installation, and draining them."""

from flask import Blueprint
from flask.typing import ResponseReturnValue

from runner.domain.ids import WORKER_PREFIX
from runner.services import drains
from runner.services.operators import require_operator
from web.api.wire import read_id
from web.api.worker_objects import WorkerList, worker_object
from web.auth import current_caller
from web.request_scope import current_session

bp = Blueprint("workers", __name__)


@bp.get("/workers")
def list_workers() -> ResponseReturnValue:
    """The engine workers that live, whichever project their lines are of."""
    found = drains.list_workers(current_session())
    answer: WorkerList = {"object": "list", "data": [worker_object(worker) for worker in found]}
    return answer


@bp.post("/workers/<worker_id>/drain")
def drain_worker(worker_id: str) -> ResponseReturnValue:
    """Have a worker finish what it has begun and lease nothing more; it lives on.

    It takes an operator's key.
    """
    session, caller = current_session(), current_caller()
    wanted = read_id(WORKER_PREFIX, worker_id, "worker", "worker_id")
    require_operator(session, caller)
    drains.drain_worker(session, wanted, caller)
    return worker_object(drains.get_worker(session, wanted))


@bp.post("/workers/<worker_id>/undrain")
def undrain_worker(worker_id: str) -> ResponseReturnValue:
    """Let a drained worker lease again. It takes an operator's key."""
    session, caller = current_session(), current_caller()
    wanted = read_id(WORKER_PREFIX, worker_id, "worker", "worker_id")
    require_operator(session, caller)
    drains.undrain_worker(session, wanted, caller)
    return worker_object(drains.get_worker(session, wanted))
