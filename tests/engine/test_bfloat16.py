"""The engine in bfloat16 beside transformers in float32: near-ties may turn, odds may not."""

from pathlib import Path

import pytest
import torch
from tiny_models import EngineFactory, FamilyFactory
from transformers import AutoModelForCausalLM

from engine.outputs import RequestOutput
from engine.quantisation import Quantisation
from engine.sampling_params import SamplingParams

TOP = 5
MAX_TOKENS = 16
PROMPTS = [[(7 * i * n + 3) % 500 for i in range(5 * n)] for n in range(1, 13)]


@torch.inference_mode()
def true_logprobs(network: torch.nn.Module, prompt: list[int], ids: list[int]) -> torch.Tensor:
    """[ids, vocab] of the plain model, given the same tokens."""
    logits = network(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
    return logits.float().log_softmax(-1)


def greedy(network: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids: list[int] = []
    for _ in range(MAX_TOKENS):
        with torch.inference_mode():
            logits = network(torch.tensor([prompt + ids])).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids


@pytest.mark.parametrize(
    ("quantisation", "mean_distance"),
    [
        (Quantisation(), 0.02),
        (Quantisation(weights="int8"), 0.05),
        (Quantisation(kv_cache="int8"), 0.03),
    ],
    ids=["plain", "int8 weights", "int8 KV"],
)
def test_log_probabilities_are_close_to_those_of_float32(
    make_engine: EngineFactory,
    make_family: FamilyFactory,
    quantisation: Quantisation,
    mean_distance: float,
) -> None:
    folder: Path = make_family("llama", {"initializer_range": 0.06})
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = make_engine(folder, dtype="bfloat16", quantisation=quantisation)
    params = SamplingParams(MAX_TOKENS, ignore_eos=True, logprobs=TOP)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, params)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        outputs.update((output.request_id, output) for output in engine.step())
    distances = []
    for number, prompt in enumerate(PROMPTS):
        output = outputs[str(number)]
        ids, told = list(output.token_ids), output.logprobs
        assert told is not None
        true = true_logprobs(network, prompt, ids)
        taken = torch.tensor(ids)[:, None]
        assert bool((true.topk(TOP).indices == taken).any(1).all())
        own = torch.tensor([each.logprob for each in told])
        distances.append((true.gather(1, taken)[:, 0] - own).abs())
        # Where the two first part, each finds the other's choice likely.
        expected = greedy(network, prompt)
        apart = next((i for i in range(MAX_TOKENS) if ids[i] != expected[i]), None)
        if apart is not None:
            assert expected[apart] in [token_id for token_id, _ in told[apart].top]
    assert float(torch.cat(distances).mean()) < mean_distance
