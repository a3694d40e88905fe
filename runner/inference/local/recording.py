"""Recording what torch does in the step loop's thread, as a Chrome trace."""

import gzip
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from runner.inference.backend import CannotProfile


class TorchRecording:
    """One recording: begun and ended by the thread that steps, written out by any other.

    Neither shapes nor stacks are recorded, so the trace holds names of operations and times, and
    nothing of what the model reads or writes.
    """

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        try:
            self._profile.start()
        except RuntimeError as error:  # another profiler has the device
            raise CannotProfile(f"torch does not profile here: {error}") from error

    def end(self) -> None:
        """Record no more."""
        self._profile.stop()

    def trace(self) -> bytes:
        """The trace as JSON, compressed by gzip. Takes a while: not for the step loop."""
        with tempfile.TemporaryDirectory(prefix="tokenmill-profile-") as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
