"""Trap 17: Bespoke Curator, played by the calls that it makes."""

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from runner.conformance.exam import GOOD_LINES, Exam
from runner.conformance.requests import ENDPOINT, good_lines
from runner.conformance.runs import ENDED
from runner.conformance.verdicts import Fault, expect

_POLL_SECONDS, _PATIENCE = 0.2, 300.0


def curator_reaches_its_end(exam: Exam) -> str:
    """Upload, wait, create, poll, read every answer, and tidy up, all through coroutines."""
    answers, tokens = asyncio.run(_play(exam))
    expect(answers == GOOD_LINES, f"{GOOD_LINES} answers", answers)
    return f"{answers} answers, {tokens} tokens, files deleted"


async def _play(exam: Exam) -> tuple[int, int]:
    async with exam.target.async_client() as client:
        content = good_lines(exam.model, GOOD_LINES)
        file = await client.files.create(file=content, purpose="batch")
        file = await client.files.wait_for_processing(file.id, poll_interval=0.2)
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=ENDPOINT,
            completion_window="24h",
            metadata={"request_file": f"requests_{exam.target.nonce}.jsonl"},
        )
        async with asyncio.timeout(_PATIENCE):
            batch = await _follow(client, batch)
        if batch.output_file_id is None:
            raise Fault("an output file", batch.status)
        text = (await client.files.content(batch.output_file_id)).text
        usage = [_usage(json.loads(line)) for line in text.splitlines()]
        for file_id in (batch.input_file_id, batch.output_file_id):
            gone = await client.files.delete(file_id)
            expect(gone.deleted, f"{file_id} deleted", gone)
        return len(usage), sum(usage)


async def _follow(client: AsyncOpenAI, batch: Batch) -> Batch:
    while batch.status not in ENDED:
        await asyncio.sleep(_POLL_SECONDS)
        batch = await client.batches.retrieve(batch.id)
        counts = batch.request_counts
        if counts is None:
            raise Fault("request_counts", None)
        # Curator raises where one of the three is null, or the object cannot be dumped.
        numbers = (counts.total, counts.completed, counts.failed)
        expect(all(isinstance(number, int) for number in numbers), "integers", numbers)
        batch.model_dump()
    return batch


def _usage(line: dict[str, Any]) -> int:
    """The tokens of an answer; its text must be there."""
    response = line["response"]
    expect(response["status_code"] == 200, "status_code 200 in the output file", response)
    content = response["body"]["choices"][0]["message"]["content"]
    expect(isinstance(content, str), "a message's content", content)
    return int(response["body"]["usage"]["total_tokens"])
