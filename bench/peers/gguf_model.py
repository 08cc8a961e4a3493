"""Writes a model file for llama.cpp with the shape of a config.json and made-up weights: speed and memory are those of a
real model. Usage: gguf_model.py CONFIG.json OUT.gguf bf16|q8_0|q4_k"""
import json
import sys

import gguf
import numpy as np

TYPES = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "q4_k": gguf.GGMLQuantizationType.Q4_K}
BOUND = 0.05  # weights are uniform in [-BOUND, BOUND)


def half(value):
    return np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


def matrix_bytes(rng, rows, cols, kind):
    """Random blocks of the format, row by row: [rows, bytes of a row]."""
    if kind == "bf16":
        values = (np.arange(256, dtype=np.float32) - 128) / 128 * BOUND
        table = (values.view(np.uint32) >> 16).astype(np.uint16)
        return table[rng.integers(0, 256, rows * cols, dtype=np.uint8)].view(np.uint8).reshape(rows, cols * 2)
    weights, size = (32, 34) if kind == "q8_0" else (256, 144)
    if cols % weights:
        sys.exit(f"{kind} needs rows of a multiple of {weights} weights, got {cols}")
    blocks = rng.integers(0, 256, (rows * cols // weights, size), dtype=np.uint8)
    if kind == "q8_0":  # scale, 32 signed bytes
        blocks[:, :2] = half(BOUND / 128)
    else:               # scale of the scales, scale of the minima, 12 bytes of both at 6 bits, 128 bytes of 4 bits
        blocks[:, :2], blocks[:, 2:4] = half(BOUND / 8 / 32), half(BOUND / 32)
    return blocks.reshape(rows, -1)


def main():
    config = json.load(open(sys.argv[1]))
    path, kind = sys.argv[2], sys.argv[3]
    arch = "qwen3" if config["model_type"] == "qwen3" else "llama"
    d_model, d_ff, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(d_model)
    writer.add_feed_forward_length(d_ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(vocab)
    # A vocabulary of made-up words; text is never tokenised.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(vocab)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)

    def matrix(name, rows, cols):
        writer.add_tensor(name, matrix_bytes(rng, rows, cols, kind), raw_dtype=TYPES[kind])

    def norm(name, size):
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    matrix("token_embd.weight", vocab, d_model)
    if not config["tie_word_embeddings"]:
        matrix("output.weight", vocab, d_model)
    norm("output_norm.weight", d_model)
    for i in range(config["num_hidden_layers"]):
        norm(f"blk.{i}.attn_norm.weight", d_model)
        matrix(f"blk.{i}.attn_q.weight", heads * head_dim, d_model)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, d_model)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, d_model)
        matrix(f"blk.{i}.attn_output.weight", d_model, heads * head_dim)
        if arch == "qwen3":
            norm(f"blk.{i}.attn_q_norm.weight", head_dim)
            norm(f"blk.{i}.attn_k_norm.weight", head_dim)
        norm(f"blk.{i}.ffn_norm.weight", d_model)
        matrix(f"blk.{i}.ffn_gate.weight", d_ff, d_model)
        matrix(f"blk.{i}.ffn_up.weight", d_ff, d_model)
        matrix(f"blk.{i}.ffn_down.weight", d_model, d_ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
