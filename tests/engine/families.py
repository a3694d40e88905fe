"""Every family of models that is checked, as tiny random models with its own twists."""

from dataclasses import dataclass, field

PAGED = "paged"
BATCHED = "padded, batched"
ALONE = "padded, one at a time"


@dataclass(frozen=True)
class Family:
    """One row of docs/models.md.

    Attributes:
        title: how the row begins.
        model_type: its name in config.json.
        lane: the lane that the engine must choose for it.
        settings: what makes the tiny model show the family's twists.
    """

    title: str
    model_type: str
    lane: str
    settings: dict[str, object] = field(default_factory=dict)


_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
_CHUNK = {"mamba_chunk_size": 8}
_ATTENTION_SECOND = {"layer_types": ["mamba", "attention"]}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
}

FAMILIES = (
    Family("Llama", "llama", PAGED),
    Family(
        "Llama with biases and tied weights",
        "llama",
        PAGED,
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    Family("Mistral with a sliding window", "mistral", PAGED, {"sliding_window": 11}),
    Family("Mixtral", "mixtral", PAGED, {"num_local_experts": 4}),
    Family("Qwen2", "qwen2", PAGED),
    Family("Qwen3", "qwen3", PAGED, {"head_dim": 32}),
    Family(
        "Qwen3-MoE",
        "qwen3_moe",
        PAGED,
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    Family("Gemma", "gemma", PAGED, {"head_dim": 16}),
    Family(
        "Gemma 2",
        "gemma2",
        PAGED,
        {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 16},
    ),
    Family(
        "Gemma 3",
        "gemma3_text",
        PAGED,
        {
            "head_dim": 16,
            "sliding_window": 9,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Family(
        "GPT-OSS", "gpt_oss", PAGED, {"head_dim": 16, "num_local_experts": 4, "sliding_window": 9}
    ),
    Family("Phi-2", "phi", PAGED),
    Family("Phi-3", "phi3", PAGED),
    Family(
        "Phi-3 with long positions",
        "phi3",
        ALONE,
        {"original_max_position_embeddings": 20, "rope_parameters": _LONGROPE},
    ),
    Family("OLMo", "olmo", PAGED, {"clip_qkv": 0.5}),
    Family("OLMo 2", "olmo2", PAGED),
    Family("Granite", "granite", PAGED, {"embedding_multiplier": 2.0, "logits_scaling": 2.0}),
    Family("Cohere", "cohere", PAGED),
    Family("Starcoder 2", "starcoder2", PAGED),
    Family("SmolLM 3", "smollm3", PAGED, {"no_rope_layers": [1, 0]}),
    Family("GLM-4", "glm4", PAGED, {"head_dim": 16}),
    Family(
        "EXAONE 4",
        "exaone4",
        PAGED,
        {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    Family(
        "DeepSeek-V3",
        "deepseek_v3",
        PAGED,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    Family("GPT-2", "gpt2", PAGED),
    Family("GPT-J", "gptj", PAGED, {"rotary_dim": 8}),
    Family("GPT-NeoX", "gpt_neox", PAGED),
    Family("CodeGen", "codegen", PAGED, {"rotary_dim": 8}),
    Family("OPT", "opt", PAGED, {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    Family("Bloom", "bloom", BATCHED, {"n_head": 4}),
    Family("MPT", "mpt", BATCHED, {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}),
    Family("Falcon", "falcon", BATCHED, {"alibi": False}),
    Family("Falcon with ALiBi", "falcon", BATCHED, {"alibi": True}),
    Family(
        "GPT-Neo",
        "gpt_neo",
        BATCHED,
        {"attention_types": [[["global", "local"], 1]], "window_size": 7},
    ),
    Family("StableLM", "stablelm", BATCHED),
    Family(
        "XGLM",
        "xglm",
        BATCHED,
        {"d_model": 64, "ffn_dim": 128, "attention_heads": 4, "num_layers": 2},
    ),
    Family("BioGPT", "biogpt", BATCHED),
    Family("GPT", "openai-gpt", ALONE, {"n_positions": 256}),
    Family(
        "Llama 4",
        "llama4_text",
        ALONE,
        {
            "head_dim": 16,
            "intermediate_size_mlp": 128,
            "attention_chunk_size": 8,
            "layer_types": ["chunked_attention", "full_attention"],
            "num_local_experts": 2,
        },
    ),
    Family("Mamba", "mamba", BATCHED, {"state_size": 8}),
    Family(
        "Mamba 2",
        "mamba2",
        BATCHED,
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
    ),
    Family("Falcon Mamba", "falcon_mamba", BATCHED, {"state_size": 8}),
    Family("RWKV", "rwkv", ALONE, {"attention_hidden_size": 64, "context_length": 256}),
    Family(
        "xLSTM",
        "xlstm",
        ALONE,
        {
            "num_heads": 4,
            "num_blocks": 2,
            "embedding_dim": 64,
            "qk_dim_factor": 1.0,
            "v_dim_factor": 1.0,
            "chunkwise_kernel": "chunkwise--native_autograd",
            "sequence_kernel": "native_sequence__native",
            "step_kernel": "native",
        },
    ),
    Family(
        "Jamba",
        "jamba",
        BATCHED,
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
        },
    ),
    Family("Bamba", "bamba", BATCHED, {**_HYBRID, **_CHUNK, "attn_layer_indices": [1]}),
    Family(
        "Falcon H1",
        "falcon_h1",
        BATCHED,
        {**_HYBRID, **_CHUNK, "mamba_d_ssm": 128, "head_dim": 16},
    ),
    Family(
        "Granite hybrid",
        "granitemoehybrid",
        BATCHED,
        {
            **_HYBRID,
            **_CHUNK,
            **_ATTENTION_SECOND,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 64,
        },
    ),
    Family(
        "Nemotron-H",
        "nemotron_h",
        BATCHED,
        {
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 1,
            "chunk_size": 8,
            "head_dim": 16,
        },
    ),
    Family(
        "Qwen3-Next",
        "qwen3_next",
        BATCHED,
        {
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    Family("LFM2", "lfm2", BATCHED, {"layer_types": ["conv", "full_attention"]}),
    Family(
        "RecurrentGemma",
        "recurrent_gemma",
        ALONE,
        {
            "lru_width": 64,
            "block_types": ["recurrent", "attention"],
            "attention_window_size": 7,
            "head_dim": 16,
            "num_key_value_heads": 1,
        },
    ),
    Family(
        "MiniMax",
        "minimax",
        ALONE,
        {
            "head_dim": 16,
            "num_local_experts": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 8,
        },
    ),
    Family(
        "Zamba 2",
        "zamba2",
        ALONE,
        {
            "mamba_d_state": 16,
            "mamba_headdim": 16,
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "chunk_size": 8,
            "layers_block_type": ["mamba", "hybrid"],
            "attention_head_dim": 32,
            "num_mem_blocks": 1,
            "adapter_rank": 8,
            "num_key_value_heads": 4,
        },
    ),
)
