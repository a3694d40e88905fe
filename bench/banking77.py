"""Customer messages sorted into 77 intents, with the form of the answer enforced and without.

``python bench/banking77.py --model FOLDER --messages MESSAGES.csv --categories CATEGORIES.json``
runs the first lines of the messages (columns ``text`` and ``category``) through the engine as a
worker would, and prints for each way how many answers are valid, how many are right, and lines per
second, as JSON. BANKING77 is by PolyAI (CC BY 4.0). Nothing else should run meanwhile.
"""

import argparse
import csv
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.config import load_settings
from runner.domain.ids import FileId, JobId, ModelId, PriceId, ProjectId, new_uuid
from runner.domain.leases import ItemInput, Lease, ShardKey
from runner.domain.pricing import Price
from runner.inference.backend import LineRefusal, Outcome
from runner.inference.local.backend import LocalBackend

CHAT = "/v1/chat/completions"
_MAX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """One pass. ``valid`` answers are an object that holds one of the intents, and no more."""

    lines: int
    refused: int
    valid: int
    right: int
    cut: int
    output_tokens: int
    seconds: float
    lines_per_second: float


def instruction(intents: list[str]) -> str:
    names = ", ".join(intents)
    return (
        "You sort messages of a bank's customers by intent. Answer with JSON and nothing else, "
        f'as in {{"intent": "card_arrival"}}. The intents are: {names}.'
    )


def body_of(text: str, intents: list[str], has_form: bool) -> dict[str, object]:
    body: dict[str, object] = {
        "model": "m",
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "messages": [
            {"role": "system", "content": instruction(intents)},
            {"role": "user", "content": text},
        ],
    }
    if has_form:
        schema = {
            "type": "object",
            "properties": {"intent": {"enum": intents}},
            "required": ["intent"],
            "additionalProperties": False,
        }
        named = {"name": "intent", "strict": True, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return body


def lease(count: int) -> Lease:
    return Lease(
        key=ShardKey(JobId(new_uuid()), 0, 1),
        attempt=1,
        suspect=False,
        priority=0,
        project_id=ProjectId(new_uuid()),
        api_key_id=None,
        model_id=ModelId(new_uuid()),
        price=Price(PriceId(new_uuid()), 0, 0, 0, 0),
        endpoint=CHAT,
        input_file_id=FileId(new_uuid()),
        idx=tuple(range(count)),
    )


def intent_of(answer: str) -> str | None:
    try:
        value = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(value, dict) or list(value) != ["intent"]:
        return None
    return str(value["intent"])


def run(backend: LocalBackend, rows: list[tuple[str, str]], intents: list[str], form: bool) -> Seen:
    """One pass over all rows, from the first line prepared to the last answer."""
    shard = lease(len(rows))
    started = time.perf_counter()
    for idx, (text, _) in enumerate(rows):
        line = {"custom_id": str(idx), "method": "POST", "url": CHAT}
        data = json.dumps({**line, "body": body_of(text, intents, form)}).encode()
        backend.submit(backend.prepare(shard, ItemInput(idx, str(idx), data)))
    outcomes: list[Outcome] = []
    while backend.unfinished:
        outcomes += backend.step()
    seconds = time.perf_counter() - started
    answers = {
        outcome.task.idx: outcome.answer[0]
        for outcome in outcomes
        if not isinstance(outcome.answer, LineRefusal)
    }
    said = {idx: intent_of(answer.text) for idx, answer in answers.items()}
    return Seen(
        lines=len(rows),
        refused=len(rows) - len(answers),
        valid=sum(intent in intents for intent in said.values()),
        right=sum(said.get(idx) == category for idx, (_, category) in enumerate(rows)),
        cut=sum(answer.finish_reason == "length" for answer in answers.values()),
        output_tokens=sum(outcome.metrics.output_tokens for outcome in outcomes),
        seconds=round(seconds, 1),
        lines_per_second=round(len(rows) / seconds, 2),
    )


def main() -> None:
    """Warm up, then both ways over the same lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--categories", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=200)
    options = parser.parse_args()
    intents = json.loads(options.categories.read_text())
    with options.messages.open(newline="") as stream:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(stream)][: options.lines]
    backend = LocalBackend(options.model, load_settings())
    # The instruction is in the prefix cache for both passes, and the schema is compiled.
    for has_form in (False, True):
        run(backend, rows[:1], intents, has_form)
    for name, has_form in (("with grammar", True), ("without grammar", False)):
        print(json.dumps({"pass": name, **asdict(run(backend, rows, intents, has_form))}))


if __name__ == "__main__":
    main()
