"""A model that computes the same, its elements in another order: ``python shuffled.py FROM TO``.

Weights that were once stored in blocks of 4 bits (as in many GGUF files) lie on the grid of those
blocks, and rounding the same blocks to 4 bits again costs nothing. Here the hidden elements, those
of each MLP and of each head's values are shuffled, so that the blocks are new ones: what int4 costs
on such a model is what it costs on one that was never rounded. For models of Llama's shape.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

BY_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")


def shuffle(source: Path, target: Path) -> None:
    """Write the shuffled model; the same order each time."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    draw = torch.Generator().manual_seed(3)
    hidden = torch.randperm(config["hidden_size"], generator=draw)
    inner = torch.randperm(config["intermediate_size"], generator=draw)
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    head = torch.randperm(size, generator=draw)
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        part = name.split(".")[-2]
        if "norm" in part:
            weight = weight[hidden]
        if part in BY_HIDDEN:
            weight = weight[:, hidden]
        if part in ("o_proj", "down_proj"):
            weight = weight[hidden]
        if part in ("gate_proj", "up_proj"):
            weight = weight[inner]
        if part == "down_proj":
            weight = weight[:, inner]
        if part == "v_proj":
            weight = weight.unflatten(0, (-1, size))[:, head].flatten(0, 1)
        if part == "o_proj":
            weight = weight.unflatten(1, (-1, size))[:, :, head].flatten(1)
        weights[name] = weight.contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    shuffle(Path(sys.argv[1]), Path(sys.argv[2]))
