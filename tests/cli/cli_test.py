#!/usr/bin/env python3
"""The command line as a user meets it: exit codes, one cause a failure, complete help, whole files or none.
Usage: cli_test.py DELTAFOLD [unittest arguments]"""
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "demo" / "zen-mini-base"
FINETUNE = ROOT / "demo" / "finetunes" / "zen-mini-math"
BINARY = None
RUN_S = 120


def deltafold(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=RUN_S,
                          stdin=subprocess.DEVNULL)


def tensors(path):
    """Name -> bytes."""
    data = path.read_bytes()
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n_header])
    header.pop("__metadata__", None)
    return {name: data[8 + n_header:][slice(*tensor["data_offsets"])] for name, tensor in header.items()}


def commands():
    listed = deltafold("--help").stdout.split("Subcommands:")[1]
    return re.findall(r"^  (\w+) ", listed, re.MULTILINE)


class Usage(unittest.TestCase):
    def test_version_is_one_line(self):
        done = deltafold("version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"\Adeltafold \d+\.\d+\.\d+\n")

    def test_every_command_has_help_with_examples(self):
        for command in commands():
            if command == "version":
                continue
            with self.subTest(command):
                done = deltafold(command, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("Examples:", done.stdout)

    def test_every_bench_has_help_with_examples(self):
        listed = deltafold("bench", "--help").stdout.split("Subcommands:")[1].split("Examples:")[0]
        benches = re.findall(r"^  (\w+) ", listed, re.MULTILINE)
        self.assertEqual(set(benches), {"kernels", "model", "serve", "codec", "merge"})
        for bench in benches:
            with self.subTest(bench):
                done = deltafold("bench", bench, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"deltafold bench {bench}", done.stdout.split("Examples:")[1])

    def test_every_action_on_variants_has_help_with_examples(self):
        listed = deltafold("variants", "--help").stdout.split("Subcommands:")[1].split("Examples:")[0]
        actions = re.findall(r"^  (\w+) ", listed, re.MULTILINE)
        self.assertEqual(set(actions), {"list", "load", "unload", "pin", "unpin", "prefetch", "evict"})
        for action in actions:
            with self.subTest(action):
                done = deltafold("variants", action, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"deltafold variants {action}", done.stdout.split("Examples:")[1])

    def test_variants_of_no_server_exit_1_and_wrong_words_2(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            for arguments in (["list"], ["load", "a", "b"], ["unload", "a"], ["pin", "a"]):
                done = deltafold("variants", *arguments, "--server", url)
                self.assertEqual((done.returncode, done.stdout), (1, ""), arguments)
                self.assertIn("no answer from the server", done.stderr)
        for arguments in ([], ["list", "--server", "https://a"], ["load", "a"], ["pin"], ["pinn", "a"], ["list", "--wach"]):
            done = deltafold("variants", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)

    def test_a_wrong_flag_of_a_bench_names_its_help(self):
        done = deltafold("bench", "kernels", "--quik")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("did you mean --quick", done.stderr)
        self.assertIn("deltafold bench kernels --help", done.stderr)
        self.assertEqual(deltafold("bench", "kernels", "--only", "no_such_row").returncode, 2)
        self.assertEqual(deltafold("bench", "serve", "--url", "https://a").returncode, 2)
        self.assertEqual(deltafold("bench", "model", "--shape", "gpt-5").returncode, 1)

    def test_a_quick_bench_keeps_what_it_was_asked_for(self):
        done = deltafold("bench", "model", "--shape", BASE, "--quick", "--batch", "0")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("batch", done.stderr)

    def test_made_up_weights_can_be_mapped_as_the_refusal_says(self):
        done = deltafold("bench", "model", "--shape", "small", "--weights", "mmap")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        advised = re.search(r"`deltafold (bench codec) --shape SHAPE (--keep)`", done.stderr)
        self.assertIsNotNone(advised, done.stderr)
        with tempfile.TemporaryDirectory() as directory:
            done = deltafold(*advised[1].split(), advised[2], "--quick", "--dir", directory, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            kept = Path(json.loads(done.stdout)["kept"])
            self.assertEqual([kept], list(Path(directory).iterdir()))
            done = deltafold("bench", "model", "--shape", kept / "base", "--weights", "mmap", "--quick", "--batch", 2,
                             "--prompt-len", 16, "--variants", 1, "--json")
            report = json.loads(done.stdout)
            # On a busy machine the limits drift.
            self.assertEqual(done.returncode, 1 if report["void"] else 0, done.stderr)
            self.assertEqual("the run is void" in done.stderr, report["void"])
            self.assertGreater(report["memory"]["rss_file_bytes"], 0)
            self.assertIsNone(report["prompts"][0]["base_bandwidth_share"], "no batch of one row was asked for")
            self.assertEqual(report["promises"], [])

    def test_a_plot_that_cannot_be_written_is_refused_before_measuring(self):
        done = deltafold("bench", "model", "--shape", BASE, "--quick", "--plot", "/no/such/folder/plot.svg")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("/no/such/folder", done.stderr)
        self.assertNotIn("measuring", done.stderr)

    def test_an_unknown_command_exits_2_and_suggests_the_nearest(self):
        done = deltafold("comprss")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("comprss", done.stderr)
        self.assertIn("compress", done.stderr)

    def test_an_unknown_flag_exits_2_and_suggests_the_nearest(self):
        done = deltafold("compress", "--codee", "row")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("did you mean --code", done.stderr)

    def test_a_wrong_vector_target_is_reported_by_name(self):
        done = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=RUN_S,
                              env=dict(os.environ, DELTAFOLD_TARGET="avx9000"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("avx9000", done.stderr)

    def test_prompts_in_bf16_are_refused_before_loading_where_the_target_cannot(self):
        if platform.machine() != "x86_64":
            self.skipTest("sse4 is a target of x86-64")
        for command in (["logits", "--ids", "1,2", "--greedy", "1"], ["run", "hello"], ["serve"], ["bench", "model", "--shape"]):
            model = ["/no/such/model"] if command[-1] == "--shape" else ["--model", "/no/such/model"]
            done = subprocess.run([BINARY, *command, *model, "--prefill-dtype", "bfloat16"], capture_output=True, text=True,
                                  timeout=RUN_S, stdin=subprocess.DEVNULL, env=dict(os.environ, DELTAFOLD_TARGET="sse4"))
            self.assertEqual((done.returncode, done.stdout), (1, ""), command)
            self.assertIn("AVX512_BF16", done.stderr, command)
            self.assertIn("sse4", done.stderr, command)

    def test_prompts_in_bf16_differ_by_their_rounding(self):
        logits = []
        with tempfile.TemporaryDirectory() as directory:
            for dtype in ("float32", "bfloat16"):
                out = Path(directory) / dtype
                done = subprocess.run([BINARY, "logits", "--model", BASE, "--ids", "5,6,7,8,9,10", "--prefill-dtype", dtype,
                                       "--out", out], capture_output=True, text=True, timeout=RUN_S,
                                      env=dict(os.environ, DELTAFOLD_TARGET="scalar"))
                self.assertEqual(done.returncode, 0, done.stderr)
                logits.append(memoryview(tensors(out)["logits"]).cast("f").tolist())
        differences = [abs(a - b) for a, b in zip(*logits)]
        self.assertGreater(max(differences), 0)
        self.assertLess(max(differences), 0.05 * max(map(abs, logits[0])))

    def test_a_wrong_choice_is_answered_with_the_choices(self):
        done = deltafold("bench", "serve", "--mix", "sometimes")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn('--mix: must be one of uniform, zipf; got "sometimes"', done.stderr)

    def test_a_choice_may_be_written_in_capitals(self):
        done = deltafold("bench", "serve", "--mix", "ZIPF", "--url", "no-url")
        self.assertIn("no-url", done.stderr)
        self.assertNotIn("--mix", done.stderr)

    def test_a_wrong_code_is_answered_with_the_codes(self):
        for option in ("--code", "--embeddings", "--head"):
            for code in ("sign", "planes1", "planes9", "lowrank:0", "lowrank:999", "rows+lowrank:4", "rank1+lowrank", ""):
                if code == "" and option != "--code":
                    continue
                done = deltafold("compress", "base", "model", "out", option, code or "+")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(option + ": no code", done.stderr)
                self.assertIn("planes2", done.stderr)

    def test_bounds_of_auto_are_read_strictly(self):
        for amount in ("0", "-1M", "12", "x", "1e9", "5%%", "nan", "bpw"):
            done = deltafold("compress", "no-base", "model", "out", "--bytes", amount)
            self.assertEqual(done.returncode, 1 if amount == "12" else 2, amount)
        for error in ("-0.1", "1.5", "nan", "x", ""):
            if error:
                done = deltafold("compress", "base", "model", "out", "--max-error", error)
                self.assertEqual(done.returncode, 2, error)
        done = deltafold("compress", "base", "model", "out", "--bytes", "1M", "--max-error", "0.1")
        self.assertIn("exclude each other", done.stderr)
        done = deltafold("compress", "base", "model", "out", "--bytes", "1M", "--code", "row", "--head", "raw",
                         "--embeddings", "raw")
        self.assertIn("need --code auto", done.stderr)

    def test_a_port_beyond_the_last_is_refused_with_the_last(self):
        done = deltafold("serve", "--model", "no-model", "--port", "65536")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--port: must be at most 65535, got 65536", done.stderr)


class Numbers(unittest.TestCase):
    """Every unsigned option says what it was given."""

    def options(self):
        for command in commands():
            for line in deltafold(command, "--help").stdout.splitlines():
                found = re.match(r"  (?:-\w,)?(--[a-z-]+)(?:,--[a-z-]+)* (UINT|N|BYTES)\b", line)
                if found:
                    yield command, found[1], found[2]

    def test_every_unsigned_option_refuses_what_is_no_whole_number(self):
        options = list(self.options())
        self.assertGreaterEqual(len(options), 21, options)
        for command, option, kind in options:
            wrong = ["-1", "-0", "18446744073709551616", "1.5", "010", "0x10", "+1", "many"]
            for value in wrong if kind == "BYTES" else [*wrong, "4k"]:
                with self.subTest(command=command, option=option, value=value):
                    done = deltafold(command, f"{option}={value}")
                    self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                    cause = rf"\Adeltafold: {option}: must be [^\n]*, got \"?{re.escape(value)}\"?\n"
                    self.assertRegex(done.stderr, cause)

    def test_no_option_that_shows_a_number_as_default_takes_minus_one_for_2_to_the_64(self):
        for command in commands():
            for option in re.findall(r"(--[a-z-]+) \w+", deltafold(command, "--help").stdout):
                done = deltafold(command, f"{option}=-1")
                self.assertNotIn("18446744073709551615", done.stderr, (command, option))

    def test_the_environment_is_read_as_strictly(self):
        done = subprocess.run([BINARY, "serve", "--model", BASE], capture_output=True, text=True, timeout=RUN_S,
                              env=dict(os.environ, DELTAFOLD_KV_CACHE_BYTES="-1"))
        self.assertEqual(done.returncode, 2)
        self.assertIn('"-1"', done.stderr)


class Places(unittest.TestCase):
    """Exit code 1 and one line with the cause for whatever is no regular file, whoever meets it; 2 is wrong usage."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="deltafold-cli-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.delta = ROOT / "demo" / "deltas" / "zen-mini-sort"
        self.adapter = ROOT / "demo" / "adapters" / "format-title"

    def spoil(self, name, kind):
        path = self.directory / name
        path.unlink(missing_ok=True)
        if kind == "link":
            path.symlink_to("nowhere")
        elif kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))

    def assert_refused(self, path, *arguments):
        done = deltafold(*arguments)
        self.assertEqual(done.returncode, 1, (arguments, done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(str(path), done.stderr)

    def test_everywhere_it_is_named_with_exit_code_1(self):
        for of, names in ((self.delta, ["delta_config.json", "delta_model.safetensors", "config.json",
                                        "tokenizer.json"]),
                          (self.adapter, ["adapter_config.json", "adapter_model.safetensors"]),
                          (BASE, ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                  "chat_template.jinja", "generation_config.json"])):
            for name in names:
                for kind in "link", "directory", "fifo", "socket":
                    with self.subTest(name=name, kind=kind):
                        shutil.rmtree(self.directory)
                        shutil.copytree(of, self.directory)
                        self.spoil(name, kind)
                        path = self.directory / name
                        self.assert_refused(path, "inspect", self.directory)
                        if of == BASE:
                            self.assert_refused(path, "run", "--model", self.directory, "hi")
                            continue
                        self.assert_refused(path, "run", "--model", BASE, "--variant", f"v={self.directory}", "hi")
                        if name != "tokenizer.json":  # verify reads no text
                            self.assert_refused(path, "verify", self.directory, "--base", BASE)

    def test_files_named_on_the_command_line(self):
        for kind in "link", "directory", "fifo", "socket":
            path = self.directory / kind
            self.spoil(kind, kind)
            if kind != "directory":
                self.assert_refused(path, "inspect", path)
            self.assert_refused(path, "serve", "--model", BASE, "--chat-template", path)
            if kind != "link":  # a link to nothing is no file: it is read as a list
                self.assert_refused(path, "logits", "--model", BASE, "--ids", path, "--greedy", 1)

    def test_a_wrong_value_in_a_file_is_no_wrong_usage(self):
        shutil.rmtree(self.directory)
        shutil.copytree(BASE, self.directory)
        config = json.loads((BASE / "config.json").read_text())
        (self.directory / "config.json").write_text(json.dumps(dict(config, num_hidden_layers="many")))
        for arguments in (["inspect", self.directory], ["run", "--model", self.directory, "hi"],
                          ["serve", "--model", self.directory], ["inspect", self.delta, "--base", self.directory],
                          ["logits", "--model", self.directory, "--ids", "1", "--greedy", 1],
                          ["verify", self.delta, "--base", self.directory],
                          ["compress", BASE, self.directory, self.directory / "out"],
                          ["materialize", "--base", self.directory, "--delta", self.delta, "--out", self.directory / "o"]):
            self.assert_refused("num_hidden_layers", *arguments)

    def test_a_model_without_tokenizer_can_be_inspected_and_is_not_servable(self):
        model = ROOT / "tests" / "hostile" / "model" / "ok"
        done = deltafold("inspect", model, "--json")
        self.assertEqual(done.returncode, 0)
        report = json.loads(done.stdout)
        self.assertIs(report["servable"], False)
        self.assertIn("tokenizer.json", report["problem"]["message"])
        self.assertRegex(done.stderr, r"\Adeltafold inspect: warning: .*ok has no tokenizer.json: .*\n\Z")
        self.assertIn("servable", deltafold("inspect", "--help").stdout)
        done = deltafold("inspect", BASE, "--json")
        self.assertEqual((done.returncode, done.stderr, json.loads(done.stdout)["servable"]), (0, "", True))


class FullDisk(unittest.TestCase):
    def test_a_lost_report_is_a_failure(self):
        for arguments in (["version"], ["compress", "--help"], ["inspect", BASE], ["inspect", BASE, "--json"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w") as full:
                done = subprocess.run([BINARY, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=RUN_S)
                self.assertEqual(done.returncode, 1)
                self.assertIn("standard output", done.stderr)


class ScarceMemory(unittest.TestCase):
    """Too little address space ends every command with a cause, at whatever point it runs out."""

    def test_no_limit_of_memory_ends_a_command_by_a_signal(self):
        def limit(mib):
            return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))
        if subprocess.run([BINARY, "version"], capture_output=True, preexec_fn=limit(1024)).returncode != 0:
            self.skipTest("a sanitizer reserves more address space than this test leaves")
        with tempfile.TemporaryDirectory(prefix="deltafold-cli-") as directory:
            # Libraries take 56 to 62 and set themselves up before main: with less they decide how the process ends. The Rust
            # library aborts where it is refused a few bytes, by compiler and command at 69 to 72, 76 to 80, 84 to 87: not solved.
            for mib in (74, 82, 96, 128, 256):
                for arguments in (["compress", BASE, FINETUNE, f"{directory}/{mib}"], ["inspect", BASE],
                                  ["run", "--model", BASE, "--max-tokens", "2", "hi"],
                                  ["logits", "--model", BASE, "--ids", "1,2", "--greedy", 1]):
                    with self.subTest(mib=mib, command=arguments[0]):
                        done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                                              timeout=RUN_S, stdin=subprocess.DEVNULL, preexec_fn=limit(mib))
                        self.assertIn(done.returncode, (0, 1), done.stderr)
                        if done.returncode == 1:
                            self.assertRegex(done.stderr, r"\Adeltafold.*\n\Z")


class Deltas(unittest.TestCase):
    """compress, verify and materialize on the family of the demonstration."""

    @classmethod
    def setUpClass(cls):
        cls.directory = Path(tempfile.mkdtemp(prefix="deltafold-cli-"))
        cls.delta = cls.directory / "math"
        done = deltafold("compress", "--base", BASE, "--model", FINETUNE, "--out", cls.delta, "--json")
        assert done.returncode == 0, done.stderr
        cls.report = json.loads(done.stdout)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)

    def assert_fails(self, done, *words):
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)

    def test_a_delta_keeps_to_1_35_bits_a_weight(self):
        n_weights = self.report["bytes"]["full"] / 2
        self.assertLess(8 * self.report["bytes"]["delta"] / n_weights, 1.35)
        self.assertEqual((self.report["codec"]["code"], self.report["codec"]["embeddings"]), ("rank1", "auto"))

    def test_what_auto_chose_from_is_printed_and_kept(self):
        out = self.directory / "chosen"
        done = deltafold("compress", BASE, FINETUNE, out, "--code", "auto", "--calibrate", "none", "--choices")
        self.assertEqual(done.returncode, 0, done.stderr)
        kept = json.loads((out / "delta_config.json").read_text())["tensors"]
        for tensor in kept:
            chosen = [candidate for candidate in tensor.get("candidates", []) if candidate.get("chosen")]
            self.assertEqual(len(chosen), "candidates" in tensor, tensor["name"])
            for candidate in chosen:
                self.assertEqual(candidate["bytes"], tensor["bytes"])
        self.assertGreater(sum("candidates" in tensor for tensor in kept), 28)
        shown = deltafold("inspect", out, "--choices")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn(shown.stdout, done.stdout)
        matrix = next(tensor for tensor in kept if tensor["name"].endswith("q_proj.weight"))
        for candidate in matrix["candidates"]:
            self.assertRegex(shown.stdout, rf"\b{re.escape(candidate['code'])} +{candidate['bytes']} +{candidate['error']:.4f}")
        self.assertEqual(json.loads(deltafold("inspect", out, "--choices", "--json").stdout)["choices"], kept)
        self.assert_fails(deltafold("inspect", BASE, "--choices"), "for a delta")
        for content in ('{"tensors": 7}', '{"tensors": [7]}', '{"tensors": [{"name": "a"}]}', "{}",
                        '{"tensors": [{"name": "a", "code": "b", "bytes": 1, "candidates": [{"code": 1, "bytes": 2}]}]}'):
            (out / "delta_config.json").write_text(content)
            self.assert_fails(deltafold("inspect", out, "--choices"), "delta_config.json")

    def test_codes_are_fitted_to_the_fine_tunes_own_text_unless_told_otherwise(self):
        self.assertEqual(self.report["codec"]["calibration"], {"source": "self", "tokens": 48 * 160})
        out = self.directory / "calibrated"

        def quality(*arguments):
            done = deltafold("compress", BASE, FINETUNE, out, "--force", "--json", "--code", "rank1", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            return report["codec"].get("calibration"), report["quality"].get("mean_output_error")
        self.assertEqual(quality("--calibrate", "none"), (None, None))
        calibration, error = quality("--calibrate", ROOT / "demo" / "eval" / "math.jsonl")
        self.assertEqual(calibration["source"], "math.jsonl")
        self.assertLess(calibration["tokens"], 48 * 160 + 1)
        self.assertLess(error, 0.5)
        lines = self.directory / "lines.jsonl"
        lines.write_text('{"text": "one"}\n{"words": "two"}\n')
        self.assert_fails(deltafold("compress", BASE, FINETUNE, self.directory / "none", "--calibrate", lines), lines, "line 2")
        absent = self.directory / "absent.txt"
        self.assert_fails(deltafold("compress", BASE, FINETUNE, self.directory / "none", "--calibrate", absent), absent)

    def test_without_a_tokenizer_rows_are_fitted_to_random_tokens(self):
        models = []
        for model in (BASE, FINETUNE):
            models.append(self.directory / ("bare-" + model.name))
            models[-1].mkdir()
            for name in ("config.json", "model.safetensors"):
                shutil.copy(model / name, models[-1] / name)
        done = deltafold("compress", *models, self.directory / "bare", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        codec = json.loads(done.stdout)["codec"]
        self.assertEqual((codec["code"], codec["calibration"]["source"]), ("row", "random tokens"))

    def test_side_files_that_equal_the_base_are_not_stored(self):
        self.assertEqual(sorted(p.name for p in self.delta.iterdir()),
                         ["README.md", "config.json", "delta_config.json", "delta_model.safetensors"])

    def test_compressing_twice_gives_the_same_bytes(self):
        again = self.directory / "again"
        self.assertEqual(deltafold("compress", BASE, FINETUNE, again, "--threads", 1).returncode, 0)
        name = "delta_model.safetensors"
        self.assertEqual((again / name).read_bytes(), (self.delta / name).read_bytes())

    def test_an_existing_output_is_kept_unless_forced(self):
        self.assert_fails(deltafold("compress", BASE, FINETUNE, self.delta), self.delta, "--force")
        forced = self.directory / "forced"
        for arguments in ([], ["--force"]):
            self.assertEqual(deltafold("compress", BASE, FINETUNE, forced, "--calibrate", "none", *arguments).returncode, 0)

    def test_force_replaces_nothing_but_an_output(self):
        model, other = self.directory / "model", self.directory / "other"
        shutil.copytree(FINETUNE, model)
        other.mkdir()
        (other / "letter.txt").write_text("dear")
        before = {path: path.read_bytes() for place in (model, other) for path in place.iterdir()}
        for arguments in (["compress", BASE, model, model], ["compress", BASE, model, other],
                          ["compress", BASE, model, self.directory],
                          ["materialize", "--base", model, "--delta", self.delta, "--out", model],
                          ["materialize", "--base", BASE, "--delta", self.delta, "--out", self.delta],
                          ["materialize", "--base", BASE, "--delta", self.delta, "--out", other]):
            done = deltafold(*arguments, "--force")
            self.assertEqual((done.returncode, done.stdout), (1, ""), arguments)
        self.assertEqual({path: path.read_bytes() for place in (model, other) for path in place.iterdir()}, before)
        self.assertTrue((self.delta / "delta_config.json").exists())

    def test_a_missing_model_is_named_and_nothing_is_written(self):
        out = self.directory / "none"
        self.assert_fails(deltafold("compress", BASE, self.directory / "absent", out), self.directory / "absent")
        self.assertFalse(out.exists())

    def test_a_killed_run_leaves_nothing_that_the_next_does_not_remove(self):
        place = self.directory / "killed"
        for _ in range(50):
            place.mkdir(exist_ok=True)
            run = subprocess.Popen([BINARY, "compress", BASE, FINETUNE, place / "out", "--calibrate", "none"],
                                   stdout=subprocess.DEVNULL)
            while run.poll() is None and not any(".tmp-" in p.name for p in place.iterdir()):
                pass
            run.kill()
            run.wait()
            if any(".tmp-" in p.name for p in place.iterdir()):
                break
            shutil.rmtree(place)
        else:
            self.fail("no run was killed while it wrote")
        # Killed before its journal stood there was nothing to lose.
        left = next(p for p in place.iterdir())
        if (left / "delta_journal").exists():
            self.assert_fails(deltafold("compress", BASE, FINETUNE, place / "out", "--calibrate", "none"), left, "--resume", "--force")
        self.assertEqual(
            deltafold("compress", BASE, FINETUNE, place / "out", "--calibrate", "none", "--force").returncode, 0)
        self.assertEqual([p.name for p in place.iterdir()], ["out"])

    def test_verify_accepts_it_and_measures_against_the_fine_tune(self):
        self.assertEqual(deltafold("verify", self.delta, "--base", BASE).returncode, 0)
        done = deltafold("verify", self.delta, "--base", BASE, "--model", FINETUNE, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIsInstance(json.loads(done.stdout), dict)

    def test_verify_refuses_another_base(self):
        done = deltafold("verify", self.delta, "--base", FINETUNE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("base", done.stderr)

    def test_verify_refuses_a_flipped_bit(self):
        damaged = self.directory / "damaged"
        shutil.copytree(self.delta, damaged)
        with open(damaged / "delta_model.safetensors", "r+b") as weights:
            weights.seek(-100, os.SEEK_END)
            byte = weights.read(1)[0]
            weights.seek(-1, os.SEEK_CUR)
            weights.write(bytes([byte ^ 1]))
        done = deltafold("verify", damaged, "--base", BASE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("digest", done.stderr)

    def test_materialize_gives_a_checkpoint_whose_delta_has_the_same_signs(self):
        delta, full, again = (self.directory / name for name in ("signs", "full", "full-delta"))
        code = ("--code", "rank1", "--calibrate", "none")
        self.assertEqual(deltafold("compress", BASE, FINETUNE, delta, *code).returncode, 0)
        done = deltafold("materialize", "--base", BASE, "--delta", delta, "--out", full, "--dtype", "f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(deltafold("compress", BASE, full, again, *code).returncode, 0)

        def signs(path):
            return {name: data for name, data in tensors(path / "delta_model.safetensors").items()
                    if name.endswith(".sign")}
        self.assertEqual(len(signs(again)), 28)
        self.assertEqual(signs(again), signs(delta))

    def test_a_bitdelta_file_becomes_a_delta_that_verifies(self):
        golden = ROOT / "tests" / "golden" / "deltas" / "llama3-gqa"
        for name in ("diff.pt", "diff.safetensors"):
            out = self.directory / f"imported-{name}"
            done = deltafold("import", "--base", golden / "base", "--from", golden / "ft0" / name, "--out", out)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("14 matrices of signs", done.stdout)
            self.assertEqual(deltafold("verify", out, "--base", golden / "base").returncode, 0)
        hostile = ROOT / "tests" / "hostile" / "diff_pt" / "runs_code.pt"
        self.assert_fails(deltafold("import", "--base", golden / "base", "--from", hostile, "--out", self.directory / "no"),
                          hostile, "getcwd", "nothing of it was run")

    def test_low_ranks_become_an_adapter_and_signs_are_refused(self):
        delta, adapter = self.directory / "low-rank", self.directory / "adapter"
        self.assertEqual(deltafold("compress", BASE, FINETUNE, delta, "--code", "lowrank:8").returncode, 0)
        done = deltafold("export", "--base", BASE, "--delta", delta, "--out", adapter)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("28 modules of rank at most 8", done.stdout)
        self.assertEqual(deltafold("inspect", adapter).returncode, 0)
        full = [self.directory / "of-delta", self.directory / "of-adapter"]
        for variant, out in zip((delta, adapter), full):
            done = deltafold("materialize", "--base", BASE, "--delta", variant, "--out", out)
            self.assertEqual(done.returncode, 0, done.stderr)
        of_delta, of_adapter = (tensors(out / "model.safetensors") for out in full)
        self.assertNotIn("lm_head.weight", of_adapter)  # PEFT saves it beside the embedding; it is the same, so tied
        self.assertEqual(of_adapter, of_delta)
        arguments = ["export", "--base", BASE, "--delta", self.delta, "--out", self.directory / "of-signs"]
        self.assert_fails(deltafold(*arguments), "sign rank-1", "--rank")
        done = deltafold(*arguments, "--rank", 8)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("approximated", done.stdout)


if __name__ == "__main__":
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
