// `deltafold pool`: many adapters in few slots under a byte budget.
#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/command.h"
#include "cli/pool_probes.h"
#include "cli/pool_settings.h"
#include "cli/table.h"
#include "merge/adapter_pool.h"

namespace df::cli {
namespace {

constexpr char kExamples[] =
    "A pool keeps LoRA adapters in slots. One that has no room any more is merged into the slot that is most like it, "
    "and\nevery id goes on being answered by its slot, which is a PEFT adapter like any other. docs/merging.md tells "
    "what\nthat costs; docs/formats/pool.md what is on disk.\n"
    "Examples:\n"
    "  deltafold pool create adapters-pool --bytes 64MB --policy bounded --max-error 0.8\n"
    "  deltafold pool add adapters-pool sql ./sql-adapter && deltafold pool list adapters-pool\n"
    "  deltafold run --model base --variant sql=$(deltafold pool route adapters-pool sql) \"...\"";
constexpr char kCreateExamples[] =
    "Policies:\n"
    "  kmerge    a free slot is taken; without one the adapter is merged into the most similar slot\n"
    "  kmerge++  a free slot is taken only where no slot is as similar as --threshold\n"
    "  bounded   as kmerge, but a merge must leave every member within --max-error or, with probes, with --min-score "
    "of\n            its own score; else the adapter is refused, or the least used slot goes (--on-refusal)\n"
    "Examples:\n"
    "  deltafold pool create p --bytes 64MB\n"
    "  deltafold pool create p --bytes 64MB --policy kmerge++ --threshold q0.9\n"
    "  deltafold pool create p --bytes 64MB --policy bounded --min-score 0.8 --on-refusal evict --rank 16";
constexpr char kAddExamples[] =
    "A probe is a file of questions with answers, as `deltafold eval --task` takes it; by exact match, on the base "
    "that "
    "is\ngiven. Give the probes of all members whose scores are to be kept: `bounded` asks for them.\n"
    "Examples:\n"
    "  deltafold pool add p sql ./sql-adapter\n"
    "  deltafold pool add p sql ./sql-adapter --base base --probe sql=sql.jsonl --probe math=math.jsonl --items 50";

struct Arguments {
  std::string pool, id, adapter, slot;
  PoolSettings settings;
  std::string threshold, dtype = "auto", base;
  std::vector<std::string> probes;
  uint64_t n_items = 0, n_used = 0, n_threads = 0, lock_timeout_s = 30;
  bool replace = false, json = false;
};

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

Json ToJson(const PoolSlot& slot, const std::string& directory) {
  Json members = Json::array();
  for (const PoolMember& member : slot.members) {
    Json entry = {{"id", member.id},
                  {"error_at_most", Share(member.distance_at_most, member.norm)},
                  {"error_estimate", Share(member.distance_estimate, member.norm)}};
    if (member.own_score) entry["own_score"] = *member.own_score;
    if (member.score) entry["score"] = *member.score;
    members.push_back(std::move(entry));
  }
  return {{"slot", slot.name},
          {"directory", directory + "/slots/" + slot.name},
          {"bytes", slot.bytes},
          {"merged_adapters", slot.n_merged},
          {"never_merged", slot.whole.empty() ? Json(nullptr) : Json(slot.whole)},
          {"discarded_energy", slot.discarded_share},
          {"mean_error_at_most", Share(slot.mean_distance_at_most, slot.norm)},
          {"uses", slot.uses},
          {"generation", slot.digest},
          {"damage", slot.damage.empty() ? Json(nullptr) : Json(slot.damage)},
          {"members", std::move(members)}};
}

// For a change: waits for another process that makes one.
Result<std::unique_ptr<AdapterPool>> OpenForChange(const Arguments& arguments) {
  const PoolLockWait wait = {.most_ms = static_cast<int64_t>(arguments.lock_timeout_s * 1000),
                             .on_wait = [&](const std::string& holder) {
                               std::cerr << "deltafold pool: " << Printable(arguments.pool) << " is in use by "
                                         << holder << ": waiting for " << arguments.lock_timeout_s << " s at most\n";
                             }};
  return FromFiles(AdapterPool::Open(arguments.pool, wait));
}

// A setting that the policy or rule never looks at was meant for another.
Status CheckMeant(const Arguments& arguments) {
  const PoolSettings& settings = arguments.settings;
  const PoolSettings unless_given;
  if (!arguments.threshold.empty() && settings.policy != PoolPolicy::kKMergePlus) {
    return InvalidArgument("--threshold is for --policy kmerge++");
  }
  if (settings.policy != PoolPolicy::kBounded &&
      (settings.max_error || settings.min_score_share != unless_given.min_score_share ||
       settings.on_refusal != unless_given.on_refusal)) {
    return InvalidArgument("--max-error, --min-score and --on-refusal are for --policy bounded");
  }
  if (settings.rule != AdapterRule::kOpcm && settings.alpha != unless_given.alpha) {
    return InvalidArgument("--alpha is for --rule opcm");
  }
  return Status::Ok();
}

Status Create(const Arguments& arguments) {
  PoolSettings settings = arguments.settings;
  SetPoolDType(arguments.dtype, settings);
  DF_RETURN_IF_ERROR(CheckMeant(arguments));
  if (!arguments.threshold.empty()) {
    settings.threshold_is_quantile = arguments.threshold.starts_with("q");
    const std::string number = arguments.threshold.substr(settings.threshold_is_quantile ? 1 : 0);
    const Result<Json> value = ParseJson(number);
    if (!value.ok() || !value->is_number()) {
      return InvalidArgument("--threshold is a similarity such as 0.05, or a quantile such as q0.9, not \"" +
                             arguments.threshold + "\"");
    }
    settings.threshold = value->get<double>();
  }
  DF_ASSIGN_OR_RETURN(const auto pool, AdapterPool::Create(arguments.pool, settings));
  if (arguments.json) {
    std::cout << DumpJson({{"pool", arguments.pool}, {"budget_bytes", settings.budget_bytes}}) << "\n";
  } else {
    std::cout << arguments.pool << ": an empty pool of " << FormatBytes(settings.budget_bytes) << ", "
              << PoolPolicyName(settings.policy) << "\n";
  }
  return Status::Ok();
}

Status Add(const Arguments& arguments) {
  DF_ASSIGN_OR_RETURN(const PoolProbes probes,
                      PoolProbes::Load(arguments.base, arguments.probes,
                                       {.n_threads = arguments.n_threads, .n_items = arguments.n_items}));
  DF_ASSIGN_OR_RETURN(const auto pool, OpenForChange(arguments));
  DF_RETURN_IF_ERROR(probes.CheckIds(pool->state(), arguments.id));
  ThreadPool threads(arguments.n_threads == 0 ? UsableCpus() : arguments.n_threads);
  PoolAddOptions options = {.replace = arguments.replace};
  if (!probes.empty()) {
    options.score = [&probes](const std::string& id, const std::string& directory) {
      return probes.Score(id, directory);
    };
  }
  const uint64_t n_refusals = pool->state().n_refusals;
  const Result<PoolAdded> result = FromFiles(pool->Add(threads, arguments.id, arguments.adapter, options));
  if (!result.ok()) {
    // The count would go with this process. Why it was refused is what there is to say, not that.
    if (pool->state().n_refusals != n_refusals) static_cast<void>(pool->Flush());
    return result.status();
  }
  const PoolAdded& added = *result;
  const PoolSlot& slot = *pool->state().FindOrNull(arguments.id);
  if (arguments.json) {
    Json json = ToJson(slot, arguments.pool);
    json["id"] = arguments.id;
    json["merged"] = added.merged;
    json["similarity"] = added.similarity;
    json["evicted"] = added.evicted_ids;
    std::cout << DumpJson(json) << "\n";
    return Status::Ok();
  }
  std::cout << Printable(arguments.id) << ": slot " << slot.name;
  if (added.merged) {
    std::cout << ", merged with " << slot.members.size() - 1 << " (similarity " << FormatFixed(added.similarity, 3)
              << ", " << FormatPercent(added.discarded_share) << " of the energy cut off)";
  } else if (added.shared) {
    std::cout << (slot.n_merged > 1 ? ", which it is merged into already" : ", which had these very bytes");
  } else {
    std::cout << " of its own, " << FormatBytes(slot.bytes);
  }
  std::cout << "\n";
  for (const std::string& id : added.evicted_ids) std::cout << Printable(id) << ": evicted, answered no more\n";
  return Status::Ok();
}

Status List(const Arguments& arguments) {
  DF_ASSIGN_OR_RETURN(const PoolState state, FromFiles(AdapterPool::ReadState(arguments.pool)));
  if (arguments.json) {
    Json slots = Json::array();
    for (const PoolSlot& slot : state.slots) slots.push_back(ToJson(slot, arguments.pool));
    std::cout << DumpJson(slots, 1) << "\n";
    return Status::Ok();
  }
  Table table({{"id"},
               {"slot"},
               {"of", Align::kRight},
               {"error <=", Align::kRight},
               {"error ~", Align::kRight},
               {"score", Align::kRight},
               {"own", Align::kRight},
               {"slot bytes", Align::kRight}});
  const auto score = [](const std::optional<double>& value) { return value ? FormatFixed(*value, 3) : "-"; };
  for (const PoolSlot& slot : state.slots) {
    for (const PoolMember& member : slot.members) {
      table.AddRow({member.id, slot.name + (slot.damage.empty() ? "" : " (damaged)"),
                    std::to_string(slot.members.size()), FormatFixed(Share(member.distance_at_most, member.norm), 3),
                    FormatFixed(Share(member.distance_estimate, member.norm), 3), score(member.score),
                    score(member.own_score), FormatBytes(slot.bytes)});
    }
  }
  std::cout << table.Render();
  for (const PoolSlot& slot : state.slots) {
    if (slot.damage.empty()) continue;
    std::cout << "slot " << slot.name << " is damaged: " << Printable(slot.damage)
              << "\nadd its adapters again with --replace, or: deltafold pool evict " << Printable(arguments.pool)
              << " --slot " << slot.name << "\n";
  }
  return Status::Ok();
}

Status Route(const Arguments& arguments) {
  PoolState state;
  if (arguments.n_used > 0) {
    DF_ASSIGN_OR_RETURN(const auto pool, OpenForChange(arguments));
    pool->CountUses(arguments.id, arguments.n_used);
    DF_RETURN_IF_ERROR(pool->Flush());
    state = pool->state();
  } else {
    DF_ASSIGN_OR_RETURN(state, FromFiles(AdapterPool::ReadState(arguments.pool)));
  }
  const PoolSlot* slot = state.FindOrNull(arguments.id);
  if (slot == nullptr) return NotFound("the id \"" + Printable(arguments.id) + "\" is not in the pool");
  if (!slot->damage.empty()) return Corrupt("slot " + slot->name + " is damaged: " + slot->damage);
  std::cout << (arguments.json ? DumpJson(ToJson(*slot, arguments.pool)) : arguments.pool + "/slots/" + slot->name)
            << "\n";
  return Status::Ok();
}

Status Stats(const Arguments& arguments) {
  DF_ASSIGN_OR_RETURN(const PoolState state, FromFiles(AdapterPool::ReadState(arguments.pool)));
  size_t n_members = 0;
  for (const PoolSlot& slot : state.slots) n_members += slot.members.size();
  const Json json = {{"policy", PoolPolicyName(state.settings.policy)},
                     {"budget_bytes", state.settings.budget_bytes},
                     {"used_bytes", state.UsedBytes()},
                     {"slots", state.slots.size()},
                     {"damaged_slots", state.Damaged()},
                     {"ids", n_members},
                     {"added", state.n_added},
                     {"merges", state.n_merges},
                     {"refusals", state.n_refusals},
                     {"evictions", state.n_evictions}};
  if (arguments.json) {
    std::cout << DumpJson(json) << "\n";
    return Status::Ok();
  }
  std::cout << PoolPolicyName(state.settings.policy) << ": " << n_members << " ids in " << state.slots.size()
            << " slots, " << FormatBytes(state.UsedBytes()) << " of " << FormatBytes(state.settings.budget_bytes)
            << "\nadded " << state.n_added << ", merges " << state.n_merges << ", refusals " << state.n_refusals
            << ", slots evicted " << state.n_evictions << "\n";
  if (state.Damaged() > 0) std::cout << "slots damaged " << state.Damaged() << ": deltafold pool list says which\n";
  return Status::Ok();
}

Status Evict(const Arguments& arguments) {
  if (arguments.id.empty() == arguments.slot.empty()) return InvalidArgument("give an id, or --slot");
  DF_ASSIGN_OR_RETURN(const auto pool, OpenForChange(arguments));
  std::vector<std::string> ids = {arguments.id};
  if (arguments.slot.empty()) {
    DF_RETURN_IF_ERROR(FromFiles(pool->Remove(arguments.id)));
  } else {
    DF_ASSIGN_OR_RETURN(ids, FromFiles(pool->EvictSlot(arguments.slot)));
  }
  if (arguments.json) {
    std::cout << DumpJson({{"evicted", ids}}) << "\n";
    return Status::Ok();
  }
  for (const std::string& id : ids) std::cout << Printable(id) << ": answered no more\n";
  return Status::Ok();
}

using Run = Status (*)(const Arguments&);

Command AddOne(const Command& pool, const std::string& name, const std::string& help,
               const std::shared_ptr<Arguments>& arguments, Run run) {
  const Command command = pool.Sub(name, help);
  command.Option("pool", arguments->pool, "Directory of the pool").Required().NotEmpty().Value("POOL");
  command.Switch("--json", arguments->json, "Print JSON");
  command.OnRun([name, arguments, run] { return Report("pool " + name, run(*arguments)); });
  return command;
}

void AddCreate(const Command& pool) {
  const auto arguments = std::make_shared<Arguments>();
  PoolSettings& settings = arguments->settings;
  const Command command = AddOne(pool, "create", "Make an empty pool", arguments, Create);
  command.Bytes("--bytes", settings.budget_bytes, "For the slots' tensors, for example 64MB").Required().Value("BYTES");
  command
      .Choice<PoolPolicy>(
          "--policy",
          {{"kmerge", PoolPolicy::kKMerge}, {"kmerge++", PoolPolicy::kKMergePlus}, {"bounded", PoolPolicy::kBounded}},
          settings.policy, "kmerge, kmerge++ or bounded [kmerge]")
      .Value("NAME");
  command.Option("--rank", settings.rank, "Of merged modules, at most [the larger of the two]")
      .Range(1, 65536)
      .Value("N");
  command.Option("--dtype", arguments->dtype, "Of merged slots: auto, f32, bf16 or f16 [auto: as their parts]")
      .OneOf(kPoolDTypes)
      .Value("DTYPE");
  command
      .Option("--threshold", arguments->threshold,
              "kmerge++: a similarity, or qQ for the quantile Q of those between slots [0.5]")
      .Value("S");
  command
      .Option("--max-error", settings.max_error,
              "bounded: the most that a member's delta-W may be off, relative to its length")
      .Value("E");
  command.Option("--min-score", settings.min_score_share, "bounded: share of its own score that a member keeps [0.9]")
      .Value("Q");
  command
      .Choice<AdapterRule>("--rule", {{"mean", AdapterRule::kMean}, {"opcm", AdapterRule::kOpcm}}, settings.rule,
                           "How slots are merged: mean or opcm [mean]")
      .Value("RULE");
  command.Option("--alpha", settings.alpha, "opcm: share of the singular values that is protected [0.5]").Value("A");
  command
      .Choice<PoolRefusal>("--on-refusal", {{"reject", PoolRefusal::kReject}, {"evict", PoolRefusal::kEvict}},
                           settings.on_refusal,
                           "bounded: reject the new adapter, or evict the least used slot [reject]")
      .Value("WHAT");
  command.Footer(kCreateExamples);
}

void AddLockTimeout(const Command& command, Arguments& arguments) {
  command
      .Option("--lock-timeout", arguments.lock_timeout_s,
              "Seconds to wait for a pool that another process has open; 0 = fail at once [30]")
      .Range(0, 86400)
      .Value("SECONDS");
}

void AddAdd(const Command& pool) {
  const auto arguments = std::make_shared<Arguments>();
  const Command command = AddOne(pool, "add", "Take an adapter in under an id", arguments, Add);
  command.Option("id", arguments->id, "To answer for").Required().Value("ID");
  command.Option("adapter", arguments->adapter, "PEFT adapter directory").Required().Value("DIR");
  command.Switch("--replace", arguments->replace, "Put it in the place of what has the id");
  command.Option("--base", arguments->base, "Model that probes are asked of").Value("MODEL");
  command.Option("--probe", arguments->probes, "Questions of an id, repeatable").Value("ID=FILE.jsonl").OneValueEach();
  command.Option("--items", arguments->n_items, "Questions of a probe [all]").Value("N");
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  AddLockTimeout(command, *arguments);
  command.Footer(kAddExamples);
}

}  // namespace

void AddPool(const Command& app) {
  const Command pool = app.Sub("pool", "Many LoRA adapters in few slots under a byte budget");
  pool.RequireSub();
  AddCreate(pool);
  AddAdd(pool);
  auto arguments = std::make_shared<Arguments>();
  AddOne(pool, "list", "Ids, their slots, and what they lost", arguments, List)
      .Footer(
          "Errors are of delta-W, relative to its length: proven at most, and by sketches.\n"
          "Examples:\n  deltafold pool list p\n  deltafold pool list p --json | jq '.[].members[].id'");
  arguments = std::make_shared<Arguments>();
  const Command route = AddOne(pool, "route", "The directory of the adapter that answers for an id", arguments, Route);
  route.Option("id", arguments->id, "Of a member").Required().Value("ID");
  route.Option("--used", arguments->n_used, "Count so many requests for it: least used slots are evicted first")
      .Value("N");
  AddLockTimeout(route, *arguments);
  route.Footer("Examples:\n  deltafold pool route p sql\n  deltafold pool route p sql --used 120");
  arguments = std::make_shared<Arguments>();
  AddOne(pool, "stats", "Bytes, slots and what has happened", arguments, Stats)
      .Footer("Examples:\n  deltafold pool stats p\n  deltafold pool stats p --json");
  arguments = std::make_shared<Arguments>();
  const Command evict = AddOne(pool, "evict", "Answer for an id, or for all of a slot, no more", arguments, Evict);
  evict.Option("id", arguments->id, "Of a member; its slot goes with its last one").Value("ID");
  evict.Option("--slot", arguments->slot, "All members of a slot").Value("SLOT");
  AddLockTimeout(evict, *arguments);
  evict.Footer("Examples:\n  deltafold pool evict p sql\n  deltafold pool evict p --slot 000012");
  pool.Footer(kExamples);
}

}  // namespace df::cli
