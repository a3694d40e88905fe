"""The Celery application: how doorbells travel. It carries ids only and no state.

Rings for CPU workers go through a queue; rings for engine workers are a fan-out, so that each of
them hears a cancel. All of them may be lost: the reconciler and the workers' own polling make up.
"""

from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

from runner.domain.rings import Bell, Ring

CPU_QUEUE = "cpu"
ENGINE_QUEUE = "engine"
_EXPIRES_SECONDS = 60
_HOUSE_SECONDS = 3_600.0


def create_celery(broker_url: str, tick_seconds: float = 5.0) -> Celery:
    """The application with every setting that correctness rests on (asserted in a test)."""
    app = Celery("tokenmill", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_acks_late=False,
        task_ignore_result=True,
        result_backend=None,
        task_queues=(
            # The nameless exchange routes by queue name, so no binding can be flushed away.
            Queue(CPU_QUEUE, Exchange(""), CPU_QUEUE),
            Broadcast(ENGINE_QUEUE),
        ),
        task_default_queue=CPU_QUEUE,
        task_create_missing_queues=False,
        worker_disable_prefetch=True,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": "tokenmill:",
            # A consumer of a silent broker connects anew within about twice this.
            "health_check_interval": 10,
            "socket_keepalive": True,
            "socket_connect_timeout": 1,
            # Of publishing only; kombu would otherwise try again for six seconds, whatever
            # ``retry`` says. Consumers reconnect by the settings above.
            "max_retries": 0,
            "socket_timeout": 5,
        },
        beat_schedule={
            "tick": {
                "task": "tokenmill.tick",
                "schedule": tick_seconds,
                "options": {"queue": CPU_QUEUE, "expires": tick_seconds},
            },
            "keep_house": {
                "task": "tokenmill.keep_house",
                "schedule": _HOUSE_SECONDS,
                "options": {"queue": CPU_QUEUE, "expires": _HOUSE_SECONDS},
            },
        },
    )
    return app


def send_ring(app: Celery, ring: Ring) -> None:
    """Publish one ring, giving up quickly: whoever rings must not wait for a broker."""
    to_engines = ring.bell in (Bell.WAKE, Bell.CANCEL, Bell.PROFILE)
    queue = ENGINE_QUEUE if to_engines else CPU_QUEUE
    # Celery declares no fan-out where it publishes, and kombu takes an exchange that is not
    # declared for a direct one: the ring would be put into lists that nobody reads.
    declare = [app.amqp.queues[queue].exchange] if to_engines else None
    app.send_task(
        f"tokenmill.{ring.bell}",
        args=[] if ring.job_id is None else [str(ring.job_id)],
        queue=queue,
        declare=declare,
        expires=_EXPIRES_SECONDS,
        ignore_result=True,
        retry=False,
    )
