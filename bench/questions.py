"""A workload of real text: ``python bench/questions.py --model FOLDER --data FOLDER OUT``.

The questions of GSM8K (MIT, OpenAI) in the model's chat template, each with as many tokens out as
its own greedy answer has, so that no engine goes on behind the end, where a model repeats itself.
`compare.py` takes the file as a workload.
"""

import argparse
import json
from pathlib import Path

from quality import Work, answer

from engine.tokenizer import Tokenizer
from runner.config import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--data", type=Path, required=True, help="where gsm8k-questions.jsonl is")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    work = Work(asked.model, asked.data, Settings())
    prompts = work.prompts(Tokenizer(asked.model))
    lengths = [len(token_ids) for token_ids in answer(work).token_ids]
    rows = [
        {"prompt": prompt, "max_tokens": length}
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
