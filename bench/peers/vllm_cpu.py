"""vLLM on the CPU, in an environment of its own; see ``turns`` for how it is driven."""

import time

from turns import Rows, Run, take_turns
from vllm import LLM, SamplingParams


def load(model: str, dtype: str) -> Run:
    llm = LLM(model, dtype=dtype, max_model_len=4096, max_num_seqs=256, enable_prefix_caching=True)
    warm_up = SamplingParams(temperature=0, max_tokens=4)
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], warm_up, use_tqdm=False)

    def run(rows: Rows) -> tuple[float, list[list[int]]]:
        assert llm.reset_prefix_cache()
        started = time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": row["prompt"]} for row in rows],
            [
                SamplingParams(temperature=0, max_tokens=row["max_tokens"], ignore_eos=True)
                for row in rows
            ],
            use_tqdm=False,
        )
        seconds = time.perf_counter() - started
        return seconds, [list(output.outputs[0].token_ids) for output in outputs]

    return run


if __name__ == "__main__":
    take_turns(load)
