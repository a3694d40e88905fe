"""From what the engine measured to what the ledger says."""

from dataclasses import dataclass
from typing import Any

from runner.domain.ids import WorkerId
from runner.domain.leases import FinishedItem
from runner.domain.pricing import Quantities, billed_nano, run_cost_nano

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
