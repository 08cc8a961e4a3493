"""What the tests of the administrator's routes share: a server over a root, and its calls."""
import contextlib
import json
import shutil
import tempfile
from pathlib import Path

from harness import ADAPTERS, FAMILY, KEY, Server, chat_body

CHAT = "/v1/chat/completions"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MATH, FRENCH = "zen-mini-math", "zen-mini-french"


class AdminCalls:
    def __init__(self, binary, deltas):
        self.binary = binary
        self.deltas = deltas

    @contextlib.contextmanager
    def served(self, *flags):
        """A server and its root, which holds the deltas and the adapters by name."""
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) / "root"
            for name, path in self.deltas.items():
                shutil.copytree(path, root / name)
            for name in ADAPTERS:
                shutil.copytree(FAMILY / "adapters" / name, root / name)
            with Server(self.binary, {}, "--variant-root", root, "--api-key", KEY, "--batch-invariant", *flags) as server:
                yield server, root

    def post(self, server, path, body, *headers):
        status, head, content = server.request("POST", path, body, headers)
        return status, head, content.decode()

    def load(self, server, name, path, **more):
        return self.post(server, LOAD, {"lora_name": name, "lora_path": str(path), **more})

    def cards(self, server):
        status, _, content = server.request("GET", "/v1/models")
        assert status == 200
        return {card["id"]: card for card in json.loads(content)["data"]}

    def rows(self, server):
        return {row["id"]: row for row in json.loads(server.request("GET", "/v1/variants")[2])["data"]}

    def answer(self, server, model, text="What is 31 + 10?"):
        status, _, content = server.request("POST", CHAT, chat_body(model, text, max_tokens=12, temperature=0))
        assert status == 200, (model, status, content)
        return json.loads(content)["choices"][0]["message"]["content"]
