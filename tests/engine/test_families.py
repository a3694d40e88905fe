"""Each family: the lane that docs/models.md promises, and the tokens of `generate`, exactly."""

import re
from pathlib import Path

import pytest
from families import FAMILIES, Family
from test_exactness import reference_outputs, run_all, tiny_prompts
from tiny_models import EngineFactory, FamilyFactory

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
PROMPTS = 4
TOKENS = 5


def promised_lanes() -> dict[tuple[str, str], str]:
    """The lane of each row of the document, by title and model type."""
    rows = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| ([^|]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {(title, model_type): lane for title, model_type, lane in rows}


def test_document_and_checks_name_the_same_families_and_lanes() -> None:
    assert promised_lanes() == {(f.title, f.model_type): f.lane for f in FAMILIES}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title)
def test_family_runs_in_its_lane_and_equals_generate(
    make_engine: EngineFactory, make_family: FamilyFactory, family: Family
) -> None:
    folder = make_family(family.model_type, {"num_hidden_layers": 2, **family.settings})
    prompts = tiny_prompts(PROMPTS)
    expected = reference_outputs(folder, prompts, TOKENS)
    cut_and_preempted = make_engine(folder, long_prefill_tokens=5, preempt_every=3)
    outputs = run_all(cut_and_preempted, prompts, TOKENS)
    assert [output.token_ids for output in outputs] == expected
    assert cut_and_preempted.stats().preemptions > 0
    narrow = make_engine(folder, max_num_batched_tokens=3, enable_prefix_caching=False)
    assert [output.token_ids for output in run_all(narrow, prompts, TOKENS)] == expected
    assert lane_of(narrow.description) == family.lane


def lane_of(description: str) -> str:
    if "lane: paged" in description:
        return "paged"
    alone = "lane: padded, one sequence at a time" in description
    return "padded, one at a time" if alone else "padded, batched"
