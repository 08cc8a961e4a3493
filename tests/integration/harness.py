"""What the integration tests share: a served family, raw HTTP over sockets, and the runner."""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAMILY = Path(os.environ.get("DELTAFOLD_FAMILY", ROOT / "demo"))
KEY = "integration-key"
BASE = "zen-mini-base"
FINETUNES = ["zen-mini-math", "zen-mini-coder", "zen-mini-french"]
ADAPTERS = ["format-title"]
START_S = 120  # sanitizers make loading slow


def finetune_directory(name):
    for place in (FAMILY / "finetunes" / name, FAMILY / name):
        if place.is_dir():
            return place
    raise SystemExit(f"integration: no fine-tune {name} under {FAMILY}")


def compress_family(binary, out):
    """Deltas of the fine-tunes, made by the binary under test."""
    deltas = {}
    for name in FINETUNES:
        deltas[name] = out / name
        command = [binary, "compress", "--base", FAMILY / BASE, "--finetune", finetune_directory(name), "--out", deltas[name],
                   "--code", "rank1", "--calibrate", "none"]
        subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return deltas


class Server:
    """`deltafold serve` as a child process."""

    def __init__(self, binary, deltas, *flags, n_descriptors=None):
        self.directory = tempfile.TemporaryDirectory()
        port_file = Path(self.directory.name) / "port"
        self.log_path = Path(self.directory.name) / "log"
        command = [binary, "serve", "--model", FAMILY / BASE, "--port", "0", "--port-file", port_file, *flags]
        if deltas:
            command += ["--delta-modules", *[f"{name}={path}" for name, path in deltas.items()],
                        "--lora-modules", *[f"{name}={FAMILY / 'adapters' / name}" for name in ADAPTERS]]
        limit = None
        if n_descriptors:
            limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n_descriptors, n_descriptors))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DELTAFOLD_")}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, preexec_fn=limit,
                                            env=environment)
        deadline = time.monotonic() + START_S
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self.log()}")
            time.sleep(0.05)
        self.port = int(port_file.read_text())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.directory.cleanup()

    def connect(self, timeout=20):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def send_raw(self, data, timeout=20):
        """Sends bytes as they are; everything that comes back until the server closes."""
        with self.connect(timeout) as connection:
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before the end: the answer is there all the same
            return read_all(connection)

    def request(self, method, path, body=None, headers=()):
        """Status, header text, body bytes."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {header.split(":")[0] for header in headers}
        usual = [("Host", f"127.0.0.1:{self.port}"), ("Authorization", f"Bearer {KEY}")]
        lines = [f"{method} {path} HTTP/1.1", "Connection: close", f"Content-Length: {len(data)}",
                 *[f"{name}: {value}" for name, value in usual if name not in own], *headers]
        answer = self.send_raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data, timeout=60)
        head, _, content = answer.partition(b"\r\n\r\n")
        return status_of(answer), head.decode(errors="replace"), content

    def error_code(self, path, body):
        status, _, content = self.request("POST", path, body)
        return status, json.loads(content)["error"]["code"]

    def metric(self, name):
        _, _, content = self.request("GET", "/metrics")
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", content.decode(), re.MULTILINE)
        return sum(map(float, found))

    def wait_idle(self, seconds=10):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.metric("vllm:num_requests_running") == 0 and self.metric("vllm:num_requests_waiting") == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"still running {self.metric('vllm:num_requests_running')}, "
                             f"waiting {self.metric('vllm:num_requests_waiting')} after {seconds} s")

    @property
    def sanitized(self):
        """Whether the binary holds a sanitizer, whose own memory is not ours."""
        binary = Path(f"/proc/{self.process.pid}/exe").read_bytes()
        return b"__asan_init" in binary or b"__tsan_init" in binary

    def resident_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def read_all(connection):
    parts = []
    while True:
        try:
            part = connection.recv(65536)
        except (ConnectionResetError, socket.timeout):
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def chat_body(model=BASE, text="hi", **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def http_post(path, body, headers=""):
    return (f"POST {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n"
            f"{headers}\r\n").encode() + body


def run_tests(tests, parts):
    """Calls every (name, function); prints a line each and the totals. The exit code."""
    n_passed, failed = 0, []
    for name, function in tests:
        if parts and not any(part in name for part in parts):
            continue
        start = time.monotonic()
        try:
            function()
            n_passed += 1
            print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception:  # a test may fail in any way; the others run all the same
            failed.append(name)
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    print(f"{n_passed} passed, {len(failed)} failed")
    return 1 if failed or not n_passed else 0
