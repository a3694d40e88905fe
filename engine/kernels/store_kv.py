"""The KV write in Triton: a step's keys and values into their slots of the paged pools."""

import triton
import triton.language as tl


@triton.jit
def store_kv(
    keys_ptr,  # [blocks, KV_HEADS, BLOCK_SIZE, KEY_DIM]
    values_ptr,  # [blocks, KV_HEADS, BLOCK_SIZE, VALUE_DIM]
    key_ptr,  # [tokens, KV_HEADS, KEY_DIM]
    value_ptr,  # [tokens, KV_HEADS, VALUE_DIM]
    slots_ptr,  # int32 [tokens]: block * BLOCK_SIZE + offset
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEADS_PAD: tl.constexpr,  # powers of two
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    heads = tl.arange(0, HEADS_PAD)[:, None]
    rows = (block * KV_HEADS + heads) * BLOCK_SIZE + offset

    dims = tl.arange(0, KEY_PAD)[None, :]
    fits = (heads < KV_HEADS) & (dims < KEY_DIM)
    key = tl.load(key_ptr + token * key_stride_token + heads * key_stride_head + dims, mask=fits)
    tl.store(keys_ptr + rows * KEY_DIM + dims, key, mask=fits)

    dims = tl.arange(0, VALUE_PAD)[None, :]
    fits = (heads < KV_HEADS) & (dims < VALUE_DIM)
    value = tl.load(
        value_ptr + token * value_stride_token + heads * value_stride_head + dims, mask=fits
    )
    tl.store(values_ptr + rows * VALUE_DIM + dims, value, mask=fits)
