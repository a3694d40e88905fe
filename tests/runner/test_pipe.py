"""Rings through a pipe, among whatever else is written into it."""

import os
from uuid import UUID

from runner.domain.rings import Bell, Ring
from runner.offline.pipe import PipeBell, hear

JOB = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def test_rings_are_heard_among_what_a_library_prints_and_what_a_kill_broke_off() -> None:
    reading, writing = os.pipe()
    heard: list[Ring] = []
    with os.fdopen(writing, "wb") as stream:
        bell = PipeBell(stream)
        bell.send(Ring(Bell.WAKE))
        stream.write(b"Loading weights: 100%\n\xff\n")
        bell.send(Ring(Bell.CANCEL, JOB))
        stream.write(Bell.WAKE.encode()[:-1])
    with os.fdopen(reading, "rb") as stream:
        hear(stream, heard.append)
    assert heard == [Ring(Bell.WAKE), Ring(Bell.CANCEL, JOB)]
