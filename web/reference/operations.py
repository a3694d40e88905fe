"""Every route of the API: what it takes and what it answers. A new route is one more entry.

Words come from the docstrings of the views, types are those that parse and render.
"""

from dataclasses import dataclass
from typing import Any

from web.api import (
    batch_objects,
    budget_objects,
    estimate_objects,
    file_objects,
    objects,
    report_objects,
    schedule_objects,
    webhook_objects,
    worker_objects,
)
from web.api.batches import CreateBatch
from web.api.bodies import Body
from web.api.budgets import SetBudget
from web.api.estimates import EstimateFile
from web.api.file_tags import ChangeFile
from web.api.jobs import EditJob, ResumeJob
from web.api.retries import RetryJob
from web.api.schedules import ChangeSchedule, CreateSchedule
from web.api.uploads import CompleteUpload, CreateUpload
from web.api.webhooks import CreateWebhook
from web.reference.parameters import (
    AFTER,
    AFTER_INDEX,
    CONTENT_FORM,
    ESTIMATE_ENDPOINT,
    FILE_FORM,
    IDEMPOTENCY_KEY,
    ORDER,
    PURPOSE,
    RANGE,
    RETRY_COUNT,
    SPENDING,
    TAG,
    UP_TO_100,
    UP_TO_1000,
    UP_TO_10000,
)

Schema = dict[str, Any]

BYTES, LINES, FIGURES = "application/octet-stream", "application/x-ndjson", "text/plain"
DOCUMENT = "application/json"
TABLES = ("text/csv", "application/vnd.apache.parquet")
_SCHEDULE = "/api/schedules/<schedule_id>"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route with one method.

    Attributes:
        answer: what a 200 holds: a type of ``web.api.objects``, or a media type.
        body: what the request carries: a model, or the schema of a form.
        parameters: of the query and the headers; those of the path are known from the route.
        needs_body: whether the body must be there.
        statuses: beside those that all such routes have.
        also: media types that a 200 may hold instead.
    """

    answer: type | str
    body: type[Body] | Schema | None = None
    parameters: tuple[Schema, ...] = ()
    statuses: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    needs_body: bool = True


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/files"): Operation(
        file_objects.FileObject, FILE_FORM, (IDEMPOTENCY_KEY,), statuses=(413,)
    ),
    ("GET", "/v1/files"): Operation(
        file_objects.FileList, parameters=(PURPOSE, TAG, AFTER, UP_TO_10000, ORDER), statuses=(404,)
    ),
    ("GET", "/v1/files/<file_id>"): Operation(file_objects.FileObject),
    ("DELETE", "/v1/files/<file_id>"): Operation(file_objects.DeletedFile),
    ("GET", "/v1/files/<file_id>/content"): Operation(
        BYTES, parameters=(RANGE,), statuses=(206, 416)
    ),
    ("POST", "/v1/uploads"): Operation(file_objects.UploadObject, CreateUpload, statuses=(413,)),
    ("POST", "/v1/uploads/<upload_id>/parts"): Operation(
        file_objects.PartObject, CONTENT_FORM, statuses=(413,)
    ),
    ("POST", "/v1/uploads/<upload_id>/complete"): Operation(
        file_objects.UploadObject, CompleteUpload, (RETRY_COUNT,), statuses=(413,)
    ),
    ("POST", "/v1/uploads/<upload_id>/cancel"): Operation(file_objects.UploadObject),
    ("POST", "/v1/batches"): Operation(
        batch_objects.BatchObject, CreateBatch, (IDEMPOTENCY_KEY, RETRY_COUNT), statuses=(413,)
    ),
    ("GET", "/v1/batches"): Operation(
        batch_objects.BatchList, parameters=(AFTER, UP_TO_100), statuses=(404,)
    ),
    ("GET", "/v1/batches/<batch_id>"): Operation(batch_objects.BatchObject, statuses=(304,)),
    ("POST", "/v1/batches/<batch_id>/cancel"): Operation(
        batch_objects.BatchObject, parameters=(RETRY_COUNT,)
    ),
    ("GET", "/v1/models"): Operation(objects.ModelList),
    ("GET", "/v1/models/<path:name>"): Operation(objects.ModelObject),
    ("PATCH", "/api/jobs/<job_id>"): Operation(batch_objects.BatchObject, EditJob),
    ("GET", "/api/usage"): Operation(
        report_objects.SpendingObject, parameters=SPENDING, also=TABLES
    ),
    ("GET", "/api/jobs/<job_id>/usage"): Operation(
        report_objects.LineUsageList, parameters=(AFTER_INDEX, UP_TO_1000), statuses=(410,)
    ),
    ("POST", "/api/jobs/<job_id>/retry"): Operation(batch_objects.BatchObject, RetryJob),
    ("GET", "/api/jobs/<job_id>/merged/output"): Operation(LINES, statuses=(410,)),
    ("GET", "/api/jobs/<job_id>/merged/errors"): Operation(LINES, statuses=(410,)),
    ("GET", "/api/retention"): Operation(report_objects.RetentionObject),
    ("GET", "/api/jobs/<job_id>/report"): Operation(report_objects.ReportObject),
    ("GET", "/api/jobs/<job_id>/output"): Operation(LINES, statuses=(410,)),
    ("GET", "/api/jobs/<job_id>/errors"): Operation(LINES, statuses=(410,)),
    ("POST", "/api/jobs/<job_id>/pause"): Operation(batch_objects.BatchObject),
    ("POST", "/api/estimate"): Operation(
        estimate_objects.EstimateAnswer, EstimateFile, (ESTIMATE_ENDPOINT,), statuses=(404, 413)
    ),
    ("POST", "/api/jobs/<job_id>/resume"): Operation(
        batch_objects.BatchObject, ResumeJob, needs_body=False
    ),
    ("GET", "/api/budgets"): Operation(budget_objects.BudgetList),
    ("PUT", "/api/budgets"): Operation(
        budget_objects.BudgetObject, SetBudget, statuses=(403, 404, 413)
    ),
    ("DELETE", "/api/budgets/<budget_id>"): Operation(
        budget_objects.DeletedBudget, statuses=(403,)
    ),
    ("PATCH", "/api/files/<file_id>"): Operation(file_objects.FileObject, ChangeFile),
    ("POST", "/api/schedules"): Operation(schedule_objects.ScheduleObject, CreateSchedule),
    ("GET", "/api/schedules"): Operation(schedule_objects.ScheduleList),
    ("GET", _SCHEDULE): Operation(schedule_objects.ScheduleObject),
    ("PATCH", _SCHEDULE): Operation(schedule_objects.ScheduleObject, ChangeSchedule),
    ("DELETE", _SCHEDULE): Operation(schedule_objects.DeletedSchedule),
    ("POST", f"{_SCHEDULE}/pause"): Operation(schedule_objects.ScheduleObject),
    ("POST", f"{_SCHEDULE}/resume"): Operation(schedule_objects.ScheduleObject),
    ("POST", f"{_SCHEDULE}/run"): Operation(schedule_objects.RunObject),
    ("GET", f"{_SCHEDULE}/runs"): Operation(
        schedule_objects.RunList, parameters=(AFTER, UP_TO_100)
    ),
    ("POST", "/api/webhooks"): Operation(webhook_objects.WebhookObject, CreateWebhook),
    ("GET", "/api/webhooks"): Operation(webhook_objects.WebhookList),
    ("GET", "/api/webhooks/<webhook_id>"): Operation(webhook_objects.WebhookObject),
    ("DELETE", "/api/webhooks/<webhook_id>"): Operation(webhook_objects.DeletedWebhook),
    ("POST", "/api/webhooks/<webhook_id>/rotate"): Operation(webhook_objects.WebhookObject),
    ("POST", "/api/webhooks/<webhook_id>/resume"): Operation(webhook_objects.WebhookObject),
    ("POST", "/api/webhooks/<webhook_id>/test"): Operation(webhook_objects.DeliveryObject),
    ("GET", "/api/webhooks/<webhook_id>/deliveries"): Operation(
        webhook_objects.DeliveryList, parameters=(UP_TO_100,)
    ),
    ("POST", "/api/webhooks/<webhook_id>/deliveries/<delivery_id>/replay"): Operation(
        webhook_objects.DeliveryObject
    ),
    ("GET", "/api/workers"): Operation(worker_objects.WorkerList),
    ("POST", "/api/workers/<worker_id>/drain"): Operation(
        worker_objects.WorkerObject, statuses=(403,)
    ),
    ("POST", "/api/workers/<worker_id>/undrain"): Operation(
        worker_objects.WorkerObject, statuses=(403,)
    ),
    ("GET", "/livez"): Operation(objects.Health),
    ("GET", "/readyz"): Operation(objects.Health, statuses=(503,)),
    ("GET", "/metrics"): Operation(FIGURES, statuses=(404,)),
    ("GET", "/openapi.json"): Operation(DOCUMENT),
}
