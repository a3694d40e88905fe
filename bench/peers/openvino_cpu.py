"""OpenVINO GenAI, in an environment of its own; see ``turns`` for how it is driven.

MODEL is what ``optimum-cli export openvino --weight-format fp16`` made of the model's folder.
"""

import time

import numpy
import openvino
import openvino_genai
from turns import Rows, Run, take_turns


def load(model: str, dtype: str) -> Run:
    precision = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 4  # GB
    scheduler.max_num_seqs = 256
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True

    def run(rows: Rows) -> tuple[float, list[list[int]]]:
        # A prefix cache can't be emptied, so each run has a pipeline of its own.
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": precision}
        )
        started = time.perf_counter()
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
        return time.perf_counter() - started, ids

    return run


def _greedy(max_tokens: int) -> "openvino_genai.GenerationConfig":
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


if __name__ == "__main__":
    take_turns(load)
