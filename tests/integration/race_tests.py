"""An attacker, or a clumsy controller, at the routes that change what is served: many clients at one name, files that change
while they are read, names and paths of every kind. DELTAFOLD_RACE_SECONDS lengthens the races."""
import json
import os
import random
import shutil
import threading
import time

from admin_calls import FRENCH, LOAD, MATH, UNLOAD, AdminCalls
from harness import BASE

RACE_S = float(os.environ.get("DELTAFOLD_RACE_SECONDS", "4"))
N_CLIENTS = 32
NAMES = ["", "\x00", "a\nb", "\x1b[2J", "\u009b2J", "a\u202eb", "\u200b", "\ufeff", "a b", "a,b", "a=b", 'a"b', "a\\b", "..", "../x", "x/..",
         "x//y", "/", "//", "x" * 257, "x" * 10_000, "\u00a0", BASE + ":x", "\ud800"]
PATHS = ["", "/", "//", "..", ".", "../..", "/etc", "/etc/passwd", "/proc/self/root", "/proc/self/fd", "/dev/stdin", "/dev/zero", "~", "~root",
         "\x00", "x\x00y", "a" * 5_000, "../" * 1000, "zen-mini-math/../../..", "zen-mini-math/adapter_config.json", "file:///etc",
         "http://127.0.0.1/x", "${HOME}", "$(id)", "..\\..", "%2e%2e%2f"]


class RaceTests(AdminCalls):
    def together(self, seconds, *bodies):
        """Runs the bodies over and over, each on a thread of its own; what one of them raises is raised."""
        until, errors = time.monotonic() + seconds, []

        def run(body, seed):
            chance = random.Random(seed)
            try:
                while time.monotonic() < until and not errors:
                    body(chance)
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=run, args=(body, seed)) for seed, body in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def completion(self, server, model):
        status, _, content = server.request("POST", "/v1/completions", {"model": model, "prompt": "the contract", "max_tokens": 8,
                                                                        "temperature": 0})
        return status, json.loads(content)

    def fingerprints(self, server, names):
        return {name: self.completion(server, name)[1]["system_fingerprint"] for name in names}

    def test_thirty_two_clients_load_and_unload_one_name(self):
        with self.served("--variant-bytes", "40MB") as (server, root):
            for name in (MATH, FRENCH):
                assert self.load(server, name, root / name)[0] == 200
            allowed = set(self.fingerprints(server, (MATH, FRENCH)).values())
            expected = self.completion(server, MATH)[1]["choices"][0]["text"]
            assert self.post(server, UNLOAD, {"lora_name": FRENCH})[0] == 200
            counts = {}

            def client(chance):
                what = chance.choice(["load", "load", "replace", "unload", "ask", "ask", "ask", "pin", "unpin", "evict", "prefetch", "list"])
                if what in ("load", "replace"):
                    status, _, text = self.load(server, "one", root / chance.choice((MATH, FRENCH)), load_inplace=what == "replace",
                                                pinned=chance.random() < 0.1)
                    assert status in (200, 400, 429) and (status != 400 or "already" in text), (status, text)
                elif what == "unload":
                    status, _, text = self.post(server, UNLOAD, {"lora_name": "one"})
                    assert status in (200, 404, 429), (status, text)
                elif what == "ask":
                    status, answer = self.completion(server, "one")
                    assert status in (200, 404), (status, answer)
                    assert status == 404 or answer["system_fingerprint"] in allowed, answer
                elif what == "list":
                    status = server.request("GET", "/v1/variants")[0]
                    assert status == 200
                else:
                    status, _, text = self.post(server, f"/v1/variants/one/{what}", {})
                    assert status in (200, 404, 409, 429), (status, text)
                counts[what, status] = counts.get((what, status), 0) + 1

            self.together(RACE_S, *[client] * N_CLIENTS)
            print(f"        {dict(sorted(counts.items()))}", flush=True)
            self.post(server, UNLOAD, {"lora_name": "one"})
            assert self.completion(server, MATH)[1]["choices"][0]["text"] == expected
            rows = self.rows(server)
            assert set(rows) == {MATH} and not rows[MATH]["pinned"] and rows[MATH]["in_flight"] == 0, rows
            until = time.monotonic() + 5  # nothing of what was unloaded is kept
            while server.metric("deltafold_variants_reserved_bytes") > rows[MATH]["resident_bytes"] and time.monotonic() < until:
                time.sleep(0.05)
            assert server.metric("deltafold_variants_reserved_bytes") <= rows[MATH]["resident_bytes"]

    def test_thousands_of_names_and_paths_that_are_not_there(self):
        with self.served() as (server, root):
            before = server.resident_bytes()
            n_lines = len(server.request("GET", "/metrics")[2].splitlines())

            def client(chance):
                for _ in range(40):
                    name, path = f"n{chance.random()}", f"absent-{chance.random()}"
                    status, _, text = self.load(server, name, path)
                    assert status == 404 and "cannot be found" in text and str(root) not in text, (status, text)
                    assert self.post(server, UNLOAD, {"lora_name": name})[0] == 404
                    assert self.completion(server, name)[0] == 404

            self.together(RACE_S, *[client] * 4)
            assert len(server.request("GET", "/metrics")[2].splitlines()) <= n_lines + 20
            assert server.resident_bytes() < before + 64 * 2**20, (before, server.resident_bytes())

    def test_names_and_paths_of_every_kind(self):
        with self.served() as (server, root):
            for name in NAMES:
                status, _, text = self.load(server, name, root / MATH)
                assert status == 400 and len(text) < 2000, (name, status, text)
                assert self.post(server, UNLOAD, {"lora_name": name})[0] in (400, 404), name
            (root / "out").symlink_to("/etc")
            (root / "loop").symlink_to("loop")
            shutil.copytree(root / MATH, root / "linked-file")
            (root / "linked-file" / "notes.txt").symlink_to("/etc/passwd")
            shutil.copytree(root / MATH, root / "fifo")
            os.mkfifo(root / "fifo" / "chat_template.jinja")
            for path in (*PATHS, "out", "loop", "linked-file", "fifo", "out/../out"):
                status, _, text = self.load(server, "new", path)
                assert status in (400, 404) and "root:" not in text and str(root) not in text, (path, status, text)
            assert set(self.rows(server)) == set()
            assert self.completion(server, BASE)[0] == 200

    def test_an_adapter_that_changes_while_it_is_loaded(self):
        with self.served() as (server, root):
            assert self.load(server, MATH, root / MATH)[0] == 200
            expected = self.completion(server, MATH)[1]["choices"][0]["text"]
            shutil.copytree(root / "format-title", root / "moving")
            files = {path.name: path.read_bytes() for path in (root / "moving").iterdir() if path.is_file()}
            seen = {}

            def writer(chance):
                name = chance.choice(sorted(files))
                content = bytearray(files[name])
                how = chance.random()
                if how < 0.15:
                    content = content[:chance.randrange(len(content) + 1)]
                elif how < 0.3:
                    for _ in range(3):
                        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                path = root / "moving" / name
                if chance.random() < 0.5:
                    path.write_bytes(content)  # in place
                else:
                    (root / "moving.tmp").write_bytes(content)
                    os.replace(root / "moving.tmp", path)
                time.sleep(0.02)

            def loader(chance):
                status, _, text = self.load(server, "moving", root / "moving", load_inplace=True)
                assert status in (200, 400, 404, 500, 503), (status, text)
                assert str(root) not in text, text
                seen["load", status] = seen.get(("load", status), 0) + 1
                status, answer = self.completion(server, "moving")
                assert status in (200, 404, 500, 503), (status, answer)
                seen["ask", status] = seen.get(("ask", status), 0) + 1
                if chance.random() < 0.3:
                    self.post(server, "/v1/variants/moving/evict", {})

            def other(_):
                status, answer = self.completion(server, MATH)
                assert status == 200 and answer["choices"][0]["text"] == expected, (status, answer)

            self.together(RACE_S, writer, loader, loader, other, other)
            print(f"        {dict(sorted(seen.items()))}", flush=True)
            for name, content in files.items():
                (root / "moving.tmp").write_bytes(content)
                os.replace(root / "moving.tmp", root / "moving" / name)
            assert self.load(server, "moving", root / "moving", load_inplace=True)[0] == 200
            assert self.completion(server, "moving")[0] == 200
