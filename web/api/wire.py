"""The words of OpenAI's wire contract: its objects and ids, made from our records and back.

Here, and in the routes beside it, a job is called a batch.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from runner.domain.errors import NotFound
from runner.domain.estimate import Estimate, Range
from runner.domain.ids import (
    FILE_PREFIX,
    JOB_PREFIX,
    SCHEDULE_PREFIX,
    FileId,
    JobId,
    decode,
    encode,
)
from runner.domain.intake import LineFault
from runner.domain.latency import Measure, Percentiles
from runner.domain.pricing import NANO
from runner.services.estimate_records import Actual, EstimateRecord
from runner.services.files import FileRecord
from runner.services.job_records import JobRecord
from runner.services.job_totals import Totals
from runner.services.models import ModelRecord
from web.api.batch_objects import BatchObject, BatchTimes
from web.api.estimate_objects import (
    ActualObject,
    AmountRange,
    BatchEstimate,
    EstimateObject,
    SecondsRange,
)
from web.api.file_objects import DeletedFile, FileObject
from web.api.objects import BatchError, BatchErrors, ModelObject, UsageObject
from web.api.report_objects import ExactCost, LatencyObject, PercentilesObject

OWNER = "tokenmill"
CURRENCY = "USD"


def read_file_id(text: str, param: str = "file_id") -> FileId:
    """The file that an outer id names; one that cannot be an id names nothing."""
    return FileId(read_id(FILE_PREFIX, text, "File object", param))


def read_batch_id(text: str, param: str = "batch_id") -> JobId:
    """The job that an outer id names; one that cannot be an id names nothing."""
    return JobId(read_id(JOB_PREFIX, text, "batch", param))


def read_id(prefix: str, text: str, what: str, param: str) -> UUID:
    """What an outer id names; one that cannot be an id names nothing."""
    value = decode(prefix, text)
    if value is None:
        raise NotFound(f"No such {what} in this project.", param=param)
    return value


def file_object(file: FileRecord) -> FileObject:
    """A file, as the contract shows it; ``expires_at`` is left out where it never expires."""
    shown: FileObject = {
        "id": encode(FILE_PREFIX, file.id),
        "object": "file",
        "bytes": file.bytes,
        "created_at": seconds(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
    if file.expires_at is not None:
        shown["expires_at"] = seconds(file.expires_at)
    if file.tags:
        shown["tags"] = list(file.tags)
    return shown


def deleted_file_object(file_id: FileId) -> DeletedFile:
    """The answer to a deletion."""
    return {"id": encode(FILE_PREFIX, file_id), "object": "file", "deleted": True}


def model_object(model: ModelRecord) -> ModelObject:
    """A model, as the contract shows it."""
    return {
        "id": model.name,
        "object": "model",
        "created": seconds(model.created_at),
        "owned_by": OWNER,
    }


def batch_object(job: JobRecord) -> BatchObject:
    """A job, as the contract shows it, then the fields that are ours alone."""
    return {
        "id": encode(JOB_PREFIX, job.id),
        "object": "batch",
        "endpoint": job.endpoint,
        "model": job.model,
        "errors": _errors(job),
        "input_file_id": encode(FILE_PREFIX, job.input_file_id),
        "completion_window": job.completion_window,
        "status": job.state,
        "output_file_id": _file_id(job.output_file_id),
        "error_file_id": _file_id(job.error_file_id),
        **_times(job),
        "request_counts": {
            "total": job.total,
            "completed": job.totals.succeeded,
            "failed": job.totals.failed,
        },
        "usage": usage_object(job.totals),
        "metadata": job.metadata,
        "parent_id": None if job.parent_id is None else encode(JOB_PREFIX, job.parent_id),
        "output_expires_after": None
        if job.output_expires_seconds is None
        else {"anchor": "created_at", "seconds": job.output_expires_seconds},
        "models": list(job.models),
        "lines_removed_at": seconds_or_none(job.lines_removed_at),
        "priority": job.priority,
        "tags": list(job.tags),
        "p99_ms": job.p99_bound_ms,
        "start_after": seconds_or_none(job.start_after),
        "run_hours": job.run_hours,
        "schedule_id": None
        if job.schedule_id is None
        else encode(SCHEDULE_PREFIX, job.schedule_id),
        "defaults": None if job.defaults is None else json.loads(job.defaults),
        "dedupe": job.dedupe,
        "max_cost": None if job.max_cost_nano is None else decimal_text(job.max_cost_nano),
        "on_budget": job.on_budget,
        "phase": job.phase,
        "phase_reason": job.phase_reason,
        "queue_position": job.queue_position,
        "estimate": None if job.estimate is None else batch_estimate(job.estimate),
        "cost": {
            "currency": CURRENCY,
            "billed": decimal_text(job.totals.billed_nano),
            "run": decimal_text(job.totals.run_cost_nano),
        },
    }


def estimate_object(told: Estimate) -> EstimateObject:
    """What lines are expected to take."""
    ends_at = None
    if told.made_at is not None and told.wait_us is not None:
        ends_at = seconds(told.made_at) + -(-told.wait_us.likely // 1_000_000)
    return {
        "lines": told.lines,
        "reused_lines": told.reused_lines,
        "input_tokens": told.input_tokens,
        "input_tokens_most": told.input_most,
        "is_exact": told.is_exact,
        "cached_tokens": told.cached_tokens,
        "longest_prompt": told.longest,
        "output_tokens": {
            "low": told.output.low,
            "likely": told.output.likely,
            "high": told.output.high,
        },
        "output_tokens_most": told.output_most,
        "basis": told.basis.value,
        "history_lines": told.history_lines,
        "currency": CURRENCY,
        "billed": _amounts(told.billed),
        "billed_most": decimal_text(told.billed_most),
        "run": None if told.run is None else _amounts(told.run),
        "device_seconds": _seconds_range(told.device_us),
        "seconds_to_end": _seconds_range(told.wait_us),
        "ends_at": ends_at,
        "made_at": seconds_or_none(told.made_at),
    }


def batch_estimate(record: EstimateRecord) -> BatchEstimate:
    """The estimates of a job, and what it took."""
    return {
        "given": estimate_object(record.given),
        "newest": None if record.newest is None else estimate_object(record.newest),
        "actual": None if record.actual is None else _actual(record.actual),
        "is_counted": record.is_counted,
        "too_long_lines": record.too_long,
        "refused_lines": record.refused,
    }


def _actual(actual: Actual) -> ActualObject:
    return {
        "lines": actual.lines,
        "reused_lines": actual.reused_lines,
        "input_tokens": actual.input_tokens,
        "cached_tokens": actual.cached_tokens,
        "output_tokens": actual.output_tokens,
        "billed": decimal_text(actual.billed_nano),
        "run": decimal_text(actual.run_cost_nano),
        "device_seconds": actual.device_us / 1e6,
        "run_seconds": None if actual.run_us is None else actual.run_us / 1e6,
    }


def _amounts(nano: Range) -> AmountRange:
    return {
        "low": decimal_text(nano.low),
        "likely": decimal_text(nano.likely),
        "high": decimal_text(nano.high),
    }


def _seconds_range(micros: Range | None) -> SecondsRange | None:
    if micros is None:
        return None
    return {"low": micros.low / 1e6, "likely": micros.likely / 1e6, "high": micros.high / 1e6}


def usage_object(totals: Totals) -> UsageObject:
    """Tokens, under the contract's names; ours are counted without reasoning tokens apart."""
    return {
        "input_tokens": totals.prompt_tokens,
        "input_tokens_details": {"cached_tokens": totals.cached_tokens},
        "output_tokens": totals.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": totals.prompt_tokens + totals.output_tokens,
    }


def decimal_text(nano: int) -> str:
    """An amount in nano-units as a decimal number of whole units, exact to the last digit."""
    whole, rest = divmod(abs(nano), NANO)
    return f"{'-' if nano < 0 else ''}{whole}.{rest:09d}"


def exact_cost(billed_nano: int, run_nano: int) -> ExactCost:
    """Both figures and the margin, as decimals and in nano-units."""
    return {
        "currency": CURRENCY,
        "billed": decimal_text(billed_nano),
        "billed_nano": billed_nano,
        "run": decimal_text(run_nano),
        "run_nano": run_nano,
        "margin": decimal_text(billed_nano - run_nano),
        "margin_nano": billed_nano - run_nano,
    }


def joules(microjoules: int, metered_lines: int) -> float | None:
    """Measured energy; None where no worker could measure any."""
    return microjoules / 1e6 if metered_lines else None


def latency_object(latencies: Mapping[Measure, Percentiles]) -> LatencyObject:
    """Percentiles in milliseconds."""
    return {
        "queue": _milliseconds(latencies[Measure.QUEUE]),
        "first_token": _milliseconds(latencies[Measure.FIRST_TOKEN]),
        "per_token": _milliseconds(latencies[Measure.PER_TOKEN]),
        "total": _milliseconds(latencies[Measure.TOTAL]),
    }


def _milliseconds(micros: Percentiles) -> PercentilesObject:
    return {
        "p50": _thousandth(micros.p50),
        "p90": _thousandth(micros.p90),
        "p99": _thousandth(micros.p99),
    }


def _thousandth(micros: int | None) -> float | None:
    return None if micros is None else micros / 1000


def _times(job: JobRecord) -> BatchTimes:
    return {
        "created_at": seconds(job.created_at),
        "in_progress_at": seconds_or_none(job.in_progress_at),
        "expires_at": seconds(job.expires_at),
        "finalizing_at": seconds_or_none(job.finalizing_at),
        "completed_at": seconds_or_none(job.completed_at),
        "failed_at": seconds_or_none(job.failed_at),
        "expired_at": seconds_or_none(job.expired_at),
        "cancelling_at": seconds_or_none(job.cancelling_at),
        "cancelled_at": seconds_or_none(job.cancelled_at),
    }


def _errors(job: JobRecord) -> BatchErrors | None:
    """The faults that are shown; when there are more, a last entry tells how many."""
    if not job.fault_count:
        return None
    faults = [*job.faults]
    hidden = job.fault_count - len(faults)
    if hidden > 0:
        faults.append(LineFault("more_errors", f"There are {hidden:,} more errors.", None, None))
    return {"object": "list", "data": [fault_object(fault) for fault in faults]}


def fault_object(fault: LineFault) -> BatchError:
    """One fault of a file."""
    return {
        "code": fault.code,
        "line": fault.line,
        "message": fault.message,
        "param": fault.param,
    }


def _file_id(file_id: FileId | None) -> str | None:
    return None if file_id is None else encode(FILE_PREFIX, file_id)


def seconds(moment: datetime) -> int:
    """A moment as the contract writes it: whole seconds since 1970."""
    return int(moment.timestamp())


def seconds_or_none(moment: datetime | None) -> int | None:
    """The same of a moment that may not have come."""
    return None if moment is None else seconds(moment)
