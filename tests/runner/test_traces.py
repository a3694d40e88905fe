"""The summary of a trace, on traces small enough to add up by hand."""

import gzip
import json

import pytest

from runner.domain.errors import InvalidRequest
from runner.domain.traces import (
    ATTENTION,
    FUSED,
    HOST,
    MATRIX,
    OTHER,
    SAMPLING,
    Operation,
    summarise,
)

Event = dict[str, object]


def event(cat: str, name: str, ts: float, dur: float, **more: object) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, **more}


def packed(events: list[Event]) -> bytes:
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def op(name: str, ts: float, dur: float, **more: object) -> Event:
    return event("cpu_op", name, ts, dur, **more)


def stretch(name: str, ts: float, dur: float) -> Event:
    return event("user_annotation", f"tokenmill.{name}", ts, dur)


# 1,000 us: 300 of attention (50 of them Python), 200 of products, 100 of sampling, 60 of others.
STEP = [
    stretch("step", 0, 1000),
    stretch("run 7 tokens 3 rows", 100, 800),
    op("aten::linear", 110, 200),
    op("aten::addmm", 120, 150),
    stretch("attention", 400, 300),
    op("aten::bmm", 410, 200),
    op("aten::copy_", 610, 50),
    op("aten::add", 700, 60),
    stretch("sampling", 780, 110),
    op("aten::argmax", 785, 100),
]


def test_each_part_of_a_step_gets_its_own_time() -> None:
    later = [{**one, "ts": one["ts"] + 5000} for one in STEP]  # type: ignore[operator]
    alien = [
        op("aten::mm", 2000, 900),  # between the steps
        event("cpu_op", "aten::mm", 100, 900, tid=2),  # of another thread
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "f", "id": 1, "pid": 0, "tid": "stream 7", "ts": 1},
    ]
    summary = summarise(packed([*later, *alien, *STEP]))
    assert (summary.steps, summary.step_ms_mean, summary.step_ms_p50) == (2, 1.0, 1.0)
    assert (summary.tokens_per_step, summary.rows_per_step) == (7, 3)
    assert summary.shares == pytest.approx(
        {FUSED: 0, ATTENTION: 0.25, MATRIX: 0.2, SAMPLING: 0.1, OTHER: 0.06, HOST: 0.39}
    )
    assert sum(summary.shares.values()) == pytest.approx(1)
    assert summary.operations[0] == Operation("aten::bmm", 2, 0.4)
    assert Operation("aten::linear", 2, 0.1) in summary.operations
    assert summary.device_shares == {}


def test_the_time_of_a_device_goes_to_what_launched_it() -> None:
    launches = [
        event("cuda_runtime", "cudaLaunchKernel", 130, 5, args={"correlation": 11}),
        event("cuda_runtime", "cudaLaunchKernel", 420, 5, args={"correlation": 12}),
    ]
    kernels = [
        event("kernel", "gemm", 140, 400, tid=7, args={"correlation": 11, "device": 0}),
        event("kernel", "paged", 560, 300, tid=7, args={"correlation": 12}),
        event("gpu_memcpy", "Memcpy", 900, 50, tid=7, args={"correlation": 99}),
    ]
    summary = summarise(packed([*STEP, *launches, *kernels]))
    assert summary.device_shares == {ATTENTION: 0.3, MATRIX: 0.4, OTHER: 0.05}
    assert summary.kernels[0] == Operation("gemm", 1, 0.4)


def test_most_steps_are_within_the_percentile() -> None:
    steps = [stretch("step", 10_000 * n, 100 * (n + 1)) for n in range(20)]
    summary = summarise(packed(steps))
    assert (summary.step_ms_p50, summary.step_ms_p95) == (1.0, 1.9)
    assert summary.shares[HOST] == 1


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b"{]"), packed([op("aten::mm", 0, 1)])],
    ids=["no gzip", "no JSON", "no step"],
)
def test_what_is_no_trace_of_steps_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="trace"):
        summarise(data)


def test_attention_that_is_not_ours_to_mark_is_known_by_its_operation() -> None:
    fused = op("aten::_scaled_dot_product_flash_attention_for_cpu", 100, 400)
    inner = op("aten::bmm", 200, 100)
    summary = summarise(packed([stretch("step", 0, 1000), fused, inner]))
    assert summary.shares == pytest.approx(
        {FUSED: 0, ATTENTION: 0.4, MATRIX: 0, SAMPLING: 0, OTHER: 0, HOST: 0.6}
    )


def test_layers_that_are_one_call_are_told_as_such() -> None:
    summary = summarise(packed([stretch("step", 0, 1000), stretch("fused layers", 100, 700)]))
    assert (summary.shares[FUSED], summary.shares[HOST]) == (0.7, pytest.approx(0.3))
    assert summary.operations[0].name == "tokenmill.fused layers"
