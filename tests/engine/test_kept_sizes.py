"""Sizes of steps kept from one start to the next."""

import json
from pathlib import Path

import pytest
from tiny_models import EngineFactory

from engine import kept_sizes, step_size
from engine.config import EngineConfig
from engine.kept_sizes import KeptSizes, StepSizes
from engine.kernels.build import usable_levels

SIZES = StepSizes(rows=24, tokens=48, seconds=0.5)

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, where steps of any length are kept."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(kept_sizes, "cache_folder", lambda kind: folder)
    monkeypatch.setattr(kept_sizes, "LEAST_SECONDS", 0.0)
    return folder


def test_what_was_written_is_read_again(llama_folder: Path) -> None:
    config = EngineConfig(llama_folder, step_seconds=1.0)
    KeptSizes(config, 256, 512).write(SIZES)
    assert KeptSizes(config, 256, 512).read() == SIZES


def test_other_limits_and_other_folders_have_sizes_of_their_own(llama_folder: Path) -> None:
    config = EngineConfig(llama_folder, step_seconds=1.0)
    KeptSizes(config, 256, 512).write(SIZES)
    assert KeptSizes(config, 128, 512).read() is None
    assert KeptSizes(config, 256, 256).read() is None
    slower = EngineConfig(llama_folder, step_seconds=2.0)
    assert KeptSizes(slower, 256, 512).read() is None
    exact = EngineConfig(llama_folder, step_seconds=1.0, dtype="float32")
    assert KeptSizes(exact, 256, 512).read() is None


def test_a_file_that_is_no_more_what_it_was_is_not_believed(
    llama_folder: Path, cache: Path
) -> None:
    kept = KeptSizes(EngineConfig(llama_folder, step_seconds=1.0), 256, 512)
    kept.write(SIZES)
    (path,) = cache.iterdir()
    for content in ("", "[1]", '{"rows": 1}', path.read_text().replace("rows", "columns")):
        path.write_text(content)
        assert kept.read() is None


def test_quick_steps_are_not_worth_a_file(
    llama_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_sizes, "LEAST_SECONDS", 1.0)
    KeptSizes(EngineConfig(llama_folder, step_seconds=1.0), 256, 512).write(SIZES)
    assert list(cache.iterdir()) == []


def test_the_next_start_takes_the_sizes_without_finding_them(
    make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_size, "DRIFT", float("inf"))
    first = make_engine(step_seconds=5.0, max_num_seqs=40)

    def refuse(*_: object) -> tuple[int, float]:
        raise AssertionError("they were found again")

    monkeypatch.setattr(step_size, "best_size", refuse)
    assert make_engine(step_seconds=5.0, max_num_seqs=40).description == first.description


@pytest.mark.parametrize(
    ("took", "holds", "tried"),
    [
        ([1.1], True, 1),
        ([2.3, 5.0, 1.5], True, 3),  # cold, then beside other work
        ([2.3] * 9, False, step_size.TRIES),
        ([0.4, 1.0], False, 1),  # a faster machine is no accident
        ([2.3, 0.4, 1.0], False, 2),
    ],
)
def test_a_slow_step_alone_says_nothing_about_kept_sizes(
    took: list[float], holds: bool, tried: int
) -> None:
    left = iter(took)
    assert step_size.still_takes(lambda: next(left), 1.0) is holds
    assert len(list(left)) == len(took) - tried


@pytest.mark.parametrize("drift", [1000.0, 0.001])
def test_sizes_are_found_again_where_a_step_takes_another_time(
    make_engine: EngineFactory, cache: Path, drift: float
) -> None:
    make_engine(step_seconds=5.0, max_num_seqs=40)
    (path,) = cache.iterdir()
    told = json.loads(path.read_text())
    strange = {"rows": 3, "tokens": 7, "seconds": told["seconds"] * drift}
    path.write_text(json.dumps(told | strange))
    assert make_engine(step_seconds=5.0, max_num_seqs=40).max_num_seqs != 3
    assert json.loads(path.read_text())["tokens"] != 7
