"""A callback for the transformers Trainer that keeps the best soup of its checkpoints: after each save it runs
`deltafold soup --once`, which merges the newest checkpoint with the best so far, measures both and keeps the better.

    trainer = Trainer(..., callbacks=[SoupCallback(base="Qwen/Qwen3-0.6B", out="soup", arguments=["--eval-text", "dev.txt"])])

The best checkpoint is OUT/best, the curve OUT/soup.jsonl. What goes wrong is logged and does not stop the training,
unless `strict`.
"""
import json
import logging
import subprocess
from pathlib import Path

from transformers import TrainerCallback

__all__ = ["SoupCallback", "SoupError"]

logger = logging.getLogger(__name__)


class SoupError(RuntimeError):
    """The program failed, or took too long, and the callback is strict."""


class SoupCallback(TrainerCallback):
    """Runs on the first process alone; the others wait for it where the trainer waits for its first process next.

    base       what is trained: a directory or hub id; None for methods that need no base
    out        directory of the soup, not inside another soup
    arguments  how to measure, and what else `deltafold soup --help` lists: ["--eval-questions", "dev.jsonl", "--rank", "8"]
    every      steps between checkpoints that are taken, 0 = all
    binary     the program
    timeout_s  of one run, None = as long as it takes
    strict     raise SoupError instead of logging a failure

    `report` is what the program said last (its --json), None before.
    """

    def __init__(self, base, out, arguments=(), every=0, binary="deltafold", timeout_s=None, strict=False):
        self.base, self.out, self.arguments = base, out, [str(argument) for argument in arguments]
        self.every, self.binary, self.timeout_s, self.strict = every, binary, timeout_s, strict
        self.report = None

    def command(self, directory):
        base = [] if self.base is None else ["--base", str(self.base)]
        # The trainer has written all of it when it calls.
        return [str(self.binary), "soup", "--watch", str(directory), "--out", str(self.out), *base, "--every", str(self.every),
                *self.arguments, "--once", "--settle", "0", "--json"]

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            try:
                self.report = self._run(Path(args.output_dir))
            except SoupError as error:
                if self.strict:
                    raise
                logger.warning("%s", error)
        return control

    def _run(self, directory):
        try:
            done = subprocess.run(self.command(directory), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=self.timeout_s)
        except subprocess.TimeoutExpired as error:
            raise SoupError(f"deltafold soup took longer than {error.timeout} s") from error
        except OSError as error:
            raise SoupError(f"cannot run {self.binary}: {error}") from error
        if done.returncode != 0:
            raise SoupError(f"deltafold soup failed with status {done.returncode}: {done.stderr.strip()}")
        try:
            report = json.loads(done.stdout)
            best = report["best"]
        except (ValueError, KeyError, TypeError) as error:
            raise SoupError(f"deltafold soup printed no report: {done.stdout[:200]!r}") from error
        if best:
            logger.info("soup: %s %s, %s", report.get("score"), best.get("score"), best.get("directory"))
        for left in report.get("waiting", []):
            logger.info("soup: %s is left for later: %s", left.get("checkpoint"), left.get("reason"))
        return report
