"""The variant store under traffic: fourteen variants in memory for six, replaced, refused, and never a wrong answer.

Which weights an answer comes from is in its system_fingerprint; what those weights say is asked of a server that holds all
of them beforehand. Both run with --batch-invariant, so answers are equal, not similar."""
import contextlib
import json
import random
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from admin_calls import FRENCH, LOAD, MATH, UNLOAD, AdminCalls
from harness import BASE, FAMILY, KEY, Server, finetune_directory, http_post, read_all

PREAMBLE = "Once upon a time there was a contract about apples, pears and figs, and "  # more than a block of prefix cache
PROMPTS = [PREAMBLE + end for end in ("please sort: pear, apple, fig.", "the contract", "bonjour, je")]
N_RESIDENT, N_CLIENTS, TRAFFIC_S = 6, 32, 6
SKILL, COMES_AND_GOES = "skill", "zen-mini-coder"  # replaced, and unloaded and loaded, under way


def family():
    """The delta and adapter directories of the demonstration family, by name."""
    return {path.name: path for kind in ("deltas", "adapters") for path in sorted((FAMILY / kind).iterdir())}


def rewrite_tensors(path, change):
    """`change(header, data)` of a safetensors file; it may change both in place."""
    content = path.read_bytes()
    n_header, = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + n_header]), bytearray(content[8 + n_header:])
    change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Sampler(threading.Thread):
    """Scrapes /metrics every 50 ms: (when, resident bytes, reserved bytes)."""

    def __init__(self, server):
        super().__init__()
        self.server, self.samples, self.ended = server, [], threading.Event()

    def run(self):
        while not self.ended.wait(0.05):
            text = self.server.request("GET", "/metrics")[2].decode()
            value = lambda name: int(float(re.search(rf"^deltafold_variants_{name}_bytes (\S+)$", text, re.MULTILINE)[1]))
            self.samples.append((time.monotonic(), value("resident"), value("reserved")))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


class StoreTests(AdminCalls):
    @contextlib.contextmanager
    def all_resident(self, *flags):
        """A server that holds everything: what its answers are is right."""
        directories = family() | self.deltas
        modules = [f"{name}={path}" for name, path in directories.items()]
        with Server(self.binary, {}, "--batch-invariant", "--api-key", KEY, "--variant-bytes", "1GB", "--delta-modules",
                    *modules, *flags) as server:
            yield server, directories

    def complete(self, server, model, prompt, n_tokens=16):
        """Status, fingerprint, text."""
        body = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        status, _, content = server.request("POST", "/v1/completions", body)
        answer = json.loads(content)
        if status != 200:
            return status, None, answer["error"]["code"]
        assert answer["usage"]["completion_tokens"] == n_tokens, answer
        return status, answer["system_fingerprint"], answer["choices"][0]["text"]

    def counters(self, server):
        names = {"loads": "variant_load_seconds_count", "failures": "variant_load_failures_total",
                 "evictions": "variant_evictions_total", "lookups": "variant_lookups_total", "hits": "variant_cache_hits_total"}
        return {short: int(server.metric(f"deltafold_{name}")) for short, name in names.items()}

    def n_resident(self, server):
        return len({row["generation"] for row in self.rows(server).values() if row["state"] == "resident"})

    def test_fourteen_variants_in_memory_for_six_answer_as_themselves(self):
        with self.all_resident() as (server, directories):
            rows = self.rows(server)
            sizes = [row["resident_bytes"] for row in rows.values()]
            budget = N_RESIDENT * sum(sizes) // len(sizes)
            assert budget >= 2 * max(sizes), sizes  # a pinned one and any other
            expected, fingerprints = {}, {}
            for name in (BASE, *directories):
                for prompt in PROMPTS:
                    _, fingerprints[name], expected[fingerprints[name], prompt] = self.complete(server, name, prompt)
        for prompt in PROMPTS:
            texts = [text for (_, asked), text in expected.items() if asked == prompt]
            assert len(set(texts)) == len(texts) == 16, f"each has an answer of its own to {prompt}: {texts}"
        skills = ["zen-mini-writer", "zen-mini-ultra"]  # the contents of SKILL, in turn
        served = {name: path for name, path in directories.items() if name not in skills} | {SKILL: directories[skills[0]]}
        assert len(served) == 14, served
        allowed = {name: {fingerprints[name]} for name in directories} | {SKILL: {fingerprints[name] for name in skills}}

        with root_of(directories | served) as root:
            with Server(self.binary, {}, "--batch-invariant", "--api-key", KEY, "--variant-root", root, "--variant-bytes",
                        str(budget), "--delta-modules", *[f"{name}={root / name}" for name in served]) as server:
                with Sampler(server) as sampler:
                    answers, changes = self.traffic(server, list(served), skills)
                self.check_answers(answers, expected, allowed)
                self.check_memory(server, sampler, budget)
                self.check_single_flight(server, sum(status == 200 for _, _, (status, _, _) in answers), changes)
                n_gone = sum(status == 404 for _, _, (status, _, _) in answers)
                print(f"        {len(answers)} answers, {n_gone} of them 404 while unloaded; {changes}; {self.counters(server)}; "
                      f"{len(sampler.samples)} samples of memory", flush=True)

    def traffic(self, server, names, skills):
        """Zipf traffic of all clients while one operator changes things: [(name, prompt, answer)], {change: count}."""
        weights = [1 / (rank + 1) for rank in range(len(names))]
        until, answers, errors = time.monotonic() + TRAFFIC_S, [], []

        def client(seed):
            chance = random.Random(seed)
            try:
                while time.monotonic() < until:
                    name, prompt = chance.choices(names, weights)[0], chance.choice(PROMPTS)
                    answers.append((name, prompt, self.complete(server, name, prompt)))
            except Exception as error:  # told by the main thread
                errors.append(error)

        random.Random(1).shuffle(names)
        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(N_CLIENTS)]
        for thread in clients:
            thread.start()
        try:
            changes = self.operate(server, names, skills, until)
        finally:
            for thread in clients:
                thread.join()
        assert not errors, errors
        return answers, changes

    def operate(self, server, names, skills, until):
        """Replaces, pins, evicts, prefetches, unloads and loads. Each answer is a success or the documented conflict."""
        chance, counts, pinned = random.Random(7), {}, None
        steady = [name for name in names if name not in (SKILL, COMES_AND_GOES)]
        while time.monotonic() < until:
            skills.reverse()
            calls = [("replace", LOAD, {"lora_name": SKILL, "lora_path": skills[0], "load_inplace": True}, (200,))]
            calls.append(("evict", f"/v1/variants/{chance.choice(steady)}/evict", b"", (200, 409)))
            if pinned:
                calls.append(("unpin", f"/v1/variants/{pinned}/unpin", b"", (200,)))
            pinned = chance.choice(steady)
            calls.append(("pin", f"/v1/variants/{pinned}/pin", b"", (200,)))
            calls.append(("prefetch", f"/v1/variants/{chance.choice(steady)}/prefetch", b"", (200, 409)))
            calls.append(("unload", UNLOAD, {"lora_name": COMES_AND_GOES}, (200,)))
            calls.append(("load", LOAD, {"lora_name": COMES_AND_GOES, "lora_path": COMES_AND_GOES}, (200,)))
            for what, path, body, wanted in calls:
                status, _, answer = self.post(server, path, body)
                assert status in wanted, (what, path, status, answer)
                counts[what, status] = counts.get((what, status), 0) + 1
                time.sleep(0.05)
        return {f"{what} {status}": n for (what, status), n in counts.items()}

    def check_answers(self, answers, expected, allowed):
        assert len(answers) > 10 * N_CLIENTS, len(answers)
        for name, prompt, (status, fingerprint, text) in answers:
            if status == 404:
                assert name == COMES_AND_GOES and text == "model_not_found", (name, text)
                continue
            assert status == 200, (name, status, text)
            assert fingerprint in allowed[name] and text == expected[fingerprint, prompt], (name, prompt, fingerprint, text)
        answered = {(name, fingerprint) for name, _, (status, fingerprint, _) in answers if status == 200}
        assert len(answered) == 15, "all fourteen, one of them as both of its contents"

    def check_memory(self, server, sampler, budget):
        for _, resident, reserved in sampler.samples:
            assert resident <= reserved <= budget, (resident, reserved, budget)
        assert len(sampler.samples) > 2 * TRAFFIC_S
        server.wait_idle()
        _, _, content = server.request("GET", "/v1/variants")
        listed = json.loads(content)
        assert all(row["in_flight"] == 0 for row in listed["data"]) and listed["waiting"] == [], listed

    def check_single_flight(self, server, n_answers, changes):
        """No generation is loaded again before it has left: loads = evictions + resident generations, exactly. There are
        no more loads than requests that missed and changes that load. And 32 requests for one that is out are one load."""
        deadline = time.monotonic() + 10
        while any(row["state"] == "loading" for row in self.rows(server).values()):  # pinned and prefetched ones
            assert time.monotonic() < deadline
            time.sleep(0.02)
        before = self.counters(server)
        assert before["failures"] == 0 and before["loads"] == before["evictions"] + self.n_resident(server), before
        n_asked = sum(changes[f"{what} 200"] for what in ("replace", "load", "pin", "prefetch"))
        assert before["lookups"] == n_answers and before["loads"] <= n_answers - before["hits"] + n_asked, (before, n_asked)
        victim = next(row["id"] for row in self.rows(server).values() if row["state"] == "registered")
        together = threading.Barrier(N_CLIENTS)
        answers = []

        def client():
            together.wait()
            answers.append(self.complete(server, victim, PROMPTS[0])[0])

        threads = [threading.Thread(target=client) for _ in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = self.counters(server)
        assert answers == [200] * N_CLIENTS, answers
        misses = after["lookups"] - after["hits"] - before["lookups"] + before["hits"]
        assert after["lookups"] - before["lookups"] == N_CLIENTS and misses >= 1, (before, after)
        assert after["loads"] - before["loads"] == 1, (before, after)
        assert after["loads"] == after["evictions"] + self.n_resident(server), after

    def test_a_name_is_replaced_while_its_requests_run(self):
        prompt, n_tokens = PREAMBLE * 6, 500
        with self.all_resident("--no-enable-prefix-caching") as (server, _):
            old, new = [self.complete(server, name, prompt, n_tokens)[1:] for name in (MATH, FRENCH)]
            n_bytes = {name: self.rows(server)[name]["resident_bytes"] for name in (MATH, FRENCH)}
        assert old != new
        with self.served() as (server, root):
            hits = lambda: server.metric("vllm:prefix_cache_hits_total")
            assert self.load(server, SKILL, MATH)[0] == 200
            for _ in range(2):
                assert self.complete(server, SKILL, prompt, n_tokens)[1:] == old
            assert hits() > 0, "the prompt is in the prefix cache, of the old weights"
            generation = self.rows(server)[SKILL]["generation"]
            body = {"model": SKILL, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
            data = http_post("/v1/completions", json.dumps({**body, "stream": True}).encode(), "Connection: close\r\n")
            with contextlib.ExitStack() as stack, Sampler(server) as sampler:
                streams = [stack.enter_context(server.connect(60)) for _ in range(4)]
                for stream in streams:
                    stream.sendall(data)
                begun = [receive_event(stream) for stream in streams]
                n_hits = hits()
                status, _, answer = self.load(server, SKILL, FRENCH, load_inplace=True, expected_generation="stale")
                assert status == 409 and json.loads(answer)["error"]["code"] == "generation_mismatch", answer
                status, _, answer = self.load(server, SKILL, FRENCH, load_inplace=True, expected_generation=generation)
                assert status == 200, answer
                n_running = server.metric("vllm:num_requests_running")
                assert self.complete(server, SKILL, prompt, 4)[1] == new[0], "who comes now gets the new one"
                assert hits() == n_hits, "and nothing of the old one's prefix"
                for stream, start in zip(streams, begun):
                    assert streamed(start + read_all(stream)) == old, "who was running ends on the old one"
                ended = time.monotonic()
                assert n_running >= 1, "the old ones were running when the new one came"
                time.sleep(1.1)
            both = n_bytes[MATH] + n_bytes[FRENCH]
            assert max(resident for _, resident, _ in sampler.samples) == both, (sampler.samples, both)
            late = {sample[1:] for sample in sampler.samples if sample[0] > ended + 1}
            assert late == {(n_bytes[FRENCH], n_bytes[FRENCH])}, (late, n_bytes)
            gone = next(when for when, resident, _ in sampler.samples if when > ended and resident == n_bytes[FRENCH])
            print(f"        the old weights were seen gone {(gone - ended) * 1e3:.0f} ms after their last request", flush=True)
            assert self.complete(server, SKILL, prompt, n_tokens)[1:] == new
            assert hits() > n_hits, "the new one has a prefix of its own"

    def test_pins_of_the_start_hold_readiness_once(self):
        with tempfile.TemporaryDirectory() as directory:
            watched, away = Path(directory) / "watched", Path(directory) / "away"
            shutil.copytree(self.deltas[MATH], watched / MATH)
            flags = ("--variant-dir", watched, "--state-file", Path(directory) / "state", "--api-key", KEY)
            with Server(self.binary, {}, *flags, "--pin", MATH, "--pin", "mistyped") as server:
                is_ready = lambda: server.request("GET", "/ready")[0] == 200
                eventually(server, is_ready)
                row = self.rows(server)[MATH]
                assert row["pinned"] and row["state"] == "resident", row
                eventually(server, lambda: '"mistyped"' in server.log())
                assert server.request("POST", f"/v1/variants/{MATH}/unpin")[0] == 200
                assert server.request("POST", f"/v1/variants/{MATH}/pin")[0] == 200  # kept in the state file
                (watched / MATH).rename(away)
                eventually(server, lambda: MATH not in self.rows(server))
                assert is_ready(), "what becomes of a pin later is not the server's readiness"
                away.rename(watched / MATH)
                eventually(server, lambda: self.rows(server).get(MATH, {"pinned": False})["pinned"])
            with Server(self.binary, {}, *flags) as server:
                eventually(server, lambda: MATH in self.rows(server))
                assert self.rows(server)[MATH]["pinned"]

    def test_bad_files_are_refused_by_name_and_harm_nobody(self):
        with self.served() as (server, root):
            assert self.load(server, "good", MATH)[0] == 200
            expected, generation = self.answer(server, "good"), self.rows(server)["good"]["generation"]
            for name, wanted, code, words in make_bad_directories(self.binary, root):
                for target, more in (("bad", {}), ("good", {"load_inplace": True})):
                    status, _, body = self.load(server, target, name, **more)
                    error = json.loads(body)["error"] if status != 200 else body
                    assert status == wanted and error["code"] == code, (name, target, status, error)
                    assert str(root) not in body and all(word in error["message"] for word in words), (name, error)
            assert set(self.rows(server)) == {"good"} and self.rows(server)["good"]["generation"] == generation
            assert self.answer(server, "good") == expected and self.complete(server, "bad", "x")[0] == 404
            assert self.counters(server)["failures"] == 0 and self.n_resident(server) == 1


    def test_a_request_waits_for_weights_only_so_long(self):
        with self.served("--variant-wait-timeout", "1") as (server, root):
            assert self.load(server, MATH, root / MATH)[0] == 200
            n_bytes = self.rows(server)[MATH]["resident_bytes"]
        with self.served("--variant-wait-timeout", "1", "--variant-bytes", str(n_bytes * 3 // 2)) as (server, root):
            for name in (MATH, FRENCH):
                assert self.load(server, name, root / name)[0] == 200
            assert self.complete(server, MATH, "x")[0] == 200
            ended = threading.Event()

            def keep_leased(n_first):
                n_tokens = n_first  # unlike the others', so that no two of them ever end in the same step
                while not ended.is_set():
                    assert self.complete(server, MATH, "x", n_tokens)[0] == 200
                    n_tokens = 1000

            threads = [threading.Thread(target=keep_leased, args=(n_first,)) for n_first in (250, 500, 750, 1000)]
            for thread in threads:
                thread.start()
            eventually(server, lambda: self.rows(server)[MATH]["in_flight"] == len(threads))
            began = time.monotonic()
            status, head, content = server.request("POST", "/v1/completions", {"model": FRENCH, "prompt": "x", "max_tokens": 4})
            took = time.monotonic() - began
            ended.set()
            for thread in threads:
                thread.join()
            assert status == 503 and "Retry-After" in head and 0.9 < took < 2.5, (status, head, took)
            assert "variant-wait-timeout" in content.decode() and FRENCH in content.decode(), content
            assert self.complete(server, FRENCH, "x")[0] == 200  # its load went on


def eventually(server, holds):
    """Waits half a minute at most; the log when it never holds."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


@contextlib.contextmanager
def root_of(directories):
    """A root that holds copies of all directories by name."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, path in directories.items():
            shutil.copytree(path, root / name)
        yield root


def receive_event(stream):
    """What came until the first whole event with text."""
    received = b""
    while received.count(b'"text"') < 2:
        part = stream.recv(4096)
        assert part, received
        received += part
    return received


def streamed(answer):
    """Fingerprint and text of a whole stream."""
    chunks = [json.loads(line) for line in re.findall(rb"^data: (\{.*\})\r?$", answer, re.MULTILINE)]
    assert b"data: [DONE]" in answer and chunks, answer[-200:]
    fingerprint, = {chunk["system_fingerprint"] for chunk in chunks}
    return fingerprint, "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def make_bad_directories(binary, root):
    """Directories that must be refused: [(name, status, code, words of the message)]."""
    copy = lambda source, name: shutil.copytree(root / source, root / name)
    tensors_of = lambda directory: next(directory.glob("*.safetensors"))
    command = [binary, "compress", "--base", finetune_directory(MATH), "--finetune", finetune_directory(FRENCH), "--out",
               root / "for-another-base", "--code", "rank1", "--calibrate", "none"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)

    flipped = tensors_of(copy(FRENCH, "flipped-bit"))
    content = bytearray(flipped.read_bytes())
    content[-100] ^= 1
    flipped.write_bytes(content)

    def poison(header, data):
        name = next(name for name in sorted(header) if name.endswith(".scale_row") or "lora_B" in name)
        begin = header[name]["data_offsets"][0]
        nan = struct.pack("<f", float("nan")) if header[name]["dtype"] == "F32" else b"\xc0\x7f"
        data[begin:begin + len(nan)] = nan

    def empty(header, data):
        for name in [name for name in header if name != "__metadata__"]:
            del header[name]
        data.clear()

    def rename(header, _):
        for name in [name for name in header if name != "__metadata__"]:
            header[name.replace("_proj", "_part")] = header.pop(name)

    rewrite_tensors(tensors_of(copy(FRENCH, "nan-scale")), poison)
    rewrite_tensors(tensors_of(copy("format-title", "nan-adapter")), poison)
    rewrite_tensors(tensors_of(copy(FRENCH, "empty-delta")), empty)
    rewrite_tensors(tensors_of(copy("format-title", "other-modules")), rename)
    config = copy("format-title", "no-module") / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": ["c_attn"]}))
    (root / "nothing").mkdir()
    (root / "broken").mkdir()
    (root / "broken" / "adapter_config.json").write_text("{")
    return [("for-another-base", 400, "does_not_fit", ["base"]), ("flipped-bit", 400, "corrupt_files", ["digest"]),
            ("nan-scale", 400, "corrupt_files", ["scale_row", "finite"]),
            ("nan-adapter", 400, "corrupt_files", ["lora_B", "finite"]), ("empty-delta", 400, "corrupt_files", []),
            ("other-modules", 400, "corrupt_files", []), ("no-module", 400, "corrupt_files", ["target_modules"]),
            ("nothing", 404, "not_found", []), ("broken", 400, "corrupt_files", []), ("absent", 404, "not_found", [])]
