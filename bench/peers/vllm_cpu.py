"""vLLM on the CPU: ``python vllm_cpu.py MODEL WORKLOAD OUT``, in an environment of its own."""

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams


def main(model: str, workload: str, out: str) -> None:
    rows = [json.loads(line) for line in Path(workload).read_text().splitlines()]
    started = time.perf_counter()
    llm = LLM(
        model, dtype="bfloat16", max_model_len=4096, max_num_seqs=256, enable_prefix_caching=True
    )
    warm_up = SamplingParams(temperature=0, max_tokens=4)
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], warm_up, use_tqdm=False)
    loaded = time.perf_counter()
    outputs = llm.generate(
        [{"prompt_token_ids": row["prompt"]} for row in rows],
        [
            SamplingParams(temperature=0, max_tokens=row["max_tokens"], ignore_eos=True)
            for row in rows
        ],
        use_tqdm=False,
    )
    seconds = time.perf_counter() - loaded
    ids = [list(output.outputs[0].token_ids) for output in outputs]
    Path(out).write_text(json.dumps(ids))
    print("RESULT", json.dumps({"seconds": seconds, "load_seconds": loaded - started}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
