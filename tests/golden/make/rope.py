"""RoPE frequencies of the reference implementation for settings of every kind. Usage: python rope.py OUT.json"""
import json
import sys

import torch
import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

cases = []


def add(name, head_dim, max_positions, **rope):
    config = dict(
        model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=head_dim * 2, intermediate_size=4,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=head_dim, vocab_size=8,
        max_position_embeddings=max_positions, rope_parameters=rope)
    embedding = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
    cases.append(dict(name=name, config=config, inv_freq=[float(f) for f in embedding.inv_freq],
                      magnitude=float(embedding.attention_scaling)))


for head_dim in (2, 18, 64, 128):
    for theta in (10000.0, 500000.0, 1000000.0):
        add(f"default {head_dim} {theta:g}", head_dim, 2048, rope_type="default", rope_theta=theta)
add("linear", 64, 2048, rope_type="linear", factor=3.7, rope_theta=10000.0)
add("dynamic within its length", 64, 2048, rope_type="dynamic", factor=2.0, rope_theta=10000.0)
for head_dim in (64, 128):
    for factor in (8.0, 32.0):
        add(f"llama3 {head_dim} factor {factor:g}", head_dim, 131072, rope_type="llama3", factor=factor,
            low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192, rope_theta=500000.0)
    long = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768, rope_theta=1000000.0)
    add(f"yarn {head_dim}", head_dim, 131072, **long)
    add(f"yarn {head_dim} no truncation", head_dim, 131072, truncate=False, **long)
    short = dict(rope_type="yarn", original_max_position_embeddings=4096, rope_theta=10000.0)
    add(f"yarn {head_dim} attention_factor", head_dim, 131072, factor=16.0, attention_factor=0.5, **short)
    add(f"yarn {head_dim} mscale", head_dim, 131072, factor=40.0, mscale=0.707, mscale_all_dim=1.0, beta_fast=24,
        beta_slow=2, **short)
    add(f"yarn {head_dim} factor unlike the lengths", head_dim, 8192, factor=10.0, **short)
add("yarn factor below one", 64, 2048, factor=0.5, **short)
add("yarn original length by default", 16, 512, rope_type="yarn", factor=4.0, rope_theta=10000.0)
add("yarn short original length", 16, 512, rope_type="yarn", factor=4.0, original_max_position_embeddings=2,
    rope_theta=10000.0)
with open(sys.argv[1], "w") as f:
    json.dump(dict(torch=torch.__version__, transformers=transformers.__version__, cases=cases), f, indent=1)
