"""Compiling the C++ sources beside this file, once per machine, into a cache folder.

The compiler runs where the code runs, so a library holds exactly one instruction set: the best that
this processor and this compiler have. That keeps the sources free of dispatch; a cache folder that
several machines share holds one library for each set.
"""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from engine.cache_folder import written_aside

SOURCES = Path(__file__).parent / "cpu"
CPU_INFO = Path("/proc/cpuinfo")
COMPILERS = ("g++", "c++", "clang++")
OPTIONS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-fopenmp", "-Wall")
# Two libraries in one process (tests load several) must not share their inline functions.
LINKING = ("-fvisibility-inlines-hidden", "-fno-gnu-unique", "-Wl,-Bsymbolic")
COMPILE_SECONDS = 300
DIGEST_BYTES = hashlib.sha256().digest_size


class KernelsUnavailable(Exception):
    """There are no kernels on this machine; the message says why, for the engine's description."""


@dataclass(frozen=True, slots=True)
class Level:
    """One instruction set.

    Attributes:
        name: for people.
        cpu_flags: what the processor must have, as Linux spells it.
        options: what makes the compiler use it.
    """

    name: str
    cpu_flags: frozenset[str]
    options: tuple[str, ...]

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether products of bfloat16 are faster here than those of float32."""
        return "avx512_bf16" in self.cpu_flags


_AVX2 = Level("avx2", frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c"))
_AVX512 = Level(
    "avx512",
    _AVX2.cpu_flags | {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    (*_AVX2.options, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
)
# Whatever multiplies bfloat16 has vpdpbusd too.
_AVX512_BF16 = Level(
    "avx512_bf16",
    _AVX512.cpu_flags | {"avx512_bf16", "avx512_vnni"},
    (*_AVX512.options, "-mavx512bf16", "-mavx512vnni"),
)
_AMX = Level(
    "amx",
    _AVX512_BF16.cpu_flags | {"amx_tile", "amx_bf16", "amx_int8"},
    (*_AVX512_BF16.options, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
)
LEVELS = (_AMX, _AVX512_BF16, _AVX512, _AVX2)
"""Best first."""


def usable_levels() -> list[Level]:
    """The levels that this processor has, best first; none where it is not an x86-64 of Linux."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return [level for level in LEVELS if level.cpu_flags <= set(flags.split())]


def find_compiler() -> str:
    """Path of a C++ compiler.

    Raises:
        KernelsUnavailable: there is none.
    """
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise KernelsUnavailable("no C++ compiler found; install g++ for a much faster engine")


def build(level: Level, folder: Path, extra_options: tuple[str, ...] = ()) -> Path:
    """Path of the library of `level`, compiled into `folder` unless it lies there already.

    Two processes may build at once: each compiles aside and renames into place, and either result
    serves both.

    Raises:
        KernelsUnavailable: the compiler is missing or fails, or `folder` can't be written.
    """
    compiler = find_compiler()
    options = (*OPTIONS, *LINKING, *level.options, *extra_options)
    path = folder / f"{level.name}-{_key(compiler, options)}.so"
    if _is_whole(path):
        return path
    try:
        with written_aside(path) as made:
            _compile(compiler, options, made)
            _seal(made)
    except OSError as error:
        raise KernelsUnavailable(f"{folder} can't be written ({error.strerror})") from error
    return path


def _key(compiler: str, options: tuple[str, ...]) -> str:
    """What the library depends on: the sources, the compiler and its options."""
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False)
    parts = [compiler.encode(), version.stdout, *(option.encode() for option in options)]
    for source in sorted(SOURCES.iterdir()):
        parts += [source.name.encode(), source.read_bytes()]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


def _seal(path: Path) -> None:
    """Append the file's digest, which the loader of libraries ignores."""
    with path.open("r+b") as file:
        content = file.read()
        file.write(hashlib.sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())


def _is_whole(path: Path) -> bool:
    """Whether the file is as `_seal` left it: loading one that was cut short kills the process."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _compile(compiler: str, options: tuple[str, ...], out: Path) -> None:
    sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
    command = [compiler, *options, "-o", str(out), *sources]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise KernelsUnavailable(f"{compiler} took over {COMPILE_SECONDS} s") from None
    if done.returncode != 0:
        lines = (line for line in done.stderr.splitlines() if "error" in line)
        first = next(lines, done.stderr.strip()[-200:])
        raise KernelsUnavailable(f"{compiler} failed: {first}")
