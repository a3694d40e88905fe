"""Turning a GGUF file into a folder of safetensors; run as a process of its own.

``python -m runner.inference.gguf MODEL.gguf FOLDER``: a process, so that neither torch nor the
memory of a conversion stays with the caller.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(source: Path, folder: Path) -> None:
    """Write the model, dequantised to bfloat16, and its tokenizer."""
    place, name = str(source.parent), source.name
    model = AutoModelForCausalLM.from_pretrained(
        place,
        gguf_file=name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, local_files_only=True)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
