"""Run the kernels' tests with kernels that check every address and every undefined operation.

By `make sanitize`, which preloads the sanitizer: Python itself is not built with it.
"""

import sys

import pytest

from engine.kernels import build

TESTS = (
    "tests/engine/test_fused.py",
    "tests/engine/test_cpu_attention.py",
    "tests/engine/test_quantised.py",
    "tests/engine/test_quantised_models.py",
)
CHECKS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def main() -> int:
    """Whether the tests passed."""
    build.OPTIONS = (*build.OPTIONS, *CHECKS)
    build.COMPILE_SECONDS *= 6  # every address checked is code of its own
    # And it runs ten times as long, a tile written out in C++ longer still.
    patient = ("-q", "-p", "no:randomly", "-o", "timeout=0")
    return pytest.main([*patient, *(sys.argv[1:] or TESTS)])


if __name__ == "__main__":
    sys.exit(main())
