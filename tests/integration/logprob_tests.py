"""Log-probabilities as the public evaluation harness asks for them, against the logits that `deltafold logits` writes.

The bodies are those that lm-eval's `local-completions` sends (0.4.13), and the answers are read as it reads them."""
import json
import math
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from client_tests import expect, make_client
from harness import ADAPTERS, BASE, FAMILY, FINETUNES, http_post

import openai

CONTEXT = [2044, 84, 295, 82, 198, 600, 301, 17, 9]  # any ids do: the reference gets the same
CONTINUATIONS = [[1700, 12, 345, 8], [77], [5, 5, 5, 900, 2045, 31]]
TEXT = "<|im_start|>user\nWhat is 31 + 10?<|im_end|>\n<|im_start|>assistant\n"


def loglikelihood_body(model, prompts):
    return {"model": model, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def read_loglikelihoods(answer, context_lengths):
    """As the harness: the answer's own token is the last one, the context's come first."""
    results = []
    for choice, length in zip(sorted(answer["choices"], key=lambda choice: choice["index"]), context_lengths):
        of_tokens = choice["logprobs"]["token_logprobs"][length:-1]
        top = choice["logprobs"]["top_logprobs"][length:-1]
        results.append((sum(of_tokens), all(mine == max(best.values()) for mine, best in zip(of_tokens, top))))
    return results


def log_softmax(row):
    largest = max(row)
    log_sum = largest + math.log(math.fsum(math.exp(x - largest) for x in row))
    return [x - log_sum for x in row]


class LogprobTests:
    def __init__(self, server, binary, deltas):
        self.server, self.binary, self.deltas = server, binary, deltas
        self.client = make_client(server)

    def post(self, body, path="/v1/completions"):
        status, _, content = self.server.request("POST", path, body)
        assert status == 200, (status, content[:300])
        return json.loads(content)

    def variant_flags(self, model):
        directory = self.deltas.get(model) or (FAMILY / "adapters" / model if model in ADAPTERS else None)
        return ["--variant", directory] if directory else []

    def run_logits(self, model, ids, *more):
        command = [self.binary, "logits", "--model", FAMILY / BASE, *self.variant_flags(model), "--kv-cache-dtype", "auto",
                   "--batch-invariant", "--ids", ",".join(map(str, ids)), *more]
        return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout

    def reference(self, model, ids):
        """Rows of log-probabilities, one behind each id, of the model's own logits."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "logits.safetensors"
            self.run_logits(model, ids, "--out", path)
            data = path.read_bytes()
        n_header = struct.unpack("<Q", data[:8])[0]
        vocab = json.loads(data[8:8 + n_header])["logits"]["shape"][1]
        values = struct.unpack(f"<{len(ids) * vocab}f", data[8 + n_header:])
        return [log_softmax(values[i * vocab:(i + 1) * vocab]) for i in range(len(ids))]

    def test_loglikelihoods_are_those_of_the_models_logits(self):
        prompts = [CONTEXT + continuation for continuation in CONTINUATIONS]
        for model in (BASE, FINETUNES[0], ADAPTERS[0]):
            answer = self.post(loglikelihood_body(model, prompts))
            got = read_loglikelihoods(answer, [len(CONTEXT)] * len(prompts))
            for prompt, (loglikelihood, is_greedy) in zip(prompts, got):
                rows = self.reference(model, prompt)
                first = len(CONTEXT)
                expected = math.fsum(rows[i - 1][prompt[i]] for i in range(first, len(prompt)))
                assert abs(loglikelihood - expected) < 1e-3, (model, loglikelihood, expected)
                assert is_greedy == all(max(rows[i - 1]) == rows[i - 1][prompt[i]] for i in range(first, len(prompt)))
            whole = answer["choices"][0]["logprobs"]["token_logprobs"]
            assert len(whole) == len(prompts[0]) + 1 and whole[0] is None

    def test_a_greedy_continuation_is_known_as_one(self):
        greedy = [int(token) for token in self.run_logits(FINETUNES[0], CONTEXT, "--greedy", 6).split()]
        other = greedy[:3] + [(greedy[3] + 1) % 2000] + greedy[4:]
        answer = self.post(loglikelihood_body(FINETUNES[0], [CONTEXT + greedy, CONTEXT + other]))
        results = read_loglikelihoods(answer, [len(CONTEXT)] * 2)
        assert [is_greedy for _, is_greedy in results] == [True, False], results
        assert results[0][0] > results[1][0]

    def test_prompts_score_alike_alone_and_together_again_and_again(self):
        prompts = [CONTEXT * 5 + continuation for continuation in CONTINUATIONS]
        lists = lambda answer: [choice["logprobs"] for choice in answer["choices"]]
        alone = [lists(self.post(loglikelihood_body(BASE, [prompt])))[0] for prompt in prompts]
        for _ in range(2):
            assert lists(self.post(loglikelihood_body(BASE, prompts))) == alone
        zero = self.post({**loglikelihood_body(BASE, prompts), "max_tokens": 0})
        assert zero["usage"]["completion_tokens"] == 0
        for mine, whole in zip(lists(zero), alone):
            assert mine == {name: values[:-1] for name, values in whole.items()}

    def test_text_is_scored_as_its_tokens_are(self):
        text = "The caf\u00e9 cost 5 \u20ac"
        ids = [445, 269, 64, 69, 127, 102, 269, 649, 220, 20, 220, 158, 224, 105]  # of it in zen-mini's vocabulary
        by_text = self.post(loglikelihood_body(BASE, text))["choices"][0]
        by_ids = self.post(loglikelihood_body(BASE, ids))["choices"][0]
        assert by_text == by_ids and by_text["text"].startswith(text)
        logprobs = by_text["logprobs"]
        names = ["The", " c", "a", "f", "bytes:\\xc3", "bytes:\\xa9", " c", "ost", " ", "5", " ", "bytes:\\xe2", "bytes:\\x82",
                 "bytes:\\xac"]
        assert logprobs["tokens"][:-1] == names, logprobs["tokens"]
        assert logprobs["text_offset"] == [0, 3, 5, 6, 7, 8, 8, 10, 13, 14, 15, 16, 17, 17, 17], logprobs["text_offset"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        control = self.post(loglikelihood_body(BASE, TEXT))
        assert control["usage"]["prompt_tokens"] == 21 and control["choices"][0]["logprobs"]["tokens"][0] == "<|im_start|>"

    def test_official_client_reads_completions_with_an_echo(self):
        create = lambda **more: self.client.completions.create(model=FINETUNES[0], prompt=TEXT, max_tokens=4, temperature=0,
                                                               logprobs=3, echo=True, **more)
        whole = create().choices[0]
        assert whole.text.startswith(TEXT)
        assert len(whole.logprobs.tokens) == len(whole.logprobs.token_logprobs) == len(whole.logprobs.text_offset)
        assert all(3 <= len(top) <= 4 for top in whole.logprobs.top_logprobs[1:])
        assert all(logprob <= 0 for logprob in whole.logprobs.token_logprobs[1:])
        chunks = [chunk.choices[0] for chunk in create(stream=True) if chunk.choices]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            joined = [entry for chunk in chunks if chunk.logprobs for entry in getattr(chunk.logprobs, name)]
            assert joined == getattr(whole.logprobs, name), name

    def test_official_client_reads_logprobs_of_a_chat(self):
        create = lambda **more: self.client.chat.completions.create(
            model=FINETUNES[0], messages=[{"role": "user", "content": "What is 31 + 10?"}], max_tokens=12, temperature=0,
            logprobs=True, **more)
        answer = create(top_logprobs=4)
        content = answer.choices[0].logprobs.content
        assert len(content) == answer.usage.completion_tokens
        spelled = b"".join(bytes(token.bytes) for token in content)
        assert spelled.decode().startswith(answer.choices[0].message.content)
        for token in content:
            assert len(token.top_logprobs) == 4
            assert token.logprob == token.top_logprobs[0].logprob and token.token == token.top_logprobs[0].token
            assert [top.logprob for top in token.top_logprobs] == sorted((t.logprob for t in token.top_logprobs), reverse=True)
        chunks = [chunk.choices[0] for chunk in create(top_logprobs=4, stream=True) if chunk.choices]
        assert [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content] == content
        assert create().choices[0].logprobs.content[0].top_logprobs == []

    def test_what_asks_for_too_much_is_refused_by_name(self):
        complete = lambda **more: self.client.completions.create(model=BASE, prompt="a", **more)
        chat = lambda **more: self.client.chat.completions.create(model=BASE, messages=[{"role": "user", "content": "a"}],
                                                                  **more)
        for value in (21, 10**9, 2**64, -1, True, False, 1.5, "1", [1]):
            for call in (lambda: complete(logprobs=value), lambda: chat(logprobs=True, top_logprobs=value)):
                error = expect(openai.BadRequestError, call, "invalid_value" if value != 2**64 else None)
                assert error.param in ("logprobs", "top_logprobs"), (value, error)
        expect(openai.BadRequestError, lambda: chat(top_logprobs=2), "invalid_value", "top_logprobs")
        for value in (1, "yes", [], 0):
            expect(openai.BadRequestError, lambda: complete(extra_body={"echo": value}), "invalid_value", "echo")
        expect(openai.BadRequestError, lambda: complete(max_tokens=0), "invalid_value", "max_tokens")
        expect(openai.BadRequestError, lambda: chat(max_tokens=0), "invalid_value", "max_tokens")
        expect(openai.BadRequestError, lambda: chat(extra_body={"echo": True}), "unsupported_parameter", "echo")
        expect(openai.BadRequestError, lambda: complete(extra_body={"prompt_logprobs": 1}), "unsupported_parameter")
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}]
        expect(openai.BadRequestError, lambda: self.client.chat.completions.create(
            model=BASE, messages=image, logprobs=True, extra_body={"echo": True}), "unsupported_parameter")
        many = [[5] * 1000] * 60
        expect(openai.BadRequestError, lambda: self.client.completions.create(
            model=BASE, prompt=many, max_tokens=0, logprobs=20, echo=True), "invalid_value", "logprobs")
        self.server.wait_idle()

    def test_a_client_that_leaves_an_echo_frees_its_sequences(self):
        body = json.dumps({**loglikelihood_body(BASE, [[5] * 1500] * 60), "logprobs": 5}).encode()
        with self.server.connect() as connection:
            connection.sendall(http_post("/v1/completions", body))
            deadline = time.monotonic() + 20
            while self.server.metric("vllm:num_requests_running") == 0:  # left sooner, it might not have begun
                assert time.monotonic() < deadline, "the prompts were not begun"
                time.sleep(0.01)
        self.server.wait_idle(20)
        assert self.server.metric("vllm:kv_cache_usage_perc") == 0
