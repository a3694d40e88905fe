"""An examination under way: the client, and the runs that several traps look at."""

from functools import cached_property

from openai import OpenAI
from openai.types import Batch

from runner.conformance.requests import ENDPOINT, bad_lines, good_lines, long_lines, refused_lines
from runner.conformance.runs import Run, follow
from runner.conformance.target import Target
from runner.conformance.verdicts import Fault

GOOD_LINES, REFUSED_LINES, LONG_LINES = 12, 3, 3_000
OUTPUT_SECONDS = 7_200


class Exam:
    """Runs are made when the first trap asks for them, and once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.client: OpenAI = target.client()
        self.runs: list[Run] = []

    @cached_property
    def model(self) -> str:
        """The model that all lines ask for."""
        if self.target.model is not None:
            return self.target.model
        models = [model.id for model in self.client.models.list()]
        if not models:
            raise Fault("a model in GET /v1/models, or --model", "an empty list")
        return models[0]

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What the good run carries: letters of several scripts, and all that a value may hold."""
        return {"examination": self.target.nonce, "näme": "„Größe“ 数", "longest": "x" * 512}

    @cached_property
    def good(self) -> Run:
        """Every line is answered."""
        batch = self.create(
            self.upload(good_lines(self.model, GOOD_LINES)),
            metadata=self.metadata,
            output_expires_after={"anchor": "created_at", "seconds": OUTPUT_SECONDS},
        )
        return self.follow(batch)

    @cached_property
    def refused(self) -> Run:
        """No line is answered."""
        return self.follow(self.create(self.upload(refused_lines(self.model, REFUSED_LINES))))

    @cached_property
    def faulty(self) -> Run:
        """The file cannot be run at all."""
        return self.follow(self.create(self.upload(bad_lines(self.model))))

    @cached_property
    def long_file(self) -> str:
        """A file that takes a while."""
        return self.upload(long_lines(self.model, LONG_LINES))

    def upload(self, content: bytes) -> str:
        """The id of a new input file."""
        return self.client.files.create(file=content, purpose="batch").id

    def create(self, file_id: str, window: str = "24h", **more: object) -> Batch:
        """A new batch; its metadata is its own unless told, so that it is no repeat of another."""
        body = {"metadata": {"examination": self.target.nonce}, **more}
        return self.client.batches.create(
            input_file_id=file_id,
            endpoint=ENDPOINT,
            completion_window=window,  # type: ignore[arg-type]
            extra_body=body,
        )

    def follow(self, batch: Batch, *wanted: str) -> Run:
        """Poll a batch to its end, or to a status that is wanted, and keep what was seen."""
        run = follow(self.client, batch, wanted)
        self.runs.append(run)
        return run
