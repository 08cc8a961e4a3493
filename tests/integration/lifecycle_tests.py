"""Start, signals, limits of the process: every test has a server of its own."""
import json
import os
import signal
import subprocess
import threading
import time

from harness import BASE, FAMILY, KEY, Server, chat_body, http_post, read_all, status_of

CHAT = "/v1/chat/completions"


class LifecycleTests:
    def __init__(self, binary, deltas):
        self.binary = binary
        self.deltas = deltas

    def start(self, *flags, **options):
        return Server(self.binary, self.deltas, *flags, **options)

    def open_streams(self, server, n_streams, max_tokens):
        """Streams that have begun."""
        streams = []
        body = json.dumps(chat_body(max_tokens=max_tokens, ignore_eos=True, stream=True)).encode()
        for _ in range(n_streams):
            connection = server.connect(60)
            connection.sendall(http_post(CHAT, body))
            streams.append(connection)
        return [(connection, connection.recv(64)) for connection in streams]

    def test_sigterm_drains_fifty_streams_then_ends(self):
        with self.start("--shutdown-timeout", "60") as server:
            streams = self.open_streams(server, 50, 40)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            if server.process.poll() is None:
                try:
                    assert server.request("GET", "/ready")[0] == 503
                    assert server.request("POST", CHAT, chat_body())[0] == 503
                except (ConnectionRefusedError, ConnectionResetError):
                    pass  # all streams have ended already, and the server with them
            for connection, begun in streams:
                assert (begun + read_all(connection)).rstrip().endswith(b"data: [DONE]\n\n\r\n0"), "cut off"
            assert server.process.wait(20) == 0, server.log()

    def test_sigterm_cancels_what_does_not_end_in_time(self):
        with self.start("--shutdown-timeout", "0") as server:
            streams = self.open_streams(server, 10, 200)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0, server.log()
            for connection, begun in streams:
                answer = begun + read_all(connection)
                assert b"shutting_down" in answer or b"[DONE]" in answer

    def test_second_signal_ends_at_once(self):
        with self.start("--shutdown-timeout", "600") as server:
            hold = server.connect()
            hold.sendall(http_post(CHAT, json.dumps(chat_body(max_tokens=200, ignore_eos=True, stream=True)).encode()))
            hold.recv(64)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.15)
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(5) in (0, 128 + signal.SIGTERM)

    def test_few_descriptors_still_answer_health(self):
        with self.start(n_descriptors=64) as server:
            idle = [server.connect() for _ in range(150)]
            assert server.request("GET", "/health")[0] == 200
            assert server.request("POST", CHAT, chat_body(max_tokens=2))[0] == 200
            for connection in idle:
                connection.close()

    def test_full_queue_is_429(self):
        with self.start("--max-num-seqs", "1", "--max-queued-requests", "1") as server:
            body = json.dumps(chat_body(max_tokens=150, ignore_eos=True)).encode()
            answers = []
            def ask():
                answers.append(server.send_raw(http_post(CHAT, body, "Connection: close\r\n"), timeout=120))
            threads = [threading.Thread(target=ask) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            statuses = [status_of(answer) for answer in answers]
            assert set(statuses) == {200, 429}, statuses
            refused = next(answer for answer in answers if status_of(answer) == 429)
            assert b"Retry-After: " in refused and b"rate_limit_exceeded" in refused

    def test_one_byte_a_second_is_408(self):
        with self.start() as server, server.connect(60) as connection:
            start = time.monotonic()
            for byte in b"GET /health HTTP/1.1\r\nHost: abcdefgh\r\n":
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    break
                connection.settimeout(1)
                try:
                    answer = connection.recv(4096)
                    break
                except TimeoutError:
                    answer = b""
            assert status_of(answer) == 408 and time.monotonic() - start < 25, answer

    def test_open_bind_without_a_key_warns(self):
        with self.start("--host", "0.0.0.0") as server:
            time.sleep(0.3)
            assert "ANYONE" in server.log()

    def test_summary_names_base_variants_and_bytes(self):
        with self.start() as server:
            log = server.log()
            for word in (BASE, "zen-mini-math", "delta", "format-title", "lora", "separate copies", "KV cache",
                         f"http://127.0.0.1:{server.port}"):
                assert word in log, (word, log)

    def run_serve(self, *flags, **environment):
        return subprocess.run([str(self.binary), "serve", *map(str, flags)], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **environment})

    def test_start_errors_name_the_cause(self):
        model = FAMILY / BASE
        for flags, code, words in (
                (("--model", "/nowhere"), None, "nowhere"),
                (("--model", model, "--delta-modules", "nopath"), 2, "NAME=PATH"),
                (("--model", model, "--delta-modules", "x=/nowhere"), None, "x"),
                (("--model", model, "--api-key", ""), 2, "key"),
                (("--model", model, "--api-key", "a\nb"), 2, "key"),
                (("--model", model, "--host", ""), 2, "host"),
                (("--model", model, "--served-model-name", "a\nb"), 2, "served-model-name"),
                (("--model", model, "--port", "0", "--port-file", "/dev/null"), 1, "/dev/null"),
                (("--model", model, "--host", "192.0.2.1"), 1, "192.0.2.1"),
                (("--model", model, "--kv-cache-dtype", "int3"), 2, "int3"),
                (("--model", model, "--portt", "1"), 2, "--port")):
            done = self.run_serve(*flags)
            assert done.returncode != 0 and (code is None or done.returncode == code), (flags, done)
            assert words in done.stderr, (flags, done.stderr)

    def test_a_key_variable_without_a_key_is_refused(self):
        for value in ("", ","):
            done = self.run_serve("--model", FAMILY / BASE, "--port", "0", DELTAFOLD_API_KEY=value)
            assert done.returncode == 2 and "DELTAFOLD_API_KEY is set and holds no key" in done.stderr, (value, done)

    def test_taken_port_is_named_before_the_model_is_looked_at(self):
        with self.start() as server:
            done = self.run_serve("--model", "/nowhere", "--port", server.port)
            assert done.returncode == 1 and str(server.port) in done.stderr, done
            assert "/nowhere" not in done.stderr, done
