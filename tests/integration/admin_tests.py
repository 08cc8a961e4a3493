"""What is served changes while the server runs: in the words of Kubernetes controllers, by hostile hands, by the command
line. A server without variants of its own, over a root that every test fills as it likes."""
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from admin_calls import CHAT, FRENCH, LOAD, MATH, UNLOAD, AdminCalls
from harness import BASE, FAMILY, KEY, Server, chat_body, http_post, read_all


class AdminTests(AdminCalls):
    def resident(self, server):
        _, _, content = server.request("GET", "/metrics")
        series = re.findall(rb"^vllm:lora_requests_info\{(.*)\} \S+$", content, re.MULTILINE)
        assert len(series) == 1, series
        return set(re.search(rb'running_lora_adapters="([^"]*)"', series[0])[1].decode().split(",")) - {""}

    # The calls that controllers make, and what of the answers they look at.

    def test_production_stack_loads_sees_and_unloads(self):
        with self.served() as (server, root):
            adapters = lambda: [card for card in self.cards(server).values() if card["parent"] is not None]
            assert adapters() == []
            path = str(root / "format-title")
            status, _, body = self.load(server, "title", path)
            assert (status, body) == (200, "Success: LoRA adapter 'title' added successfully."), (status, body)
            card, = adapters()
            assert (card["id"], card["root"], card["object"], card["parent"]) == ("title", path, "model", BASE), card
            assert isinstance(card["created"], int) and isinstance(card["owned_by"], str)
            # It takes this 400 for a success, by the members at the top of the body.
            status, _, body = self.load(server, "title", path)
            error = json.loads(body)
            assert status == 400 and error["type"] == "InvalidUserInput", body
            assert "has already been loaded" in error["message"], body
            status, _, body = self.post(server, UNLOAD, {"lora_name": "title"})
            assert (status, body) == (200, "Success: LoRA adapter 'title' removed successfully."), (status, body)
            assert adapters() == []

    def test_aibrix_lists_loads_once_and_unloads(self):
        with self.served() as (server, root):
            assert "sql-adapter" not in self.cards(server)
            status, _, body = self.load(server, "sql-adapter", root / "format-title")
            assert status in (200, 201), body
            assert "sql-adapter" in self.cards(server)
            assert self.post(server, UNLOAD, {"lora_name": "sql-adapter"})[0] == 200
            assert "sql-adapter" not in self.cards(server)
            # SGLang's paths, which it uses for pods of that engine.
            assert self.post(server, "/load_lora_adapter", {"lora_name": "a", "lora_path": "format-title"})[0] == 200
            assert self.post(server, "/unload_lora_adapter", {"lora_name": "a"})[0] == 200

    def test_kubeai_loads_again_and_unloads_after_the_files_are_gone(self):
        with self.served() as (server, root):
            directory = root / "adapters" / "k8s-id"
            shutil.copytree(root / "format-title", directory)
            assert self.load(server, "k8s-id", directory)[0] == 200
            status, _, body = self.load(server, "k8s-id", directory)
            for error in (json.loads(body), json.loads(body)["error"]):  # of its older and its newer client
                assert status == 400 and error["type"] == "InvalidUserInput", body
                assert "already" in error["message"] and "loaded" in error["message"], body
            shutil.rmtree(directory)
            assert self.post(server, UNLOAD, {"lora_name": "k8s-id"})[0] == 200
            status, _, body = self.post(server, UNLOAD, {"lora_name": "k8s-id"})
            assert status == 404 and json.loads(body)["error"]["type"] == "NotFoundError" and "cannot be found" in body

    # What is loaded answers, as itself.

    def test_loaded_variants_answer_as_those_given_at_the_start(self):
        with Server(self.binary, self.deltas, "--batch-invariant") as server:
            expected = {name: self.answer(server, name) for name in (BASE, MATH, "format-title")}
        with self.served() as (server, root):
            for name in (MATH, "format-title"):
                assert self.load(server, name, name)[0] == 200
            assert {name: self.answer(server, name) for name in expected} == expected
            assert self.rows(server)[MATH]["state"] == "resident"
            assert {MATH, "format-title"} <= self.resident(server)

    def test_pin_evict_and_prefetch_change_what_is_resident(self):
        with self.served() as (server, root):
            assert self.load(server, "org/math", MATH, pinned=True)[0] == 200
            self.answer(server, "org/math")
            assert self.resident(server) == {"org/math"}
            assert self.post(server, "/v1/variants/org%2Fmath/evict", b"")[0] == 409
            assert self.post(server, "/v1/variants/org/math/unpin", b"")[0] == 200
            assert self.post(server, "/v1/variants/org%2Fmath/evict", b"")[0] == 200
            assert self.resident(server) == set() and self.cards(server)["org/math"]["state"] == "registered"
            assert self.post(server, "/v1/variants/org%2Fmath/prefetch", b"")[0] == 200
            deadline = time.monotonic() + 30
            while self.resident(server) != {"org/math"}:
                assert time.monotonic() < deadline, self.rows(server)
                time.sleep(0.02)
            assert self.post(server, UNLOAD, {"lora_name": "org/math"})[0] == 200
            deadline = time.monotonic() + 30
            while b"org/math" in server.request("GET", "/metrics")[2]:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert self.post(server, "/v1/variants/org%2Fmath/pin", b"")[0] == 404

    # Hostile hands.

    def test_paths_do_not_leave_the_root(self):
        with self.served() as (server, root):
            outside = root.parent / "outside"
            shutil.copytree(root / MATH, outside)
            (root / "link-out").symlink_to(outside)
            shutil.copytree(root / MATH, root / "file-out")
            victim = next((root / "file-out").glob("*.safetensors"))
            victim.unlink()
            victim.symlink_to(next(outside.glob("*.safetensors")))
            (root / "fifo-in").mkdir()
            os.mkfifo(root / "fifo-in" / "adapter_config.json")
            os.mkfifo(root / "fifo")
            (root / "device").mkdir()
            (root / "device" / "delta_config.json").symlink_to("/dev/zero")
            for path in ("..", "../outside", f"{MATH}/../../outside", outside, "/etc", "/", "/proc/self/cwd", "link-out",
                         "file-out", "fifo-in", "fifo", "device", "/dev/zero", "", "a\0b", "a" * 10_000, f"{root}x"):
                start = time.monotonic()
                status, _, body = self.load(server, "x", path)
                assert status == 400 and json.loads(body)["error"]["type"] == "InvalidUserInput", (path, status, body)
                assert time.monotonic() - start < 10 and str(root) not in body and "outside" not in body, body
            assert self.rows(server) == {}
            (root / "by-link").symlink_to(root / MATH)  # inside, that is fine
            assert self.load(server, "x", "by-link")[0] == 200

    def test_names_that_break_lists_headers_and_paths_are_refused(self):
        with self.served() as (server, root):
            for name in ("", "a,b", "a\nb", 'a"b', "a'b", "a b", "../a", "a/../b", "/a", "a/", "a=b", "\x7f", "n" * 10_000,
                         "a\\b", BASE):
                status, _, body = self.load(server, name, MATH)
                assert status == 400 and len(body) < 2000, (name[:50], status, body)
            for name in ("org/model-1.5_x", "größe", "名前", "a:b"):
                assert self.load(server, name, MATH)[0] in (200, 400), name
                quoted = "".join(f"%{byte:02X}" for byte in name.encode())
                assert self.post(server, f"/v1/variants/{quoted}/prefetch", b"")[0] in (200, 404), name
            server.request("GET", "/metrics")
            assert server.process.poll() is None

    def test_a_hundred_thousand_bad_names_leave_no_trace(self):
        with self.served() as (server, root):
            assert self.load(server, "math", MATH)[0] == 200
            self.answer(server, "math")
            ask = (lambda i: f"GET /v1/models/guess-{i} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode(),
                   lambda i: http_post(CHAT, json.dumps(chat_body(f"guess-{i}")).encode()),
                   lambda i: f"POST /v1/variants/guess-{i}/pin HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
                             "Content-Length: 0\r\n\r\n".encode())
            counts = (80_000, 15_000, 5_000)
            lines = lambda: server.request("GET", "/metrics")[2].count(b"\n")

            def send_all(kind, first, n):
                data = b"".join(ask[kind](i) for i in range(first, first + n))
                with server.connect(60) as connection:
                    sender = threading.Thread(target=connection.sendall, args=(data,))
                    sender.start()
                    received, found = b"", 0
                    while found < n:
                        part = connection.recv(1 << 16)
                        assert part, found
                        received += part
                        found += received.count(b"HTTP/1.1 404")
                        received = received[-11:]
                    sender.join()

            for kind in range(3):
                send_all(kind, 0, 200)
            before, n_lines = server.resident_bytes(), lines()
            for kind, n in enumerate(counts):
                for first in range(0, n, 1000):
                    send_all(kind, 1000 + first, 1000)
            grown = server.resident_bytes() - before
            _, _, metrics = server.request("GET", "/metrics")
            assert b"guess" not in metrics and lines() == n_lines
            print(f"        resident: {grown >> 10} KiB more after {sum(counts)} names", flush=True)
            assert grown < 16 << 20 or server.sanitized, grown

    def test_one_of_many_loads_of_a_name_wins(self):
        with self.served() as (server, root):
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(self.load(server, "math", MATH))) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            statuses = sorted(status for status, _, _ in answers)
            assert statuses[0] == 200 and set(statuses[1:]) == {400}, statuses
            assert all("has already been loaded" in body for status, _, body in answers if status == 400)

    def test_nothing_is_loaded_while_draining(self):
        with self.served("--shutdown-timeout", "60") as (server, root):
            with server.connect(60) as stream:
                body = json.dumps(chat_body(max_tokens=220, ignore_eos=True, stream=True)).encode()
                stream.sendall(http_post(CHAT, body, "Connection: close\r\n"))
                stream.recv(64)
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.15)
                try:
                    status, _, answer = self.load(server, "math", MATH)
                    assert status == 503 and json.loads(answer)["error"]["code"] == "shutting_down", answer
                except (ConnectionRefusedError, ConnectionResetError):
                    pass  # the stream has ended already, and the server with it
                read_all(stream)
            assert server.process.wait(20) == 0, server.log()

    def test_only_the_admin_key_changes_anything(self):
        with self.served("--admin-api-key", "admin-secret") as (server, root):
            routes = [LOAD, UNLOAD, "/load_lora_adapter", "/unload_lora_adapter",
                      *[f"/v1/variants/math/{action}" for action in ("pin", "unpin", "prefetch", "evict")]]
            body = {"lora_name": "math", "lora_path": MATH}
            for path in routes:
                for key in (KEY, "admin-secre", "admin-secrets", ""):
                    status, _, answer = self.post(server, path, body, f"Authorization: Bearer {key}")
                    assert status == 401 and "invalid_api_key" in answer, (path, key, status)
                for header in ("Origin: http://evil.example", "Origin: null", "Host: evil.example"):
                    status, _, answer = self.post(server, path, body, "Authorization: Bearer admin-secret", header)
                    assert status == 403 and "foreign" in answer, (path, header, status, answer)
            assert self.rows(server) == {}
            assert self.post(server, LOAD, body, "Authorization: Bearer admin-secret")[0] == 200
            assert server.request("GET", "/v1/models", headers=["Authorization: Bearer admin-secret"])[0] == 200

    def test_loading_is_off_without_a_root(self):
        with Server(self.binary, {}) as server:
            status, _, answer = self.load(server, "math", self.deltas[MATH])
            assert status == 403 and "--variant-root" in answer, answer
            done = subprocess.run([self.binary, "serve", "--model", FAMILY / BASE, "--port", "0", "--variant-root", "/no"],
                                  capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and "/no" in done.stderr, done

    # The command line.

    def variants(self, server, *arguments, code=0, key=KEY):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DELTAFOLD_")}
        command = [self.binary, "variants", *map(str, arguments), "--server", f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                              env={**environment, "DELTAFOLD_API_KEY": key})
        assert done.returncode == code, (arguments, done)
        return done.stdout if code == 0 else done.stderr

    def test_the_command_line_does_all_of_it(self):
        with self.served() as (server, root):
            assert "added successfully" in self.variants(server, "load", "org/math", MATH, "--pinned")
            self.answer(server, "org/math")
            table = self.variants(server, "list")
            line = next(line for line in table.splitlines() if line.startswith("org/math"))
            assert "delta" in line and "resident" in line and "yes" in line and "reserved of" in table, table
            row, = json.loads(self.variants(server, "list", "--json"))["data"]
            assert row["id"] == "org/math" and row["pinned"], row
            assert "409" in self.variants(server, "evict", "org/math", code=1)
            self.variants(server, "pin", "org/math", "--expected-generation", "stale", code=1)
            assert "org/math: resident" in self.variants(server, "unpin", "org/math", "--expected-generation", row["generation"])
            assert json.loads(self.variants(server, "evict", "org/math", "--json"))["state"] == "registered"
            self.variants(server, "prefetch", "org/math")
            assert "has already been loaded" in self.variants(server, "load", "org/math", FRENCH, code=1)
            assert "added" in self.variants(server, "load", "org/math", FRENCH, "--replace")
            assert "removed successfully" in self.variants(server, "unload", "org/math")
            assert "cannot be found" in self.variants(server, "unload", "org/math", code=1)
            assert "API key" in self.variants(server, "list", code=1, key="wrong")
            self.variants(server, "list", "--interval", "0", code=2)
            self.variants(server, "frobnicate", code=2)
        assert "no answer" in self.variants(server, "list", code=1)

    def test_watching_prints_again_until_the_server_ends(self):
        with self.served() as (server, root):
            command = [self.binary, "variants", "list", "--watch", "--json", "--api-key", KEY, "--server",
                       f"http://127.0.0.1:{server.port}"]
            with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as watching:
                assert json.loads(watching.stdout.readline())["data"] == []
                assert self.load(server, "math", MATH)[0] == 200
                while not json.loads(watching.stdout.readline())["data"]:
                    pass
                server.process.send_signal(signal.SIGTERM)
                assert watching.wait(30) == 1 and "no answer" in watching.stderr.read()
