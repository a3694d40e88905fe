"""OpenVINO GenAI: ``python openvino.py MODEL WORKLOAD OUT``, in an environment of its own.

MODEL is what ``optimum-cli export openvino --weight-format fp16`` made of the model's folder.
"""

import json
import sys
import time
from pathlib import Path

# The script's own folder comes first in the path and would hide the package of the same name.
sys.path.pop(0)

import numpy  # noqa: E402
import openvino  # noqa: E402
import openvino_genai  # noqa: E402


def main(model: str, workload: str, out: str) -> None:
    rows = [json.loads(line) for line in Path(workload).read_text().splitlines()]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 4  # GB
    scheduler.max_num_seqs = 256
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    started = time.perf_counter()
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        model, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}
    )
    loaded = time.perf_counter()
    handles = [
        pipeline.add_request(
            number,
            openvino.Tensor(numpy.array([row["prompt"]], dtype=numpy.int64)),
            _greedy(row["max_tokens"]),
        )
        for number, row in enumerate(rows)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    ids = [list(handle.read_all()[0].generated_ids) for handle in handles]
    seconds = time.perf_counter() - loaded
    Path(out).write_text(json.dumps(ids))
    print("RESULT", json.dumps({"seconds": seconds, "load_seconds": loaded - started}))


def _greedy(max_tokens: int) -> "openvino_genai.GenerationConfig":
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


if __name__ == "__main__":
    main(*sys.argv[1:4])
