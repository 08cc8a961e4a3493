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

    def slots(self, directory):
        """Of each slot of the pool beside the state file the dtypes and ranks of its A."""
        slots = {}
        for path in (directory / "state.pool" / "slots").iterdir():
            with open(path / "adapter_model.safetensors", "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            factors = [entry for name, entry in header.items() if "lora_A" in name]
            slots[path.name] = {entry["dtype"] for entry in factors}, {entry["shape"][0] for entry in factors}
        return slots

    def test_merged_slots_have_the_rank_and_dtype_that_flags_say(self):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            with self.pooled(directory, "--adapter-pool-rank", "3", "--adapter-pool-dtype", "f32") as (server, _):
                for i in range(N_SLOTS + 1):
                    assert self.load(server, f"a{i}", f"a{i}")[0] == 200
                rows = self.rows(server)
                merged = {row["pool"]["slot"] for row in rows.values() if len(row["pool"]["members"]) > 1}
                assert len(merged) == 1, rows
                for slot, (dtypes, ranks) in self.slots(directory).items():
                    assert (dtypes, ranks) == (({"F32"}, {3}) if slot in merged else ({"BF16"}, {8})), (slot, dtypes, ranks)
                self.answer(server, "a0")

    def test_a_merge_that_bounded_does_not_accept_is_refused_or_evicts_as_flags_say(self):
        for flags, loads in (([], False), (["--adapter-pool-on-refusal", "reject"], False), (["--adapter-pool-on-refusal", "evict"], True)):
            with tempfile.TemporaryDirectory() as temporary:
                bounded = ["--adapter-pool-policy", "bounded", "--adapter-pool-max-error", "0.01", *flags]
                with self.pooled(Path(temporary), *bounded) as (server, _):
                    for name in ("a0", "a1"):
                        assert self.load(server, name, name)[0] == 200
                    self.answer(server, "a1")
                    status, _, text = self.load(server, "a2", "a2")
                    assert (status == 200) == loads, (flags, status, text)
                    assert set(self.rows(server)) == ({"a1", "a2"} if loads else {"a0", "a1"}), self.rows(server)
                    if not loads:
                        assert "is allowed" in text and "0.01" in text, text

    def test_a_pool_that_is_not_served_is_a_warning(self):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            with self.pooled(directory) as (server, _):
                assert self.load(server, "a0", "a0")[0] == 200
                assert "not served" not in server.log()
            with Server(self.binary, {}, "--state-file", directory / "state") as server:
                assert "1 adapter in the pool" in server.log() and "is not served" in server.log(), server.log()
                assert "--adapter-pool-bytes" in server.log() and "a0" not in self.rows(server)
