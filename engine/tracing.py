"""Names for stretches of a step, seen in a profile; without a profiler they cost nothing."""

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

PREFIX = "tokenmill."


def stretch(name: str) -> AbstractContextManager[object]:
    """Mark what runs inside as ``tokenmill.<name>`` in the trace that is being recorded, if any."""
    if profiler._is_profiler_enabled:
        return profiler.record_function(PREFIX + name)
    return nullcontext()
