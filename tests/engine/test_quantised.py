"""Weights of 8 and 4 bits: the kernels against whole numbers in torch, on every instruction set."""

import ctypes

import pytest
import torch
from kernel_levels import kernels_of, levels_to_test

from engine.kernels import Kernels
from engine.kernels.build import usable_levels
from engine.kernels.library import BFLOAT16, FLOAT32, FORMAT_INT4, FORMAT_INT8, Matrix
from engine.models.low_bits import (
    GROUP,
    PackedPanels,
    pack_int4,
    pack_int8,
    round_to_int4,
    round_to_int8,
)

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")

COUNTS = (1, 2, 3, 4, 5, 6, 7, 31, 33, 65, 130, 300)
SHAPES = [(160, 64), (528, 96), (35, 32), (48, 1088)]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=levels_to_test(), ids=lambda level: level.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(request.param)


def multiply(
    kernels: Kernels, rows: torch.Tensor, packed: PackedPanels, matrix: Matrix
) -> torch.Tensor:
    """[rows, outputs] by the kernel, with a guard row behind the last."""
    matrix.panels = packed.data.data_ptr()
    matrix.scales, matrix.offsets = packed.scales.data_ptr(), packed.offsets.data_ptr()
    count = len(rows)
    # Tiles are read whole: what lies behind the rows must not reach them.
    padded = torch.full((-(-count // 32) * 32, rows.shape[1]), float("nan"), dtype=rows.dtype)
    padded[:count] = rows
    out = torch.full((count + 1, matrix.outputs), 7.0)
    code = BFLOAT16 if rows.dtype is torch.bfloat16 else FLOAT32
    kernels.functions.tm_product(
        padded.data_ptr(), count, code, ctypes.byref(matrix), out.data_ptr(), 2
    )
    assert bool((out[count] == 7.0).all()), "it wrote behind its last row"
    return out[:count]


def round_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [rows, inputs] and float32 [rows, 1], as the kernel rounds its rows."""
    highest = rows.float().abs().amax(1, keepdim=True)
    # Torch makes a number over a tensor a product by the inverse, which rounds twice.
    inverse = torch.where(highest == 0, 0.0, torch.full_like(highest, 127) / highest)
    return (rows.float() * inverse).round().long(), highest / 127.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_of_int8_are_exact_sums_of_whole_numbers(
    kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    weight[3] = 0
    bias = torch.randn(outputs, generator=generator)
    packed = pack_int8(weight)
    codes, scales = round_to_int8(weight)
    matrix = Matrix(None, bias.data_ptr(), outputs, inputs, format=FORMAT_INT8)
    for count in COUNTS:
        rows = torch.randn(count, inputs, generator=generator).mul_(3).to(dtype)
        rows[count // 2, inputs // 3] = 40.0
        rows[count - 1] = 0 if count > 1 else 1
        whole, row_scales = round_rows(rows)
        sums = (whole @ codes.long().T).float()
        assert torch.equal(
            multiply(kernels, rows, packed, matrix), sums * row_scales * scales + bias
        )


def test_the_largest_products_of_int8_do_not_overflow_or_saturate(kernels: Kernels) -> None:
    inputs = 4096
    weight = torch.full((16, inputs), 1.0)
    weight[1::2] = -1.0
    rows = torch.full((6, inputs), -2.0)
    matrix = Matrix(None, None, 16, inputs, format=FORMAT_INT8)
    for count in (1, 6):
        out = multiply(kernels, rows[:count], pack_int8(weight), matrix)
        torch.testing.assert_close(out, rows[:count] @ weight.T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 17, 95])
def test_what_is_not_finite_spoils_its_own_row_only(
    kernels: Kernels, bad: float, place: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = pack_int8(torch.randn(32, 96, generator=generator))
    matrix = Matrix(None, None, 32, 96, format=FORMAT_INT8)
    rows = torch.randn(9, 96, generator=generator)
    expected = multiply(kernels, rows, packed, matrix)
    rows[4, place] = bad
    out = multiply(kernels, rows, packed, matrix)
    assert bool(out[4].isnan().all())
    expected[4] = out[4]
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_of_int4_equal_those_of_the_unpacked_weights(
    kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    weight[2, :GROUP] = 0.5
    bias = torch.randn(outputs, generator=generator)
    codes, steps, least = round_to_int4(weight)
    grouped = codes.view(outputs, -1, GROUP).float()
    unpacked = grouped * steps.float()[..., None] + least.float()[..., None]
    unpacked = unpacked.flatten(1).to(dtype)
    matrix = Matrix(None, bias.data_ptr(), outputs, inputs, format=FORMAT_INT4)
    for count in COUNTS:
        rows = torch.randn(count, inputs, generator=generator).to(dtype)
        expected = rows.double() @ unpacked.double().T + bias
        out = multiply(kernels, rows, pack_int4(weight), matrix).double()
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=2e-4)


def test_rounding_moves_no_weight_by_more_than_half_a_step() -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(2))
    codes, scales = round_to_int8(weight)
    assert bool(((codes * scales[:, None] - weight).abs() <= 0.5001 * scales[:, None]).all())
    codes, steps, least = round_to_int4(weight)
    grouped = codes.view(48, -1, GROUP) * steps.float()[..., None] + least.float()[..., None]
    # The step and the least value are rounded to bfloat16 themselves.
    limit = 0.5 * steps.float() + least.float().abs() / 128
    assert bool(((grouped - weight.view(48, -1, GROUP)).abs() <= limit[..., None]).all())
