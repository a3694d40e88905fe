"""A model of a real shape with random weights: ``python bench/random_model.py SHAPE MODEL OUT``.

Speed does not depend on what a model knows. The tokenizer is another model's (MODEL, a folder).
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
    },
    # SmolLM2-135M, but for the positions.
    "llama-135m-32k": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 32768,
    },
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_SEED = 7


def write(shape: str, tokenizer_of: Path, out: Path) -> None:
    """Write a folder as `save_pretrained` does, in bfloat16, with MODEL's tokenizer beside it."""
    vocab_size = json.loads((tokenizer_of / "config.json").read_text())["vocab_size"]
    torch.manual_seed(_SEED)
    config = LlamaConfig(vocab_size=vocab_size, tie_word_embeddings=True, **SHAPES[shape])
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for name in _TOKENIZER_FILES:
        if (tokenizer_of / name).exists():
            shutil.copy(tokenizer_of / name, out)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
