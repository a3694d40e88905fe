"""Builders of tiny random models and their tokenizer, for the engine's tests."""

import json
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from engine.attention import open_attention
from engine.attention.backend import LayerShape
from engine.llm_engine import LLMEngine

VOCAB_SIZE = 512
EOS_ID = 511
BLOCK_SIZE = 8

EngineFactory = Callable[..., LLMEngine]
FamilyFactory = Callable[[str, dict[str, object]], Path]


def byte_tokenizer() -> tokenizers.Tokenizer:
    """256 byte tokens, a few merges, filler up to the vocabulary's size, and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("an", "d")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    while len(vocab) < EOS_ID:
        vocab[f"<filler{len(vocab)}>"] = len(vocab)
    vocab["<end>"] = EOS_ID
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def save_tokenizer(folder: Path, chat_template: str | None = None) -> None:
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<end>"}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save_model(folder: Path, family: str = "llama", **overrides: object) -> Path:
    """A random model with weights large enough that its answers differ from prompt to prompt."""
    settings: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **(settings | overrides))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def block_bytes() -> int:
    """Bytes of a KV block of `save_model`'s plain Llama in float32: each backend has its layout."""
    shapes = [LayerShape(num_kv_heads=2, key_dim=16, value_dim=16)] * 3
    return open_attention(shapes, BLOCK_SIZE, torch.device("cpu"), torch.float32).block_bytes()
