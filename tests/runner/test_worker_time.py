"""Where a worker's wall time goes: shares of lines, idle, load and waste are all of it."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_worker import MakeWorkshop, StartWorker, finish, settled
from patience import wait_until
from sqlalchemy import func, select, update
from standstill import standstill
from workshop import Workshop, make_item, make_items

from runner.db.models import JobWaste, Usage, Worker, WorkerDay
from runner.domain.ids import new_uuid
from runner.services.job_accounts import Waste, job_waste
from runner.services.worker_time import (
    Wasted,
    WorkerAccount,
    WorkerTimes,
    keep_waste,
    worker_accounts,
)
from runner.services.workers import beat
from runner.worker.energy import PowerLog, RaplMeter, find_meter
from runner.worker.nvml import GpuMeter
from runner.worker.time_sheet import TimeSheet


def accounts(workshop: Workshop) -> list[WorkerAccount]:
    with workshop.sessions() as session:
        return worker_accounts(session)


_TURN_SECONDS = 0.1  # what is shorter is the ordinary taking of turns


def test_shares_idle_load_and_waste_are_the_wall_time(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=16&step_ms=30", shard_lines=8)
    bad = make_item("bad", max_tokens="many")
    job_id = workshop.make_job([*make_items(64), bad])
    other = workshop.make_job(make_items(2_000))
    with standstill(_TURN_SECONDS) as lost:
        live = start_worker(workshop)
        finish(workshop, job_id)
        wait_until(lambda: settled(workshop, other) > 0)
        workshop.cancel(other)
        finish(workshop, other)
        live.stop()
    (account,) = accounts(workshop)
    assert account.state == "ended"
    allowed_us = 0.01 * account.wall_us + lost.us
    assert abs(account.gap) * account.wall_us < allowed_us, account
    ledger = workshop.scalar(select(func.sum(Usage.device_us)))
    assert account.shared_us == ledger
    assert min(account.shared_us, account.idle_us, account.wasted_us) > 0
    row = workshop.worker(live.id)
    busy = row.busy_us - account.shared_us - account.wasted_us
    assert abs(busy) < allowed_us


def test_a_cancelled_line_s_device_time_is_the_waste_of_its_job(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=4&step_ms=50", shard_lines=4)
    job_id = workshop.make_job(make_items(60))
    live = start_worker(workshop)
    wait_until(lambda: settled(workshop, job_id) > 0)
    workshop.cancel(job_id)
    finish(workshop, job_id)
    live.stop()
    with workshop.sessions() as session:
        waste = job_waste(session, job_id)
    assert waste.attempts > 0
    assert 0 < waste.device_us == workshop.worker(live.id).wasted_us


def test_each_day_has_what_was_added_in_it(workshop: Workshop) -> None:
    worker_id = workshop.make_worker()
    with workshop.sessions.begin() as session:  # in which it is the same day throughout
        for _ in range(2):
            assert beat(session, worker_id, WorkerTimes(shared_us=10, idle_us=5), {})
        session.execute(update(WorkerDay).values(day=WorkerDay.day - 1))
        later = WorkerTimes(shared_us=17, idle_us=5, load_us=2, wasted_us=1)
        assert beat(session, worker_id, later, {})
    days = workshop.rows(
        select(
            WorkerDay.shared_us, WorkerDay.idle_us, WorkerDay.load_us, WorkerDay.wasted_us
        ).order_by(WorkerDay.day)
    )
    assert [tuple(row) for row in days] == [(10, 5, 0, 0), (7, 0, 2, 1)]


def test_what_a_dead_worker_did_after_its_last_heartbeat_is_waste(workshop: Workshop) -> None:
    worker_id = workshop.make_worker()
    with workshop.sessions.begin() as session:
        assert beat(session, worker_id, WorkerTimes(shared_us=1_000_000, idle_us=2_000_000), {})
    workshop.report_dead(1)
    ago = Worker.ended_at - func.make_interval(0, 0, 0, 0, 0, 0, 10)
    workshop.execute(update(Worker).values(started_at=ago))
    (account,) = accounts(workshop)
    assert account.wasted_us == 7_000_000
    assert account.gap == 0


def test_waste_is_the_sum_over_workers_and_may_be_told_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    first, second = workshop.make_worker(), workshop.make_worker(2)
    for worker_id, wasted in ((first, Wasted(1, 5)), (first, Wasted(3, 9)), (second, Wasted(1, 1))):
        with workshop.sessions.begin() as session:
            keep_waste(session, worker_id, {job_id: wasted})
    with workshop.sessions() as session:
        assert job_waste(session, job_id) == Waste(4, 10)
        assert job_waste(session, new_uuid()) == Waste(0, 0)
    assert workshop.scalar(select(func.count()).select_from(JobWaste)) == 2


def test_a_time_sheet_tells_waste_until_it_is_kept() -> None:
    sheet, job_id = TimeSheet(), new_uuid()
    sheet.add_waste(job_id, 1, 5)
    told = sheet.changed_waste()
    sheet.add_waste(job_id, 2, 7)
    sheet.note_kept(told)
    assert sheet.changed_waste() == {job_id: Wasted(3, 12)}
    sheet.note_kept(sheet.changed_waste())
    assert sheet.changed_waste() == {}
    assert sheet.read().wasted_us == 12


@pytest.fixture
def package(tmp_path: Path) -> Callable[[int], Path]:
    """Writes the counter of a processor package as Linux shows it."""

    def write(energy: int) -> Path:
        folder = tmp_path / "intel-rapl:0"
        folder.mkdir(exist_ok=True)
        (folder / "max_energy_range_uj").write_text("1000\n")
        (folder / "energy_uj").write_text(f"{energy}\n")
        (tmp_path / "intel-rapl:0:0").mkdir(exist_ok=True)  # a part of it, not to be added
        return tmp_path

    return write


def test_a_meter_adds_up_over_the_end_of_its_counter(package: Callable[[int], Path]) -> None:
    meter = RaplMeter.find(package(900))
    assert meter is not None
    package(950)
    assert meter.read() == 50
    package(20)
    assert meter.read() == 120


def test_without_a_meter_there_is_no_energy(tmp_path: Path) -> None:
    assert RaplMeter.find(tmp_path) is None
    log = PowerLog(None)
    log.sample()
    log.sample()
    assert log.share_of(1, 1) is None
    (tmp_path / "intel-rapl:0").mkdir()  # there, but it may not be read
    assert RaplMeter.find(tmp_path) is None


def test_a_line_gets_its_share_of_what_was_measured(package: Callable[[int], Path]) -> None:
    log = PowerLog(RaplMeter.find(package(0)))
    log.sample()
    assert log.share_of(100, 100) is None
    package(800)
    log.sample()
    whole = log._samples[1].at_us - log._samples[0].at_us  # noqa: SLF001
    assert log.share_of(whole, whole) == 800
    assert log.share_of(whole // 2, 10**9) == pytest.approx(400, abs=10)


class GpuDriver:
    """NVML's calls by C's own conventions, for one GPU with a counter."""

    def __init__(self) -> None:
        self.used_mj, self.is_lost = 7_000, False
        pointer, number = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_ulonglong)
        kinds = (ctypes.c_int, ctypes.c_char_p, pointer), (ctypes.c_int, ctypes.c_void_p, number)
        self.nvmlInit_v2 = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
        self.nvmlDeviceGetHandleByUUID = ctypes.CFUNCTYPE(*kinds[0])(self._open)
        self.nvmlDeviceGetTotalEnergyConsumption = ctypes.CFUNCTYPE(*kinds[1])(self._read)

    def _open(self, uuid: bytes, handle: Any) -> int:  # noqa: ANN401
        handle[0] = 2**40 + 1  # as wide as a pointer
        return 0 if uuid == b"GPU-1" else 6

    def _read(self, handle: int, found: Any) -> int:  # noqa: ANN401
        found[0] = self.used_mj
        return 0 if handle == 2**40 + 1 and not self.is_lost else 15


def test_a_gpu_tells_its_own_energy_until_it_is_lost() -> None:
    driver = GpuDriver()
    log = PowerLog()
    log.watch(GpuMeter(driver, "GPU-1"))
    log.sample()
    driver.used_mj += 2**33  # more than 32 bits hold
    log.sample()
    whole = log._samples[1].at_us - log._samples[0].at_us  # noqa: SLF001
    assert log.share_of(whole, whole) == 2**33 * 1000
    driver.is_lost = True
    log.sample()
    assert log.share_of(whole, whole) is None
    with pytest.raises(OSError, match="NVML gave error 6"):
        GpuMeter(driver, "GPU-2")


def test_a_gpu_without_a_counter_is_never_told_by_that_of_the_processors() -> None:
    assert find_meter("GPU-of-nobody") is None
