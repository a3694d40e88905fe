"""The instruction sets that tests of kernels run on."""

from engine.cache_folder import cache_folder
from engine.kernels import Kernels, load_kernels
from engine.kernels.build import Level, build, usable_levels
from engine.kernels.library import KIND

# Machines without AMX run its loops with the tile registers written out in C++.
EMULATED_AMX = Level("emulated_amx", frozenset(), ("-DTM_EMULATE_AMX",))


def levels_to_test() -> list[Level]:
    """Those of this machine, best first, and the emulated one."""
    usable = usable_levels()
    return [*usable, EMULATED_AMX] if usable else []


def kernels_of(level: Level) -> Kernels:
    """Kernels of a level; those that only tests need are compiled faster than they run."""
    usable = usable_levels()
    if level == usable[0]:
        return load_kernels()
    options = ("-O1",)
    if level is EMULATED_AMX:
        options += usable[0].options
    return Kernels(build(level, cache_folder(KIND), options), level)
