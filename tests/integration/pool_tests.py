"""The adapter pool of `serve`: more adapters than the budget holds, and every name goes on being answered."""
import contextlib
import json
import shutil
import tempfile
from pathlib import Path

from admin_calls import UNLOAD, AdminCalls
from harness import FAMILY, KEY, Server
from store_tests import rewrite_tensors

N_ADAPTERS, N_SLOTS = 6, 2


def turned(path, n_places):
    """Makes an adapter another one: the values of each B, `n_places` further on."""
    def change(header, data):
        for name, entry in header.items():
            if "lora_B" not in name:
                continue
            begin, end = entry["data_offsets"]
            at = begin + n_places * (2 if entry["dtype"] in ("BF16", "F16") else 4)
            data[begin:end] = data[at:end] + data[begin:at]

    rewrite_tensors(path / "adapter_model.safetensors", change)


class PoolTests(AdminCalls):
    @contextlib.contextmanager
    def pooled(self, directory, *flags):
        root = directory / "root"
        if not root.exists():
            for i in range(N_ADAPTERS):
                shutil.copytree(FAMILY / "adapters" / "format-title", root / f"a{i}")
                turned(root / f"a{i}", 7 * i)
        size = sum(path.stat().st_size for path in (root / "a0").iterdir())
        with Server(self.binary, {}, "--variant-root", root, "--api-key", KEY, "--batch-invariant", "--state-file",
                    directory / "state", "--adapter-pool-bytes", str(size * N_SLOTS + size // 2), *flags) as server:
            yield server, size

    def generations(self, server):
        return {name: row["generation"] for name, row in self.rows(server).items()}

    def test_names_beyond_the_budget_share_slots_and_go_on_being_answered(self):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            with self.pooled(directory) as (server, size):
                names = [f"a{i}" for i in range(N_ADAPTERS)]
                for name in names:
                    assert self.load(server, name, name)[0] == 200
                    for earlier in names[:names.index(name) + 1]:
                        self.answer(server, earlier)
                rows = self.rows(server)
                assert set(rows) == set(names)
                slots = {}
                for name, row in rows.items():
                    slots.setdefault(row["pool"]["slot"], set()).add(name)
                    assert 0 < row["pool"]["error_at_most"] < 10
                assert len(slots) == N_SLOTS, slots
                for slot, members in slots.items():
                    assert len({rows[name]["generation"] for name in members}) == 1, "one generation for all of a slot"
                    assert all(set(rows[name]["pool"]["members"]) == members for name in members)
                assert server.metric("deltafold_adapter_pool_members") >= N_ADAPTERS
                stored = sum(path.stat().st_size for path in directory.rglob("adapter_model.safetensors") if "root" not in path.parts)
                assert 0 < stored <= (N_SLOTS + 1) * size, stored
                assert self.load(server, "a1", "a1")[0] == 400  # the name is taken
                assert self.post(server, UNLOAD, {"lora_name": "a1"})[0] == 200
                assert self.post(server, "/v1/completions", {"model": "a1", "prompt": "x", "max_tokens": 1})[0] == 404
                left = self.generations(server)
                assert set(left) == set(names) - {"a1"}
                answers = {name: self.answer(server, name) for name in left}
            with self.pooled(directory) as (server, _):  # the pool outlives the server
                assert self.generations(server) == left
                assert {name: self.answer(server, name) for name in left} == answers

    def test_an_adapter_that_the_base_cannot_have_changes_nothing(self):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            with self.pooled(directory) as (server, _):
                assert self.load(server, "a0", "a0")[0] == 200
                before = self.generations(server)
                config = directory / "root" / "a1" / "adapter_config.json"
                config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 3}))
                status, _, text = self.load(server, "a1", "a1")
                assert status == 400 and "Traceback" not in text, (status, text)
                assert self.generations(server) == before
                self.answer(server, "a0")
