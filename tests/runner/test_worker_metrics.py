"""What an engine worker tells Prometheus, read as Prometheus reads it."""

import re
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from workshop import Workshop, make_item

from runner.config import Settings
from runner.services.worker_time import WorkerTimes
from runner.worker.metrics import WorkerMetrics

STATS = {
    "running": 3,
    "waiting": 4,
    "steps": 10,
    "kv_utilization": 0.25,
    "fragmentation": 0.125,
    "prefix_hit_tokens": 50,
    "prefix_query_tokens": 80,
    "preemptions": 2,
    "recomputed_tokens": 5,
    "copies": 2,
    "guessed_tokens": 40,
    "held_tokens": 30,
    "prompt_tokens": 100,
    "output_tokens": 200,
    "last_step_us": 1_500,
    "busy_us": 9,
    "host_us": 2_000_000,
}


def read(address: str) -> dict[str, float]:
    """Samples without labels but the model's and one more, by name and that one."""
    with urlopen(address) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "org/stub"
            found["/".join([sample.name, *labels.values()])] = sample.value
    return found


def test_the_engines_figures_have_vllms_names() -> None:
    times = WorkerTimes(busy_us=3_000_000, idle_us=1_000_000)
    metrics = WorkerMetrics("org/stub")
    with metrics.shown(lambda: STATS, lambda: times) as address:
        assert address.startswith("http://127.0.0.1:")
        found = read(address)
        again = read(address)
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 4,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prompt_tokens_total": 100,
        "vllm:generation_tokens_total": 200,
        "vllm:num_preemptions_total": 2,
        "vllm:prefix_cache_queries_total": 80,
        "vllm:prefix_cache_hits_total": 50,
        "tokenmill:batch_latency_seconds": 0.0015,
        "tokenmill:memory_fragmentation": 0.125,
        "tokenmill:copied_sequences_total": 2,
        "vllm:spec_decode_num_draft_tokens_total": 40,
        "vllm:spec_decode_num_accepted_tokens_total": 30,
        "tokenmill:engine_host_seconds_total": 2,
        "tokenmill:worker_seconds_total/busy": 3,
        "vllm:time_to_first_token_seconds_count": 0,
        "vllm:e2e_request_latency_seconds_count": 0,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["tokenmill:device_busy_ratio"] == 1
    assert again["tokenmill:device_busy_ratio"] == 0  # no step since the last reading


def test_the_page_on_troubles_asks_for_figures_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    asked = re.findall(r"\$METRICS \| grep (?:-E )?'?([\w|]+)", page)
    metrics = WorkerMetrics("org/stub")
    with metrics.shown(lambda: STATS, WorkerTimes) as address:
        names = read(address)
    assert asked
    for word in "|".join(asked).split("|"):
        assert any(word in name for name in names), word


def test_ended_lines_are_counted_with_their_latency(workshop: Workshop) -> None:
    workshop.make_job([make_item("a"), make_item("b", temperature=9), make_item("c")])
    (lease,) = workshop.claim(workshop.make_worker())
    metrics = WorkerMetrics("org/stub")
    metrics.observe(workshop.answer(lease))
    with metrics.shown(dict, WorkerTimes) as address:
        found = read(address)
    assert found["tokenmill:lines_total/succeeded"] == 2
    assert found["tokenmill:lines_total/failed"] == 1
    assert found["vllm:e2e_request_latency_seconds_count"] == 2
    assert "vllm:num_requests_running" not in found


def test_the_page_on_tuning_names_settings_and_figures_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    settings = set(re.findall(r"TOKENMILL_(\w+)", page))
    assert {name.lower() for name in settings} < Settings.model_fields.keys()
    metrics = WorkerMetrics("org/stub")
    with metrics.shown(lambda: STATS, WorkerTimes) as address:
        shown = {name.partition("/")[0] for name in read(address)}
    named = set(re.findall(r"`((?:vllm|tokenmill):\w+)`", page))
    assert len(named) > 10
    assert named <= shown
