"""Traps 1, 3 and 4: files."""

import hashlib
import tempfile
import tracemalloc

from runner.conformance.exam import Exam
from runner.conformance.requests import good_lines, wide_lines
from runner.conformance.verdicts import expect

_MOST_MEMORY = 8 * 1024**2  # bytes that reading a stream may hold here


def waiting_for_a_file_ends(exam: Exam) -> str:
    """``wait_for_processing`` polls for a status that must come: ``processed``."""
    file_id = exam.upload(good_lines(exam.model, 1))
    file = exam.client.files.wait_for_processing(file_id, poll_interval=0.2, max_wait_seconds=60)
    expect(file.status == "processed", "the status 'processed'", repr(file.status))
    return "processed"


def bytes_are_uploaded(exam: Exam) -> str:
    """A file without a name of its own is called ``upload`` by the client, with no extension."""
    content = good_lines(exam.model, 2)
    file = exam.client.files.create(file=content, purpose="batch")
    expect(file.bytes == len(content), f"{len(content)} bytes", file.bytes)
    back = exam.client.files.content(file.id).read()
    expect(back == content, "the same bytes back", f"{len(back)} other bytes")
    return f"{file.filename!r}, {file.bytes} bytes"


def content_streams(exam: Exam) -> str:
    """A large file comes whole, and piece by piece."""
    wanted, size = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as source:
        for line in wide_lines(exam.model, exam.target.content_bytes):
            source.write(line)
            wanted.update(line)
            size += len(line)
        source.seek(0)
        file = exam.client.files.create(file=source.file, purpose="batch")
    found, peak = _read(exam, file.id)
    exam.client.files.delete(file.id)
    expect(found == wanted.hexdigest(), f"{size} bytes unchanged", "other bytes")
    expect(peak < _MOST_MEMORY, f"at most {_MOST_MEMORY} bytes held here", f"{peak} bytes")
    return f"{size / 1024**2:.0f} MiB, {peak / 1024**2:.1f} MiB held here at most"


def _read(exam: Exam, file_id: str) -> tuple[str, int]:
    """The SHA-256 of a file's content, and the most bytes that this process held meanwhile."""
    digest = hashlib.sha256()
    tracemalloc.start()
    try:
        with exam.client.files.with_streaming_response.content(file_id) as answer:
            for piece in answer.iter_bytes(65_536):
                digest.update(piece)
        return digest.hexdigest(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
