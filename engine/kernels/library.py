"""The compiled library as Python sees it: structures, and functions with their signatures."""

import ctypes
import functools
import logging
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from engine.cache_folder import NoCacheFolder, cache_folder
from engine.kernels.build import (
    KernelsUnavailable,
    Level,
    build,
    find_compiler,
    usable_levels,
)

logger = logging.getLogger(__name__)

KIND = "kernels"
"""Of cached things."""
FLOAT32, BFLOAT16 = 0, 1
"""TmDtype of attention.h."""
POOL_PLAIN, POOL_INT8 = 0, 1
"""TmPool of attention.h."""
FORMAT_PLAIN, FORMAT_INT8, FORMAT_INT4, FORMAT_BF16 = 0, 1, 2, 3
"""TmFormat of product.h."""


class Batch(ctypes.Structure):
    """TmBatch of attention.h."""

    _fields_ = [
        ("num_seqs", c_int64),
        ("block_size", c_int64),
        ("table_stride", c_int64),
        ("query_lens", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
    ]


class AttentionShape(ctypes.Structure):
    """TmAttentionShape of attention.h."""

    _fields_ = [
        ("dtype", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("pool", c_int32),
    ]


class AttentionRows(ctypes.Structure):
    """TmAttentionRows of attention.h."""

    _fields_ = [
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("out", c_void_p),
        ("query_stride", c_int64),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("out_stride", c_int64),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("rotary_dim", c_int64),
    ]


class Matrix(ctypes.Structure):
    """TmMatrix of matrix.h."""

    _fields_ = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("format", c_int32),
    ]


class Layer(ctypes.Structure):
    """TmLayer of stack.h."""

    _fields_ = [
        ("input_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("attention", AttentionShape),
    ]


class Stack(ctypes.Structure):
    """TmStack of stack.h."""

    _fields_ = [
        ("dtype", c_int32),
        ("num_layers", c_int32),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("epsilon", c_float),
        ("rotary_dim", c_int32),
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("head", Matrix),
    ]


class Profile(ctypes.Structure):
    """TmProfile of stack.h."""

    _fields_ = [
        ("products", c_double),
        ("attention", c_double),
        ("small", c_double),
        ("head", c_double),
    ]


class Step(ctypes.Structure):
    """TmStep of stack.h."""

    _fields_ = [
        ("plan", c_void_p),
        ("num_tokens", c_int64),
        ("token_ids", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("pools", c_void_p),
        ("num_rows", c_int64),
        ("rows", c_void_p),
        ("num_logits", c_int64),
        ("logits", c_void_p),
        ("num_ids", c_int64),
        ("best", c_void_p),
        ("finite", c_void_p),
        ("hidden", c_void_p),
        ("workspace", c_void_p),
        ("profile", POINTER(Profile)),
        ("num_threads", c_int32),
    ]


class Kernels:
    """One loaded library.

    Attributes:
        level: its instruction set.
        functions: its C functions; the headers under `cpu/` describe them.
        name: of this library, which another compiler or other sources would change.
    """

    def __init__(self, path: Path, level: Level) -> None:
        self.level = level
        self.name = path.stem
        self.functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.functions, name)
            function.restype = result
            function.argtypes = arguments
        if self.functions.tm_start() != 0:
            raise OSError(f"Linux refuses this process the registers of {level.name}")


def load_kernels() -> Kernels:
    """The best kernels of this machine, compiled on first use.

    Raises:
        KernelsUnavailable: there are none; logged once as a warning.
    """
    found = _find_kernels()
    if isinstance(found, KernelsUnavailable):
        raise KernelsUnavailable(*found.args)
    return found


@functools.cache
def _find_kernels() -> Kernels | KernelsUnavailable:
    """A failure is kept too: trying again would cost a compilation for each model."""
    try:
        return _load_best()
    except KernelsUnavailable as error:
        logger.warning("The CPU engine runs without its C++ kernels: %s.", error)
        return error


def _load_best() -> Kernels:
    levels = usable_levels()
    if not levels:
        raise KernelsUnavailable("the processor is not an x86-64 with AVX2")
    find_compiler()
    try:
        folder = cache_folder(KIND)
    except NoCacheFolder as error:
        raise KernelsUnavailable(str(error)) from None
    failures: list[str] = []
    for level in levels:
        try:
            return load_level(level, folder)
        # An old compiler may not know the newest instructions, and still those of the next level.
        except KernelsUnavailable as error:
            failures.append(str(error))
    raise KernelsUnavailable(failures[-1])


def load_level(level: Level, folder: Path) -> Kernels:
    """The kernels of one level, compiled into `folder`.

    Raises:
        KernelsUnavailable: they can't be compiled or loaded.
    """
    try:
        return Kernels(build(level, folder), level)
    except (OSError, AttributeError) as error:
        raise KernelsUnavailable(f"the compiled library can't be loaded ({error})") from error


_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "tm_attention_block_bytes": (c_int64, [POINTER(AttentionShape), c_int64]),
    "tm_attention_plan": (c_void_p, [POINTER(Batch)]),
    "tm_attention_plan_free": (None, [c_void_p]),
    "tm_attention": (
        None,
        [c_void_p, POINTER(AttentionShape), POINTER(AttentionRows), c_void_p, c_int32],
    ),
    "tm_start": (c_int32, []),
    "tm_pack": (None, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int64, c_int64]),
    "tm_workspace_bytes": (c_int64, [POINTER(Stack), c_int64, c_int64, c_int32]),
    "tm_run_step": (None, [POINTER(Stack), POINTER(Step)]),
    "tm_product": (None, [c_void_p, c_int64, c_int32, POINTER(Matrix), c_void_p, c_int32]),
}
