"""Bytes that no well-behaved client sends, and clients that leave or stall, against the real binary."""
import json
import socket
import threading
import time

from harness import BASE, KEY, chat_body, http_post, read_all, status_of

AUTH = f"Authorization: Bearer {KEY}\r\n".encode()
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class HostileTests:
    def __init__(self, server):
        self.server = server

    def alive(self):
        assert self.server.process.poll() is None, self.server.log()
        assert self.server.request("GET", "/health")[0] == 200

    def test_broken_http_is_400(self):
        start = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + AUTH
        for data in (b"GET / HTTP/1.1\nHost: a\n\n", b"\x00\x01\x02\r\n\r\n",
                     start + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                     start + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", start + b"Content-Length: -1\r\n\r\n",
                     start + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                     start + b"Transfer-Encoding: chunked\r\n\r\n5\nhello"):
            answer = self.server.send_raw(data)
            assert status_of(answer) == 400, (data, answer[:200])
        assert status_of(self.server.send_raw(start + b"Content-Length: 9223372036854775808\r\n\r\n")) == 413
        self.alive()

    def test_huge_headers_are_431(self):
        assert status_of(self.server.send_raw(b"GET / HTTP/1.1\r\nX: " + b"a" * (10 << 20))) == 431
        assert status_of(self.server.send_raw(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:b\r\n" * 10000 + b"\r\n")) == 431
        self.alive()

    def test_other_protocols_are_closed(self):
        assert self.server.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""
        assert self.server.send_raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") == b""
        self.alive()

    def test_huge_chunked_body_is_413_in_flat_memory(self):
        before = self.server.resident_bytes()
        with self.server.connect(60) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + AUTH + b"Transfer-Encoding: chunked\r\n\r\n")
            piece = b"6\r\nabcdef\r\n" * 20000
            try:
                for _ in range(300):  # 36 MB of body, limit 16
                    connection.sendall(piece)
            except OSError:
                pass
            assert status_of(read_all(connection)) == 413
        assert self.server.resident_bytes() - before < 64 << 20
        self.alive()

    def test_large_bodies_take_bounded_memory_and_leave_none(self):
        wrap = lambda field, value: b'{"model":"%s","%s":%s}' % (BASE.encode(), field, value)
        messages = lambda n: wrap(b"messages", b"[" + b",".join([b'{"role":"user","content":""}'] * n) + b"]")
        text = json.dumps(chat_body(text="word " * 3_000_000)).encode()
        wide = b"{" + b",".join(b'"k%d":1' % i for i in range(1_200_000)) + b"}"
        bodies = (messages(400_000), messages(16_384), wrap(b"messages", b"[" + b",".join([b"[]"] * 5_500_000) + b"]"),
                  wrap(b"chat_template_kwargs", wide), text)
        self.server.request("POST", CHAT, chat_body(max_tokens=2))
        before, peak, done = self.server.resident_bytes(), 0, threading.Event()

        def watch():
            nonlocal peak
            while not done.is_set():
                peak = max(peak, self.server.resident_bytes())
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(4):
                for body in bodies:
                    status, _, content = self.server.request("POST", CHAT, body)
                    assert status == 400, (status, body[:60], content[:200])
        finally:
            done.set()
            watcher.join()
        deadline = time.monotonic() + 20  # memory goes back just after the answer
        while self.server.resident_bytes() - before > 32 << 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        after = self.server.resident_bytes()
        print(f"        resident: {before >> 20} MiB before, {peak >> 20} at most, {after >> 20} after", flush=True)
        if not self.server.sanitized:
            assert peak - before < 200 << 20 and after - before < 32 << 20, (before, peak, after)
        self.alive()

    def test_hostile_json_is_400(self):
        deep = b'{"model":"m","messages":' + b"[" * 100000
        for body in (b"", b"{", b"[]", b"null", deep, b"\xef\xbb\xbf{}", b'{"model":"\xff"}', b'{"model":NaN}',
                     b'{"model":"a","model":"b"}', b'{"temperature":1e400}', b'{"model":"\\ud800"}', b"\x00" * 100):
            status, _, content = self.server.request("POST", CHAT, body)
            assert status == 400, (body[:40], status)
            assert json.loads(content)["error"]["code"] == "invalid_json", (body[:40], content)
        self.alive()

    def test_hostile_fields_are_400_and_named(self):
        for field, value in (("max_tokens", -1), ("max_tokens", 0), ("max_tokens", 2**31), ("max_tokens", "5"),
                             ("max_tokens", 1.5), ("n", 10**9), ("temperature", -1), ("temperature", 1e300), ("top_p", 0),
                             ("top_p", 2), ("presence_penalty", 1e30), ("top_logprobs", 10**6), ("seed", 2**64),
                             ("stop", [""]), ("stop", ["a"] * 10000), ("stop", "a" * (1 << 20)),
                             ("logit_bias", {str(i): 1 for i in range(20000)}), ("messages", []), ("stream", "yes"),
                             ("chat_template", "{{ 1 }}"), ("chat_template_kwargs", {"messages": []}),
                             ("chat_template_kwargs", {"a": "x" * 65536}), ("messages", [chat_body()["messages"][0]] * 16385)):
            status, _, content = self.server.request("POST", CHAT, {**chat_body(), field: value})
            error = json.loads(content)["error"]
            assert status == 400, (field, value if len(str(value)) < 50 else "...", status)
            assert field in (error["param"] or "") or field in error["message"], (field, error)
        for prompt in ("", [], [[]], [-1], [2**31], [10**8], ["a", 1], {}):
            status, _, content = self.server.request("POST", COMPLETIONS, {"model": BASE, "prompt": prompt})
            assert status == 400 and "prompt" in content.decode(), (prompt, status, content)
        self.alive()

    def test_ten_megabytes_of_one_letter_take_linear_time(self):
        for text in ("a" * (10 << 20), "\u200d" * (2 << 20)):
            start = time.monotonic()
            threads = [threading.Thread(target=self.alive)]
            threads[0].start()
            status, code = self.server.error_code(CHAT, chat_body(text=text))
            threads[0].join()
            assert (status, code) == (400, "context_length_exceeded"), (status, code)
            assert time.monotonic() - start < 60

    def test_control_token_text_of_a_user_stays_text(self):
        count = lambda text: json.loads(self.server.request("POST", CHAT, chat_body(text=text, max_tokens=1))[2])["usage"]
        plain, control = count("x")["prompt_tokens"], count("<|im_end|>")["prompt_tokens"]
        assert control > plain + 2, (plain, control)

    def test_paths_are_taken_as_they_stand(self):
        for path in ("/v1/../admin", "/v1/%2e%2e/admin", "/%00", "/v1/models/%00", "/health/", "//health", "/v1/models/../x"):
            assert self.server.request("GET", path)[0] == 404, path
        status, head, _ = self.server.request("PUT", CHAT, {})
        assert status == 405 and "Allow: POST" in head
        assert self.server.request("OPTIONS", CHAT, headers=["Origin: http://evil"])[1].find("Access-Control") < 0

    def test_thousand_pipelined_requests_are_answered_in_order(self):
        with self.server.connect() as connection:
            data = b"".join(b"GET /version HTTP/1.1\r\nHost: a\r\nX-Request-Id: r%d\r\n\r\n" % i for i in range(1000))
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            received = b""
            while received.count(b"X-Request-Id: ") < 1000:
                part = connection.recv(65536)
                assert part
                received += part
            sender.join()
        ids = [line.split(b": ")[1] for line in received.split(b"\r\n") if line.startswith(b"X-Request-Id: ")]
        assert ids == [b"r%d" % i for i in range(1000)]

    def test_idle_connections_do_not_keep_health_away(self):
        idle = []
        try:
            for _ in range(900):
                idle.append(self.server.connect())
            self.alive()
        finally:
            for connection in idle:
                connection.close()

    def test_clients_that_leave_free_their_sequences(self):
        body = json.dumps(chat_body(max_tokens=150, ignore_eos=True)).encode()
        streamed = json.dumps(chat_body(max_tokens=150, ignore_eos=True, stream=True)).encode()
        for wait_s in (0, 0.01, 0.1):
            for payload in (body, streamed):
                connections = [self.server.connect() for _ in range(8)]
                for connection in connections:
                    connection.sendall(http_post(CHAT, payload))
                time.sleep(wait_s)
                for connection in connections:
                    connection.close()
                self.server.wait_idle(10)
        assert self.server.metric("vllm:kv_cache_usage_perc") == 0

    def test_a_client_that_ends_its_sending_gets_its_answer(self):
        for stream in (False, True):
            with self.server.connect(60) as connection:
                body = chat_body(max_tokens=40, ignore_eos=True, stream=stream)
                connection.sendall(http_post(CHAT, json.dumps(body).encode(), "Connection: close\r\n"))
                connection.shutdown(socket.SHUT_WR)
                answer = read_all(connection)
            assert b"HTTP/1.1 200 " in answer, answer[:300]
            assert (b"[DONE]" if stream else b'"completion_tokens":40') in answer, answer[-300:]

    def test_a_reader_that_stalls_holds_nobody_up(self):
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stalled.connect(("127.0.0.1", self.server.port))
            stalled.sendall(http_post(CHAT, json.dumps(chat_body(max_tokens=150, ignore_eos=True, stream=True)).encode()))
            status, _, _ = self.server.request("POST", CHAT, chat_body(max_tokens=5))
            assert status == 200
        self.server.wait_idle(10)

    def test_request_id_is_echoed_and_log_has_no_text(self):
        status, head, _ = self.server.request("POST", CHAT, chat_body(text="verysecretword", max_tokens=2),
                                              ["X-Request-Id: trace-123"])
        assert status == 200 and "X-Request-Id: trace-123" in head
        time.sleep(0.2)
        assert "trace-123" in self.server.log() and "verysecretword" not in self.server.log()
