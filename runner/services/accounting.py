"""From what the engine measured to what the ledger says."""

from dataclasses import dataclass
from typing import Any

from runner.db.models import Job, Shard, Usage
from runner.domain.ids import WorkerId
from runner.domain.leases import FinishedItem
from runner.domain.pricing import Price, Quantities, billed_nano, run_cost_nano

USAGE_COLUMNS = (
    "job_id",
    "idx",
    "project_id",
    "api_key_id",
    "model_id",
    "price_id",
    "worker_id",
    "attempt",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "queue_us",
    "prefill_us",
    "first_token_us",
    "decode_us",
    "total_us",
    "device_us",
    "preemptions",
    "recomputed_tokens",
    "truncated_tokens",
    "billed_nano",
    "run_cost_nano",
    "energy_uj",
)
RESULT_COLUMNS = ("job_id", "idx", "failed", "epoch", "line")
REUSED_COLUMNS = (*USAGE_COLUMNS, "reused", "saved_nano")


@dataclass(frozen=True, slots=True)
class Charge:
    """What one item costs, in nano-units: by the price list, and by its share of the device."""

    billed_nano: int
    run_cost_nano: int


def charge_of(item: FinishedItem) -> Charge:
    """The two figures of a finished item; each is rounded here, once."""
    metrics, price = item.metrics, item.lease.price
    used = Quantities(
        prompt_tokens=metrics.prompt_tokens,
        cached_tokens=metrics.cached_tokens,
        output_tokens=metrics.output_tokens,
        device_us=metrics.device_us,
    )
    return Charge(billed_nano(price, used), run_cost_nano(price, used))


def usage_row(item: FinishedItem, charge: Charge, worker_id: WorkerId) -> tuple[Any, ...]:
    """The ledger row of one accepted item, in the order of ``USAGE_COLUMNS``."""
    lease, metrics = item.lease, item.metrics
    return (
        lease.key.job_id,
        item.idx,
        lease.project_id,
        lease.api_key_id,
        lease.model_id,
        lease.price.id,
        worker_id,
        lease.attempt,
        metrics.prompt_tokens,
        metrics.cached_tokens,
        metrics.output_tokens,
        metrics.queue_us,
        metrics.prefill_us,
        metrics.first_token_us,
        metrics.decode_us,
        metrics.total_us,
        metrics.device_us,
        metrics.preemptions,
        metrics.recomputed_tokens,
        metrics.truncated_tokens,
        charge.billed_nano,
        charge.run_cost_nano,
        metrics.energy_uj,
    )


def reused_row(job: Job, shard: Shard, idx: int, used: Usage, price: Price) -> tuple[Any, ...]:
    """The ledger row of a line that takes another's answer, in the order of ``REUSED_COLUMNS``.

    ``used`` is the other's row. Nothing was computed, so every quantity is 0; the worker is the one
    that computed the answer. Saved is what the tokens would have been billed now, less the price.
    """
    tokens = Quantities(used.prompt_tokens, used.cached_tokens, used.output_tokens)
    worth = used.saved_nano + used.billed_nano if used.reused else billed_nano(price, tokens)
    values = {
        "job_id": job.id,
        "idx": idx,
        "project_id": job.project_id,
        "api_key_id": job.api_key_id,
        "model_id": shard.model_id,
        "price_id": shard.price_id,
        "worker_id": used.worker_id,
        "energy_uj": None,
        "billed_nano": price.reused_nano,
        "reused": True,
        "saved_nano": max(0, worth - price.reused_nano),
    }
    return tuple(values.get(name, 0) for name in REUSED_COLUMNS)
