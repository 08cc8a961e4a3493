#!/usr/bin/env python3
"""Takes one guard at a time out of a copy of the sources, builds the simulator with it, and expects the simulation to
notice. A guard that nobody misses means that the simulation is too weak.

Usage: mutations.py BUILD_DIR [--only WORD] [--seeds N]. Needs the target `simulate` built with Ninja."""
import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE, CHOICES = "src/store/residency_cache.cc", "src/store/residency_choices.cc"
ROOMS = "src/store/residency_rooms.cc"
REGISTRY = "src/store/registry.cc"
SCHEDULER, QUEUE = "src/engine/scheduler.cc", "src/engine/fair_queue.cc"
BLOCKS, INDEX, INBOX = "src/engine/kv_cache.cc", "src/engine/prefix_index.cc", "src/engine/inbox.cc"
SEQUENCE, PLACES = "src/engine/sequence.h", "src/engine/queue_places.cc"
MODEL_LOOP = "tests/simulation/engine.cc"

# A hash of two bits changes nothing but the number of collisions: what is compared has to decide.
WEAK_HASH = (INDEX, "return XXH3_64bits_withSeed(key.tokens.data(), sizeof(key.tokens), seed);",
             "return XXH3_64bits_withSeed(key.tokens.data(), sizeof(key.tokens), seed) & 3;")

# Guard -> its edits (file, what stands there once, what stands there without the guard).
GUARDS = {
    # The store: what may go, what may come.
    "what is leased stays": [(CHOICES, "!entry.pinned && entry.n_leases == 0 &&", "!entry.pinned &&")],
    "what is pinned stays": [(CHOICES, "entry.phase == Phase::kIn && !entry.pinned && entry.n_leases == 0",
                              "entry.phase == Phase::kIn && entry.n_leases == 0")],
    "a parent stays while its children are there": [
        (CHOICES, "entry.n_leases == 0 && entry.children_in.empty();", "entry.n_leases == 0;")],
    "the parent of what is to be loaded stays": [
        (ROOMS, "claims.kept.contains(candidate.id) ||", "")],
    "a child is loaded after its parent": [(CHOICES, "if (parent.phase == Phase::kIn) return id;", "return id;")],
    "a load needs room in the budget": [
        (ROOMS, "if (bytes <= claims.free_bytes) {", "if (bytes <= claims.free_bytes + 1000) {")],
    "a load reserves before it starts": [(CHOICES, "reserved_bytes_ += entry.content.bytes;", "")],
    "one load a generation": [(CHOICES, "if (entry.phase != Phase::kOut || (!is_asked", "if ((!is_asked")],
    "no more loads at once than loaders": [
        (CHOICES, "if (n_loading_ >= options_.max_loads) return std::nullopt;", "")],
    "a failed load backs off": [(CHOICES, "!entry.prefetch) || IsFailing(entry, now_us)) continue;",
                                 "!entry.prefetch)) continue;")],
    "a parent's failed load backs off": [(CHOICES, "parent.phase == Phase::kOut && !IsFailing(parent, now_us) ?",
                                          "parent.phase == Phase::kOut ?")],
    "backing off takes time": [
        (CACHE, "now_us + std::min(options_.longest_backoff_us, options_.first_backoff_us << doublings)", "now_us")],
    "backing off doubles": [(CACHE, "options_.first_backoff_us << doublings", "options_.first_backoff_us")],
    "what cannot fit beside pins holds nobody up": [
        (CHOICES, "if (BytesWithPins(pins, id, entry.content) > options_.budget_bytes) continue;", "")],
    "who waits is served in order": [
        (CHOICES, "order.emplace_back(!is_asked, entry.since_us, id, load)", "order.emplace_back(!is_asked, 0, id, load)")],
    "who fits is not held up by who waits for leases": [
        (ROOMS, "if (now_us - wanted.since_us < options_.overtake_us) {", "if (false) {")],
    "who has waited long is overtaken no more": [
        (ROOMS, "if (now_us - wanted.since_us < options_.overtake_us) {", "if (true) {")],
    "a victim is one room's": [(ROOMS, "    claims.taken.insert(next->id);\n", "    if (choice.leased) claims.taken.insert(next->id);\n")],
    "a prefetch waits for those who wait": [(ROOMS, "(!wanted.is_asked && claims.somebody_waits)", "false")],
    "a prefetch moves nothing in use": [
        (ROOMS, "wanted.is_asked ? now_us : now_us - options_.patience_us", "now_us")],
    "who is told why not waits no more": [(CACHE, "    entry.asked_us = -1;  // he is told, and waits no more\n", "")],
    "an ask can be ended": [(CACHE, "  if (!IsAsked(entry, now_us)) return;\n", "  if (true) return;\n")],
    "leased ones drain for who waits": [
        (ROOMS, "  for (const Candidate* one : leased) plan.closed.insert(one->id);\n", "")],
    "only unpinned ones drain": [(ROOMS, "if (entry.pinned || IsAwaited(entry, now_us) || now_us - entry.in_since_us",
                                  "if (IsAwaited(entry, now_us) || now_us - entry.in_since_us")],
    "what drains takes no lease": [
        (CACHE, "if (entry.phase == Phase::kIn && !entry.draining) {\n    ++entry.n_leases;",
         "if (entry.phase == Phase::kIn) {\n    ++entry.n_leases;")],
    "what leaves takes no lease": [
        (CACHE, "if (entry.phase == Phase::kIn && !entry.draining) {\n    ++entry.n_leases;",
         "if ((entry.phase == Phase::kIn || entry.phase == Phase::kLeaving) && !entry.draining) {\n    ++entry.n_leases;")],
    "a lease ends": [(CACHE, "  --entry.n_leases;\n", "")],
    "an ask is forgotten": [(CACHE, "entry.asked_us >= 0 && now_us - entry.asked_us < options_.interest_us",
                             "entry.asked_us >= 0")],
    "pins fit the budget together": [(CACHE, "    DF_RETURN_IF_ERROR(CheckFits(id));\n", "")],
    "who cannot fit is told": [(CACHE, "    failure = CheckFits(id);\n", "")],
    "who waited for a failed load is told": [
        (CACHE, "Status failure = FailureOf(entry, now_us);", "Status failure;")],
    "an operator evicts nothing leased": [(CACHE, "if (entry.n_leases > 0) return FailedPrecondition(",
                                           "if (false) return FailedPrecondition(")],
    "an operator evicts nothing pinned": [(CACHE, "if (entry.pinned) return FailedPrecondition(",
                                           "if (false) return FailedPrecondition(")],
    "what a load did not need comes back": [(CACHE, "  reserved_bytes_ -= entry.reserved_bytes - bytes;\n", "")],
    "a failed load's reservation comes back": [
        (CACHE, "  reserved_bytes_ -= entry.reserved_bytes;\n  entry.reserved_bytes = 0;\n", "")],
    "what has no name goes": [(CHOICES, "if (!entry.retired && !is_idle) return std::nullopt;",
                               "if (!is_idle) return std::nullopt;")],
    "what nobody refers to is forgotten": [(CACHE, "if (entry.forgotten) entries_.erase(id);", "")],
    # Names.
    "a change finds the generation it expects": [
        (REGISTRY, "if (!expected_generation.empty() && expected_generation != generation) {", "if (false) {")],
    # The scheduler: who runs on what.
    "weights are those of the request": [
        (SCHEDULER, "LeaseAttempt attempt = sequence->request.variant->TryLease(now_us);",
         "LeaseAttempt attempt = returning_.back()->request.variant->TryLease(now_us);")],
    "who runs holds a lease": [(QUEUE, "next->lease = std::move(line.claim);", "line.claim.End();")],
    "who is preempted gives blocks back": [(SCHEDULER, "  youngest.kv.Release();\n", "")],
    "who is preempted gives its lease back": [(SCHEDULER, "  youngest.lease.End();\n", "")],
    "who is preempted computes anew": [(SCHEDULER, "  youngest.n_cached = 0;\n", "")],
    "who enters finds blocks": [(SCHEDULER, "if (blocks_.n_free() < n_needed) return false;", "")],
    "shared idle blocks are no free ones": [
        (SCHEDULER, "KvBlocksFor(sequence.n_tokens()) - match_.n_held +", "KvBlocksFor(sequence.n_tokens()) - match_.blocks.size() +")],
    "no more run than may": [(SCHEDULER, "while (running_.size() < options_.max_num_seqs && budget_tokens_ > 0)",
                              "while (budget_tokens_ > 0)"),
                             (SCHEDULER, "entering_ == nullptr && running_.size() + returning_.size() < options_.max_num_seqs",
                              "entering_ == nullptr")],
    "decode rows count": [(SCHEDULER, "    --budget_tokens_;\n", "")],
    "deadlines end requests": [(SCHEDULER, "by_deadline_.begin()->first <= now_us", "by_deadline_.begin()->first <= now_us - 1000")],
    "who is cancelled goes": [(SCHEDULER, "found != by_id_.end(); found = by_id_.find(id)) {",
                               "found != by_id_.end() && n_running() == 0; found = by_id_.find(id)) {")],
    "claims give way to who was preempted": [(SCHEDULER, "    waiting_.DropClaims(now_us);\n", "")],
    "news of weights are passed on": [(SCHEDULER, "  waiting_.AskForCold(now_us, failed_);\n", "")],
    "who was preempted asks again": [
        (SCHEDULER, "if (!sequence->NeedsWeights() || (sequence->is_cold && !again)) {",
         "if (!sequence->NeedsWeights() || sequence->is_cold) {")],
    "lines take turns": [(QUEUE, "line.round + static_cast<uint64_t>((missing + quantum_ - 1) / quantum_), line.order}",
                          "0, line.order}")],
    "a turn is paid for": [(QUEUE, "    line.deficit -= static_cast<int64_t>(CostTokens(line.head()));\n", "")],
    "a queue is bounded": [(PLACES, "if (n_taken >= most_each_) return {};", "")],
    "each variant has a queue of its own": [(PLACES, "size_t& n_taken = n_taken_[line];", "size_t& n_taken = n_taken_[nullptr];"),
                                            (PLACES, "n_taken_.find(line)", "n_taken_.find(nullptr)")],
    "who enters gives its place in the queue back": [(SCHEDULER, "    sequence.place.End();\n", "")],
    "who waits too long for weights is told": [
        (SCHEDULER, "waiting_.FailOverdue(now_us, options_.longest_weights_wait_us, failed_);", ";")],
    "who waits too long is told in time": [
        (SCHEDULER, "std::min({deadline_us, overdue_us, ask_again_us_})", "std::min(deadline_us, ask_again_us_)")],
    "whoever goes is waited for no more": [
        (QUEUE, "    if (line.generation != nullptr) line.generation->EndAsk();\n    lines_.erase(found);", "    lines_.erase(found);")],
    "a preempted one that goes is waited for no more": [(SCHEDULER, "    taken->request.variant->EndAsk();\n", "")],
    # Keys and values.
    "a salt is part of a block's key": [(INDEX, "parts.generation_digest, parts.cache_salt}", "parts.generation_digest}")],
    "a generation is part of a block's key": [(INDEX, "parts.kv_dtype, parts.generation_digest,", "parts.kv_dtype,")],
    "a base is part of a block's key": [(INDEX, "{kTag, parts.base_fingerprint,", "{kTag,")],
    "parts of a key are framed": [
        (INDEX, "  text.append(reinterpret_cast<const char*>(&size), sizeof(size));\n", "  static_cast<void>(size);\n")],
    "tokens are compared on a hit": [WEAK_HASH, (INDEX, " && entry.tokens == key.tokens &&", " &&")],
    "predecessors are compared on a hit": [
        WEAK_HASH, (INDEX, " && entry.previous_serial == previous_serial &&", " &&")],
    "domains are compared on a hit": [
        WEAK_HASH, (INDEX, "(previous_serial != 0 || entry.domain->text == key.domain->text)", "true")],
    "a block that is taken is found no more": [(BLOCKS, "    index_.Erase(block);\n", "")],
    "a block that is shared stays": [(BLOCKS, "if (--released.n_holders > 0) return;", "--released.n_holders;")],
    "a block that is shared is not idle": [
        (BLOCKS, "if (At(block).n_holders++ == 0) Unlink(block);", "++At(block).n_holders;")],
    "one token at least is computed": [
        (SEQUENCE, "std::min(shares_answer ? n_tokens() : request.prompt.size(), n_tokens() - 1)",
         "(shares_answer ? n_tokens() : request.prompt.size())", [SCHEDULER])],
    "an answer's blocks are no prompt's": [
        (SEQUENCE, "shares_answer ? n_cached : std::min(n_cached, request.prompt.size())", "n_cached", [MODEL_LOOP])],
}
# Must stay clean: the edit that the guards above build on is none.
CONTROLS = {"nothing is taken out": [], "a hash of two bits": [WEAK_HASH]}


def commands(build):
    """Compile command a source file, and the simulator's link command."""
    compile_of = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        name = Path(entry["file"]).resolve()
        if name.is_relative_to(ROOT):
            compile_of[str(name.relative_to(ROOT))] = shlex.split(entry["command"])
    lines = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "bin/simulate"], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    link = next(line for line in reversed(lines) if " -o bin/simulate " in line)
    return compile_of, shlex.split(link.removeprefix(": && ").removesuffix(" && :"))


def edited(edits, overlay):
    """Writes the edited files below `overlay`; the sources to compile."""
    texts, units = {}, []
    for path, old, new, *users in edits:
        text = texts.get(path) or (ROOT / path).read_text()
        if text.count(old) != 1:
            sys.exit(f"mutations: {path} holds {text.count(old)} times, not once: {old!r}")
        texts[path] = text.replace(old, new)
        units += users[0] if users else [path]
    for path, text in texts.items():
        target = overlay / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return sorted(set(units))


def build_mutant(build, work, edits):
    compile_of, link = commands(build)
    overlay = work / "source"
    objects = []
    for unit in edited(edits, overlay):
        command = list(compile_of[unit])
        source = overlay / unit if (overlay / unit).exists() else ROOT / unit
        output = work / (unit.replace("/", "_") + ".o")
        command[command.index("-o") + 1] = str(output)
        command[command.index("-c") + 1] = str(source)
        command.insert(command.index("-c"), "-Wno-error")  # what is taken out may leave something unused
        command.insert(2 if "ccache" in command[0] else 1, f"-I{overlay / 'src'}")  # before the real one
        subprocess.run(command, cwd=build, check=True, capture_output=True)
        objects.append((unit, output))
    at = link.index("-o")
    link[at + 1] = str(work / "simulate")
    # Before the archives, whose member of the same name is not taken then; the simulator's own objects are replaced.
    own = [Path(unit).name for unit, _ in objects if unit.startswith("tests/")]
    link = [word for word in link if Path(word).name.removesuffix(".o") not in own or not word.endswith(".cc.o")]
    link[link.index("-o"):link.index("-o")] = [str(output) for _, output in objects]
    subprocess.run(link, cwd=build, check=True)
    return work / "simulate"


def run(binary, n_seeds):
    """(invariant, seed, what), or None when all seeds passed."""
    command = [str(binary), "--seeds", str(n_seeds), "--until-failure"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "time", "-", "it does not end"
    if done.returncode == 0:
        return None
    found = re.search(r"^seed (\d+): broke (\w+): (.*)$", done.stdout, re.MULTILINE)
    return (found[2], found[1], found[3]) if found else ("?", "-", done.stdout[-200:] + done.stderr[-200:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", default="", help="guards whose name contains this")
    parser.add_argument("--seeds", type=int, default=20000)
    options = parser.parse_args()
    work = options.build.resolve() / "mutations"
    n_missed = 0
    print(f"{'guard taken out':48} {'noticed by':12} {'at seed':>8}  how")
    for name, edits in {**CONTROLS, **GUARDS}.items():
        if options.only not in name:
            continue
        subprocess.run(["rm", "-rf", str(work)], check=True)
        work.mkdir(parents=True)
        result = run(build_mutant(options.build.resolve(), work, edits),
                     min(options.seeds, 2000) if name in CONTROLS else options.seeds)
        wrong = (result is not None) if name in CONTROLS else (result is None)
        n_missed += wrong
        invariant, seed, what = result or ("nothing", "-", "")
        print(f"{name:48} {invariant:12} {seed:>8}  {what[:100]}{'   <-- WRONG' if wrong else ''}", flush=True)
    print(f"{n_missed} guards are not missed" if n_missed else "every guard is missed when it is taken out")
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main())
