"""Runs all integration tests. Usage: main.py BINARY [NAME_PART...] (see run.sh)."""
import sys
import tempfile
from pathlib import Path

from admin_tests import AdminTests
from client_tests import ClientTests
from harness import KEY, Server, compress_family, run_tests
from hostile_tests import HostileTests
from lifecycle_tests import LifecycleTests
from logprob_tests import LogprobTests
from pool_probe_tests import PoolProbeTests
from pool_tests import PoolTests
from race_tests import RaceTests
from store_tests import StoreTests


def tests_of(instance):
    group = type(instance).__name__.removesuffix("Tests").lower()
    return [(f"{group}.{name.removeprefix('test_')}", getattr(instance, name)) for name in vars(type(instance))
            if name.startswith("test_")]


def main():
    binary, parts = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as directory:
        deltas = compress_family(binary, Path(directory))
        lifecycle = tests_of(LifecycleTests(binary, deltas)) + tests_of(AdminTests(binary, deltas)) + \
            tests_of(StoreTests(binary, deltas)) + tests_of(RaceTests(binary, deltas)) + \
            tests_of(PoolTests(binary, deltas)) + tests_of(PoolProbeTests(binary))
        # Answers alone and in company are compared bit for bit.
        with Server(binary, deltas, "--api-key", KEY, "--batch-invariant") as server:
            tests = tests_of(ClientTests(server)) + tests_of(LogprobTests(server, binary, deltas)) + \
                tests_of(HostileTests(server)) + lifecycle
            return run_tests(tests, parts)


if __name__ == "__main__":
    sys.exit(main())
