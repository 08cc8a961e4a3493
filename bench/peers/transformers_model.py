"""transformers on CPU with the shape of a config.json and made-up weights; prints one JSON object.
Usage: transformers_model.py CONFIG.json bfloat16|float32 THREADS PROMPT_TOKENS DECODE_TOKENS ROUNDS"""
import json
import sys
import time

import torch
import transformers


def main():
    dtype = getattr(torch, sys.argv[2])
    threads, n_prompt, n_decode, rounds = map(int, sys.argv[3:7])
    torch.set_num_threads(threads)
    fields = json.load(open(sys.argv[1]))
    config = transformers.AutoConfig.for_model(**fields)
    torch.set_default_dtype(dtype)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()  # the config may name another
    prompt = torch.tensor([[1000 + i * 7919 % 20000 for i in range(n_prompt)]])
    prefill, tokens = [], []
    with torch.inference_mode():
        for _ in range(rounds + 1):  # the first one does not count
            start = time.perf_counter()
            out = model(prompt, use_cache=True, logits_to_keep=1)
            prefill.append(time.perf_counter() - start)
            for _ in range(n_decode):
                start = time.perf_counter()
                out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
                tokens.append(time.perf_counter() - start)
    rss = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
    print(json.dumps({"prefill_seconds": prefill[1:], "token_seconds": tokens[n_decode:], "rss_bytes": rss * 1024,
                      "weight_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
                      "build": {"torch": torch.__version__, "transformers": transformers.__version__}}))


if __name__ == "__main__":
    main()
