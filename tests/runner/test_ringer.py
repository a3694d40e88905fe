"""Rings go out in order, and nobody waits long for a broker that takes none."""

import threading

import pytest
from patience import PATIENCE

from runner.domain.ids import new_uuid
from runner.domain.rings import Bell, Ring
from runner.ringer import Ringer

WAKE = Ring(Bell.WAKE)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rings waits for the delivery, even if the machine stands still meanwhile."""
    monkeypatch.setattr("runner.ringer._WAIT_SECONDS", PATIENCE)


@pytest.mark.usefixtures("patient")
def test_a_ring_has_been_sent_when_the_call_returns() -> None:
    sent: list[Ring] = []
    ringer = Ringer(sent.append)
    rings = [Ring(Bell.INGEST, new_uuid()) for _ in range(5)]
    for ring in rings:
        ringer.ring(ring)
        assert sent[-1] == ring
    ringer.close()
    assert sent == rings


def test_a_silent_broker_holds_nobody_and_what_waited_goes_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runner.ringer._WAIT_SECONDS", 0.1)
    release = threading.Event()
    sent: list[Ring] = []

    def send(ring: Ring) -> None:
        assert release.wait(PATIENCE)
        sent.append(ring)

    ringer = Ringer(send)
    first, second = Ring(Bell.INGEST, new_uuid()), Ring(Bell.FINALISE, new_uuid())
    # Each of these calls returns although none can be delivered.
    for ring in (first, second, WAKE, WAKE, second):
        ringer.ring(ring)
    assert sent == []
    release.set()
    last = Ring(Bell.CANCEL, new_uuid())
    ringer.ring(last)
    ringer.close()
    wait = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        if len(sent) == 4:
            break
        wait.wait(0.05)
    assert sent == [first, second, WAKE, last]


@pytest.mark.usefixtures("patient")
def test_a_ring_is_tried_twice_and_its_failure_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = iter((True, False, True, True))
    sent: list[Ring] = []

    def send(ring: Ring) -> None:
        if next(failures):
            raise ConnectionError("gone")
        sent.append(ring)

    ringer = Ringer(send)
    ringer.ring(WAKE)
    assert sent == [WAKE]
    assert "not delivered" not in caplog.text
    ringer.ring(Ring(Bell.CANCEL))
    assert sent == [WAKE]
    assert "not delivered" in caplog.text
