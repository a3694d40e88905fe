"""Compiling and choosing the C++ kernels, and the threads they may use."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import engine.kernels.build as build_module
import engine.kernels.library as library
import engine.kernels.threads as threads
from engine import cache_folder as cache_folder_module
from engine.attention import open_attention
from engine.attention.backend import LayerShape
from engine.kernels.build import LEVELS, KernelsUnavailable, Level, build, usable_levels

CPU = torch.device("cpu")
SHAPES = [LayerShape(2, 16, 16)]
ONE_SOURCE = 'extern "C" int answer() { return ANSWER; }\n'


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of one line in place of the real ones, so that a build is quick."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.cpp").write_text(ONE_SOURCE)
    monkeypatch.setattr(build_module, "SOURCES", folder)
    return folder


@pytest.fixture
def fresh_load() -> Iterator[None]:
    """Forget what an earlier load found, before and after."""
    library._find_kernels.cache_clear()
    yield
    library._find_kernels.cache_clear()


def level(answer: int) -> Level:
    return Level("small", frozenset(), (f"-DANSWER={answer}",))


def test_a_library_is_compiled_once_and_again_when_its_source_changes(
    small_sources: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    first = build(level(1), cache)
    stamp = first.stat().st_mtime_ns
    assert build(level(1), cache) == first
    assert first.stat().st_mtime_ns == stamp
    assert build(level(2), cache) != first
    (small_sources / "one.cpp").write_text(ONE_SOURCE + "// changed\n")
    assert build(level(1), cache) != first
    assert {path.suffix for path in cache.iterdir()} == {".so"}


def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    (tmp_path / "one.cpp").write_text(ONE_SOURCE)
    code = (
        "import sys, pathlib, engine.kernels.build as b\n"
        "b.SOURCES = pathlib.Path(sys.argv[1])\n"
        "level = b.Level('small', frozenset(), ('-DANSWER=3',))\n"
        "import ctypes; sys.exit(ctypes.CDLL(b.build(level, b.SOURCES.parent / 'c')).answer() - 3)"
    )
    sources = tmp_path / "sources"
    sources.mkdir()
    (tmp_path / "one.cpp").rename(sources / "one.cpp")
    (tmp_path / "c").mkdir()
    both = [subprocess.Popen([sys.executable, "-c", code, str(sources)]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_a_compiler_error_is_told_in_one_line(small_sources: Path, tmp_path: Path) -> None:
    (small_sources / "one.cpp").write_text("#error no such machine\n")
    with pytest.raises(KernelsUnavailable, match="failed: .*no such machine"):
        build(level(1), tmp_path)


def test_a_folder_that_others_may_write_is_not_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shared = home / ".cache" / "tokenmill" / "kernels"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(cache_folder_module.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = cache_folder_module.cache_folder(library.KIND)
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("fresh_load")
def test_without_a_compiler_the_torch_path_serves_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not usable_levels():
        pytest.skip("this processor never has kernels")
    monkeypatch.setattr(build_module, "COMPILERS", ())
    with caplog.at_level(logging.WARNING):
        backend = open_attention(SHAPES, 8, CPU, torch.float32)
    assert backend.name.startswith("torch reference (no C++ compiler")
    assert "install g++" in caplog.text


@pytest.mark.usefixtures("fresh_load")
def test_a_compiler_that_lacks_the_newest_instructions_gives_the_next_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usable = usable_levels()
    if not usable:
        pytest.skip("this processor never has kernels")
    unknown = Level("newest", frozenset(), ("-mno-such-instruction",))
    monkeypatch.setattr(library, "usable_levels", lambda: [unknown, *usable])
    assert library.load_kernels().level == usable[0]


def test_a_library_cut_short_is_made_anew(tmp_path: Path) -> None:
    usable = usable_levels()
    if not usable:
        pytest.skip("this processor never has kernels")
    path = build(usable[0], cache_folder_module.cache_folder(library.KIND))
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes()[:1000])
    assert library.load_level(usable[0], tmp_path).level == usable[0]
    assert copy.stat().st_size == path.stat().st_size


def test_each_level_asks_for_all_that_the_lower_ones_ask_for() -> None:
    flags = [level.cpu_flags for level in LEVELS]
    assert all(low < high for high, low in zip(flags, flags[1:], strict=False))


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("?", 8)]
)
def test_threads_stay_within_the_container_s_quota(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    monkeypatch.setattr(threads, "CGROUP_QUOTA", file)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads.usable_threads() == expected
