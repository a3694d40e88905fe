"""Compile the Triton kernels for Hopper (sm_90) without a GPU, and print what each one takes.

``python scripts/compile_kernels.py`` covers head sizes 64, 96, 128 and 256 with 1 to 8 query heads
to a kv head, in bfloat16 and float32; ``--quick`` a few of them. Exit status 1 means that some
kernel needs more shared memory than a multiprocessor has, spills registers, or, in bfloat16,
does not use the matrix unit.
"""

import argparse
import itertools
import sys
from dataclasses import dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.attention.backend import LayerShape
from engine.attention.triton import choose_launch, kernel_constants
from engine.kernels.paged_attention import paged_attention

TARGET = GPUTarget("cuda", 90, 32)
MAX_SHARED_BYTES = 227 * 1024
HEAD_SIZES = (64, 96, 128, 256)
QUICK = {(64, 3), (96, 1), (128, 4), (128, 7), (256, 8)}


@dataclass(frozen=True)
class Case:
    """One specialisation of the kernel."""

    head_size: int
    group: int
    is_single: bool
    dtype: str
    splits: int

    def __str__(self) -> str:
        form = "decode" if self.is_single else "prefill"
        return (
            f"{form:7} {self.dtype} head {self.head_size:3} group {self.group} splits {self.splits}"
        )


def cases(quick: bool) -> list[Case]:
    if quick:
        return [
            Case(size, group, is_single, "bf16", 4 if is_single else 1)
            for size, group in sorted(QUICK)
            for is_single in (True, False)
        ]
    return [
        Case(size, group, is_single, dtype, splits)
        for size, group, is_single, dtype in itertools.product(
            HEAD_SIZES, range(1, 9), (True, False), ("bf16", "fp32")
        )
        for splits in ((1, 4) if is_single else (1,))
    ]


def compile_case(case: Case) -> tuple[int, int, int]:
    """Shared memory in bytes, spill instructions, and matrix instructions of the kernel."""
    shape = LayerShape(num_kv_heads=8, key_dim=case.head_size, value_dim=case.head_size)
    itemsize = 2 if case.dtype == "bf16" else 4
    launch = choose_launch(shape, case.group, itemsize, case.is_single)
    constants = kernel_constants(shape, case.group, launch, case.splits)
    constants |= {
        "BLOCK_SIZE": 32,
        "HAS_SOFTCAP": False,
        "HAS_WINDOW": False,
        "HAS_SINKS": False,
        "PRECISION": "ieee" if case.dtype == "fp32" else "tf32",
    }
    names = paged_attention.arg_names
    signature = {name: _type_of(name, constants, case) for name in names}
    aligned = [
        i
        for i, name in enumerate(names)
        if name not in constants and name.endswith(("_ptr", "_stride_token", "_stride_head"))
    ]
    compiled = triton.compile(
        ASTSource(
            paged_attention,
            signature,
            {(names.index(name),): value for name, value in constants.items()},
            {(i,): [["tt.divisibility", 16]] for i in aligned},
        ),
        target=TARGET,
        options={
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "enable_fp_fusion": True,
        },
    )
    ptx = compiled.asm["ptx"]
    assert compiled.asm["cubin"]
    products = ptx.count("wgmma.mma_async") + ptx.count("mma.sync")
    return compiled.metadata.shared, ptx.count(".local"), products


def _type_of(name: str, constants: dict[str, object], case: Case) -> str:
    if name in constants:
        return "constexpr"
    if name == "lse_ptr" or (name == "out_ptr" and case.splits > 1):
        return "*fp32"
    if name in ("out_ptr", "query_ptr", "keys_ptr", "values_ptr", "sinks_ptr"):
        return f"*{case.dtype}"
    if name in ("scale", "softcap"):
        return "fp32"
    return "*i32" if name.endswith("_ptr") else "i32"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    bad = 0
    for case in cases(parser.parse_args().quick):
        shared, spills, products = compile_case(case)
        fits = shared <= MAX_SHARED_BYTES and not spills and (products or case.dtype == "fp32")
        bad += not fits
        print(
            f"{case}: {shared:6,} bytes shared, {spills} spills, {products:3} matrix products"
            + ("" if fits else "  <- does not fit")
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
