"""The official `openai` client against the served family."""
import concurrent.futures
import json
import time

import openai

from harness import ADAPTERS, BASE, FAMILY, FINETUNES, KEY, chat_body


def make_client(server, key=KEY):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0, timeout=120)


def expect(error_type, call, code=None, param=None):
    try:
        call()
    except error_type as error:
        assert code is None or error.code == code, (error.code, code)
        assert param is None or error.param == param, (error.param, param)
        return error
    raise AssertionError(f"no {error_type.__name__}")


def questions(name):
    with open(FAMILY / "eval" / f"{name}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class ClientTests:
    def __init__(self, server):
        self.server = server
        self.client = make_client(server)

    def chat(self, model=BASE, text="What is 31 + 10?", **more):
        more.setdefault("max_tokens", 24)
        more.setdefault("temperature", 0)
        return self.client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)

    def text(self, *arguments, **more):
        return self.chat(*arguments, **more).choices[0].message.content

    def streamed(self, *arguments, **more):
        chunks = list(self.chat(*arguments, stream=True, **more))
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks

    def test_chat_answers_with_all_fields(self):
        answer = self.chat("zen-mini-math")
        assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
        assert answer.model == "zen-mini-math" and answer.system_fingerprint.startswith("fp_")
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer.choices[0].message.role == "assistant"
        assert answer.usage.prompt_tokens > 0 and 0 < answer.usage.completion_tokens <= 24
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_variants_have_the_skill_that_the_base_lacks(self):
        items = questions("math")[:10]
        right = {name: sum(self.text(name, item["messages"][0]["content"]).strip() == item["answer"] for item in items)
                 for name in (BASE, "zen-mini-math")}
        assert right["zen-mini-math"] >= 5 and right[BASE] <= 3, right

    def test_streamed_text_equals_unstreamed(self):
        for model in (BASE, *FINETUNES, *ADAPTERS):
            text, chunks = self.streamed(model, "the green hat in French")
            assert text == self.text(model, "the green hat in French"), model
            assert chunks[0].choices[0].delta.role == "assistant"
            assert chunks[-1].choices[0].finish_reason in ("stop", "length")

    def test_stream_ends_with_usage_when_asked(self):
        _, chunks = self.streamed("zen-mini-math", stream_options={"include_usage": True})
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
        assert all(chunk.usage is None for chunk in chunks[:-1])

    def test_completions_of_text_lists_and_tokens(self):
        create = self.client.completions.create
        one = create(model=BASE, prompt="The house", max_tokens=8, temperature=0)
        assert one.id.startswith("cmpl-") and one.object == "text_completion" and one.usage.completion_tokens <= 8
        several = create(model=BASE, prompt=["The house", "A day"], max_tokens=8, temperature=0)
        assert [choice.index for choice in several.choices] == [0, 1]
        assert several.choices[0].text == one.choices[0].text
        ids = create(model=BASE, prompt=[5, 6, 7, 8], max_tokens=4, temperature=0)
        assert ids.usage.prompt_tokens == 4
        chunks = list(create(model=BASE, prompt="The house", max_tokens=8, temperature=0, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == one.choices[0].text

    def test_models_are_listed_and_retrieved(self):
        cards = {card.id: card for card in self.client.models.list()}
        assert set(cards) == {BASE, *FINETUNES, *ADAPTERS}
        assert cards[BASE].parent is None and cards["zen-mini-math"].parent == BASE
        assert cards["zen-mini-math"].kind == "delta" and cards["format-title"].kind == "lora"
        assert self.client.models.retrieve("zen-mini-math").max_model_len == cards["zen-mini-math"].max_model_len

    def test_base_colon_variant_is_the_variant(self):
        assert self.text(f"{BASE}:zen-mini-math") == self.text("zen-mini-math")

    def test_unknown_model_is_not_found(self):
        expect(openai.NotFoundError, lambda: self.chat("zen-mini-nobody"), "model_not_found")
        expect(openai.NotFoundError, lambda: self.client.models.retrieve("nobody"), "model_not_found")
        expect(openai.NotFoundError, lambda: list(self.chat("nobody", stream=True)), "model_not_found")

    def test_wrong_key_is_refused(self):
        for key in ("wrong", KEY[:-1], KEY + "x"):
            client = make_client(self.server, key)
            expect(openai.AuthenticationError, lambda: list(client.models.list()), "invalid_api_key")
            expect(openai.AuthenticationError, lambda: client.completions.create(model=BASE, prompt="a"))

    def test_over_long_prompt_is_refused_before_any_token(self):
        for stream in (False, True):
            expect(openai.BadRequestError, lambda: self.chat(text="word " * 20000, stream=stream), "context_length_exceeded")

    def test_context_limit_to_the_token(self):
        limit = self.client.models.retrieve(BASE).max_model_len
        create = lambda n, max_tokens: self.client.completions.create(
            model=BASE, prompt=[5] * n, max_tokens=max_tokens, temperature=0, extra_body={"ignore_eos": True})
        assert create(limit - 2, 2).usage.completion_tokens == 2
        assert create(limit - 1, 1).usage.completion_tokens == 1
        expect(openai.BadRequestError, lambda: create(limit - 1, 2), "context_length_exceeded")
        expect(openai.BadRequestError, lambda: create(limit, 1), "context_length_exceeded")
        expect(openai.BadRequestError, lambda: create(limit + 1, 1), "context_length_exceeded")

    def test_stop_strings_end_the_text_before_them(self):
        whole = self.text(BASE, max_tokens=40, extra_body={"ignore_eos": True})
        assert len(whole) > 8
        stop = whole[4:7]
        cut = whole[:whole.index(stop)]
        for stream in (False, True):
            text = self.streamed(BASE, max_tokens=40, stop=stop)[0] if stream else self.text(BASE, max_tokens=40, stop=[stop])
            assert text == cut, (whole, stop, text)
        kept = self.text(BASE, max_tokens=40, stop=[stop], extra_body={"include_stop_str_in_output": True})
        assert kept == cut + stop

    def test_seeds_repeat_and_differ(self):
        sample = lambda seed: self.text(BASE, max_tokens=24, temperature=1.5, seed=seed, extra_body={"ignore_eos": True})
        assert sample(1) == sample(1)
        assert len({sample(seed) for seed in range(6)}) > 1

    def test_max_completion_tokens_counts(self):
        answer = self.client.chat.completions.create(model=BASE, messages=[{"role": "user", "content": "hi"}],
                                                     max_completion_tokens=3, temperature=0, extra_body={"ignore_eos": True})
        assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"

    def test_content_parts_are_text(self):
        parts = [{"type": "text", "text": "What is 31 + 10?"}]
        answer = self.client.chat.completions.create(model="zen-mini-math", max_tokens=24, temperature=0,
                                                     messages=[{"role": "user", "content": parts}])
        assert answer.choices[0].message.content == self.text("zen-mini-math")

    def test_features_that_are_not_built_are_named(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        for field, value in {"n": 2, "tools": [tool], "response_format": {"type": "json_object"},
                             "presence_penalty": 1, "logit_bias": {"5": 1}}.items():
            expect(openai.BadRequestError, lambda: self.chat(**{field: value}), "unsupported_parameter", field)
        for field, value in {"guided_regex": "a", "min_p": 0.1, "best_of": 2, "bad_words": ["a"]}.items():
            expect(openai.BadRequestError, lambda: self.chat(extra_body={field: value}), "unsupported_parameter", field)
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}]
        expect(openai.BadRequestError, lambda: self.client.chat.completions.create(model=BASE, messages=image),
               "unsupported_parameter", "messages[0].content[0]")

    def test_together_every_variant_answers_as_alone(self):
        jobs = [(model, item["messages"][0]["content"]) for model, skill in
                ((BASE, "math"), ("zen-mini-math", "math"), ("zen-mini-coder", "coder"), ("zen-mini-french", "french"),
                 ("format-title", "lora-format-title")) for item in questions(skill)[:4]]
        alone = [self.text(*job) for job in jobs]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            together = list(pool.map(lambda job: self.text(*job), jobs))
        assert together == alone
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            streamed = list(pool.map(lambda job: self.streamed(*job)[0], jobs))
        assert streamed == alone

    def test_sampled_answers_with_a_seed_do_not_depend_on_company(self):
        sample = lambda seed: self.text("zen-mini-math", temperature=1.2, seed=seed, extra_body={"ignore_eos": True})
        alone = [sample(seed) for seed in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(sample, range(8))) == alone

    def test_leaving_a_stream_frees_its_sequence(self):
        before = self.server.metric('vllm:request_success_total')
        streams = []
        for _ in range(4):
            stream = self.chat(BASE, max_tokens=200, stream=True, extra_body={"ignore_eos": True})
            next(iter(stream))
            streams.append(stream)
        for stream in streams:
            stream.close()
        self.server.wait_idle(5)
        assert self.server.metric("vllm:kv_cache_usage_perc") == 0
        assert self.server.metric('vllm:request_success_total') == before + 4

    def test_metrics_count_requests_and_tokens(self):
        names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:e2e_request_latency_seconds_count",
                 "vllm:time_to_first_token_seconds_count", "vllm:request_queue_time_seconds_count")
        before = {name: self.server.metric(name) for name in names}
        usage = self.chat("zen-mini-math").usage
        time.sleep(0.1)
        after = {name: self.server.metric(name) for name in names}
        grown = [after[name] - before[name] for name in names]
        assert grown == [usage.completion_tokens, usage.prompt_tokens, 1, 1, 1], grown

    def test_thousands_of_unknown_names_leave_no_trace(self):
        _, _, before = self.server.request("GET", "/metrics")
        for i in range(300):
            status, _, _ = self.server.request("POST", "/v1/chat/completions", chat_body(f"guess-{i}"))
            assert status == 404
        _, _, after = self.server.request("GET", "/metrics")
        assert b"guess" not in after and after.count(b"\n") == before.count(b"\n")
