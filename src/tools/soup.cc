#include "tools/soup.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "format/checkpoint.h"
#include "merge/merger.h"

namespace df::tools {
namespace {

namespace fs = std::filesystem;

constexpr char kBestLink[] = "best";
constexpr char kNextLink[] = "best.next";  // the link before it gets its name; the lock makes one name enough
constexpr char kCheckpoints[] = "checkpoints";
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CheckpointId IdOf(const FoundCheckpoint& checkpoint) {
  return {.name = checkpoint.name, .step = checkpoint.step, .stamp = checkpoint.stamp};
}

std::optional<double> IfNumber(double score) { return std::isfinite(score) ? std::optional(score) : std::nullopt; }

// Failures of a checkpoint that is what it is, however often it is read.
bool IsOfTheCheckpoint(const Status& status) { return status.code() == StatusCode::kCorrupt; }
// Of merging two: they do not fit.
bool IsOfThePair(const Status& status) {
  return IsOfTheCheckpoint(status) || status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kUnsupported;
}

Json HeaderOf(const SoupOptions& options, const SoupScorer& scorer) {
  return {{"event", "soup"},
          {"version", 1},
          {"base", options.base.empty() ? "" : merge::NameForPeople(options.base)},
          {"score", scorer.identity()}};
}

// Makes `out` and locks it until the descriptor is closed.
Result<int> LockDirectory(const std::string& out) {
  std::error_code error;
  fs::create_directories(out + "/" + kCheckpoints, error);
  if (error) return IoError("cannot create directory " + out, error.value());
  const int fd = open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return IoError("cannot open directory " + out, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd);
    return FailedPrecondition(out + " is in use by another soup");
  }
  return fd;
}

// What is not ours is not touched: without a journal a directory must be empty.
Status CheckOurs(const std::string& out) {
  std::error_code error;
  bool has_journal = false;
  std::string other;
  for (fs::directory_iterator entries(out, error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    has_journal = has_journal || name == SoupJournal::kFileName;
    const bool is_begun = name.starts_with(SoupJournal::kFileName) || (name == kCheckpoints && fs::is_empty(*entries));
    if (!is_begun) other = name;
  }
  if (error && error != std::errc::no_such_file_or_directory) return IoError("cannot read " + out, error.value());
  if (has_journal || other.empty()) return Status::Ok();
  return FailedPrecondition(out + " holds \"" + other + "\" and no " + SoupJournal::kFileName +
                            ": it is no soup; name a directory that is empty or not there");
}

// A model's own files: weights, configs, tokenizer, templates; not what only the trainer reads.
bool IsOfTheModel(const std::string& name) {
  if (name == "trainer_state.json") return false;
  const std::string extension = fs::path(name).extension().string();
  return extension == ".safetensors" || extension == ".json" || extension == ".jinja" || extension == ".txt" ||
         extension == ".model" || extension == ".md";
}

Status CopySynced(const fs::path& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) return IoError("cannot copy " + from.string() + " to " + to, error.value());
  const int fd = open(to.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return IoError("cannot open " + to, errno);
  const int failed = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return failed == 0 ? Status::Ok() : IoError("cannot fsync " + to, failed);
}

// Whether a stopped merge to `target` left something that it could be continued from.
bool HasLeftover(const std::string& target) {
  std::error_code error;
  const fs::path path(target);
  for (fs::directory_iterator entries(path.parent_path(), error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    if (entries->path().filename().string().starts_with(path.filename().string() + ".")) return true;
  }
  return false;
}

}  // namespace

Soup::Soup(SoupOptions options, SoupScorer scorer, SoupJournal journal, int lock_fd)
    : options_(std::move(options)),
      scorer_(std::move(scorer)),
      journal_(std::move(journal)),
      method_text_(MethodText(options_.method)),
      lock_fd_(lock_fd),
      pool_(options_.n_threads > 0 ? options_.n_threads : UsableCpus()) {}

Soup::~Soup() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

Result<std::unique_ptr<Soup>> Soup::Open(SoupOptions options) {
  while (options.out.size() > 1 && options.out.ends_with("/")) options.out.pop_back();
  if (options.out.empty()) return InvalidArgument("a soup needs a directory for what it keeps");
  DF_RETURN_IF_ERROR(SoupRecipe(options.method, options.base, "best", "newest").status());
  if (!options.base.empty()) {
    DF_ASSIGN_OR_RETURN(options.base, ResolveModelDirectory(options.base));
    DF_RETURN_IF_ERROR(Checkpoint::Open(options.base).status());
  }
  options.score.base = options.base;
  options.score.n_threads = options.n_threads;
  options.score.on_progress = options.on_progress;
  DF_ASSIGN_OR_RETURN(SoupScorer scorer, SoupScorer::Create(options.score));
  DF_RETURN_IF_ERROR(CheckOurs(options.out));
  DF_ASSIGN_OR_RETURN(const int lock_fd, LockDirectory(options.out));
  auto journal = SoupJournal::Open(options.out + "/" + SoupJournal::kFileName, HeaderOf(options, scorer));
  if (!journal.ok()) {
    close(lock_fd);
    return journal.status();
  }
  std::unique_ptr<Soup> soup(new Soup(std::move(options), std::move(scorer), std::move(*journal), lock_fd));
  // What the last process may not have come to.
  DF_RETURN_IF_ERROR(soup->MoveLink());
  DF_RETURN_IF_ERROR(soup->Tidy());
  return soup;
}

Status Soup::Say(const std::string& what, uint64_t done, uint64_t total) const {
  if (!options_.on_progress || options_.on_progress(what, done, total)) return Status::Ok();
  return Cancelled("interrupted: " + what);
}

const SoupStep* Soup::BestOrNull() const { return steps().empty() || !steps().back().best ? nullptr : &steps().back(); }

std::string Soup::BestDirectory() const { return options_.out + "/" + BestOrNull()->directory; }

bool Soup::IsKnown(const FoundCheckpoint& checkpoint) const {
  const CheckpointId id = IdOf(checkpoint);
  const auto is_it = [&](const auto& record) { return record.checkpoint == id; };
  return std::ranges::any_of(steps(), is_it) || std::ranges::any_of(skips(), is_it);
}

// Below `out`. The number tells apart what a training that was run again writes under the same step.
std::string Soup::TargetOf(const CheckpointId& checkpoint, Kept kept) const {
  char number[32];
  std::snprintf(number, sizeof(number), "%04zu", steps().size() + skips().size() + 1);
  return std::string(kCheckpoints) + "/" + number + "-step-" + std::to_string(checkpoint.step) +
         (kept == Kept::kMerged ? "-merged" : "");
}

Result<double> Soup::ScoreOf(const FoundCheckpoint& checkpoint) {
  const CheckpointId id = IdOf(checkpoint);
  const std::optional<OpenStep>& open = journal_.records().open;
  if (open && open->checkpoint == id && open->newest) return *open->newest;
  DF_ASSIGN_OR_RETURN(double score, scorer_.OfTrained(checkpoint.directory, checkpoint.name));
  if (!std::isfinite(score)) score = kNaN;
  // What was measured is the checkpoint only if it did not change meanwhile.
  if (!IsUnchanged(checkpoint)) return Corrupt("it vanished or changed while it was measured");
  DF_RETURN_IF_ERROR(journal_.AddScore(id, "", score));
  DF_RETURN_IF_ERROR(Say("measured " + checkpoint.name));
  return score;
}

Status Soup::MergeInto(const FoundCheckpoint& checkpoint, const std::string& target) {
  DF_ASSIGN_OR_RETURN(const merge::Recipe recipe,
                      SoupRecipe(options_.method, options_.base, BestDirectory(), checkpoint.directory));
  DF_ASSIGN_OR_RETURN(const merge::MergeSources sources, merge::OpenSources(recipe));
  merge::MergerOptions how{.replace = true, .resume = HasLeftover(target)};
  how.on_progress = [&](const StreamProgress& done) {
    return Say("merging " + checkpoint.name, done.done_bytes, done.n_bytes).ok();
  };
  Status merged = merge::MergeModels(pool_, recipe, sources, target, how).status();
  if (!merged.ok() && how.resume && IsOfThePair(merged)) {  // what was left is of another method, or damaged
    how.resume = false;
    merged = merge::MergeModels(pool_, recipe, sources, target, how).status();
  }
  DF_RETURN_IF_ERROR(merged);
  std::error_code error;  // one that is gone by now was read whole
  if (fs::exists(checkpoint.directory, error) && !IsUnchanged(checkpoint)) {
    return Corrupt("it changed while it was merged");
  }
  return Say("merged " + checkpoint.name);
}

// Nothing where the two cannot be merged or the result cannot be measured: `step` notes why.
Result<std::optional<double>> Soup::MergedScore(const FoundCheckpoint& checkpoint, SoupStep& step) {
  const CheckpointId id = step.checkpoint;
  const std::string target = options_.out + "/" + TargetOf(id, Kept::kMerged);
  const std::optional<OpenStep>& open = journal_.records().open;
  std::error_code error;
  const bool is_there = fs::is_directory(target, error);
  if (is_there && open && open->checkpoint == id && open->merged && open->method == method_text_) return open->merged;
  const Status merged = MergeInto(checkpoint, target);
  if (!merged.ok()) {
    const bool is_theirs = IsOfThePair(merged) || !IsUnchanged(checkpoint);
    if (!is_theirs || merged.code() == StatusCode::kCancelled) return merged;
    step.note = "not merged: " + merged.message();
    return std::optional<double>();
  }
  Result<double> score = scorer_.OfMerged(target, "merged " + checkpoint.name);
  if (IsOfTheCheckpoint(score.status())) {
    step.note = "not measured: " + score.status().message();
    score = kNaN;
  }
  if (!score.ok()) return score.status();
  if (!std::isfinite(*score)) score = kNaN;
  DF_RETURN_IF_ERROR(journal_.AddScore(id, method_text_, *score));
  DF_RETURN_IF_ERROR(Say("measured merged " + checkpoint.name));
  return std::optional<double>(*score);
}

Status Soup::Measure(const FoundCheckpoint& checkpoint, SoupStep& step) {
  DF_ASSIGN_OR_RETURN(const double newest, ScoreOf(checkpoint));
  step.newest = IfNumber(newest);
  if (!step.newest) {
    step.note = "its score is no finite number (nan or infinite): neither merged nor kept";
    return Status::Ok();
  }
  if (BestOrNull() == nullptr) return Status::Ok();
  if (!scorer_.CanMeasureMerged()) {
    step.note = "not merged: a merged checkpoint has no metric file to be measured by";
    return Status::Ok();
  }
  DF_ASSIGN_OR_RETURN(const std::optional<double> merged, MergedScore(checkpoint, step));
  if (!merged) return Status::Ok();
  step.method = method_text_;
  step.merged = IfNumber(*merged);
  if (!step.merged && step.note.empty()) step.note = "the merged checkpoint's score is no finite number";
  return Status::Ok();
}

Status Soup::CopyNewest(const FoundCheckpoint& checkpoint, const std::string& target) const {
  DF_ASSIGN_OR_RETURN(AtomicDirectory directory,
                      AtomicDirectory::Create(target, {.replace = true, .inputs = {checkpoint.directory}}));
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entries(checkpoint.directory, error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    if (entries->is_regular_file(error) && IsOfTheModel(entries->path().filename().string())) {
      paths.push_back(entries->path());
    }
  }
  if (error) return IoError("cannot read " + checkpoint.directory, error.value());
  for (size_t i = 0; i < paths.size(); ++i) {
    DF_RETURN_IF_ERROR(Say("copying " + checkpoint.name, i, paths.size()));
    DF_RETURN_IF_ERROR(CopySynced(paths[i], directory.path() + "/" + paths[i].filename().string()));
  }
  if (!IsUnchanged(checkpoint)) return Corrupt("it vanished or changed while it was copied");
  DF_RETURN_IF_ERROR(SyncDirectoryOf(directory.path() + "/."));
  DF_RETURN_IF_ERROR(directory.Commit());
  return Say("copied " + checkpoint.name);
}

// Fills in what is kept, and has it stand there under its name. Of equal scores the one that was there stays, then the
// merged one goes before the newest.
Status Soup::Keep(const FoundCheckpoint& checkpoint, SoupStep& step) {
  const SoupStep* const before = BestOrNull();
  double score = before == nullptr ? kNaN : *before->best;
  const auto take = [&](const std::optional<double>& offered, Kept kept) {
    if (!offered || !scorer_.IsBetter(*offered, score)) return;
    score = *offered;
    step.kept = kept;
  };
  take(step.merged, Kept::kMerged);
  take(step.newest, Kept::kNewest);
  step.best = IfNumber(score);
  if (step.kept == Kept::kBest) {
    step.directory = before == nullptr ? "" : before->directory;
    return Status::Ok();
  }
  step.directory = TargetOf(step.checkpoint, step.kept);
  return step.kept == Kept::kNewest ? CopyNewest(checkpoint, options_.out + "/" + step.directory) : Status::Ok();
}

Result<TakenCheckpoint> Soup::Skip(const FoundCheckpoint& checkpoint, const std::string& reason) {
  const SoupSkip skip{.checkpoint = IdOf(checkpoint), .reason = reason};
  DF_RETURN_IF_ERROR(journal_.AddSkip(skip));
  DF_RETURN_IF_ERROR(Tidy());
  return TakenCheckpoint{.skip = skip};
}

Result<TakenCheckpoint> Soup::Take(const FoundCheckpoint& checkpoint) {
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  DF_RETURN_IF_ERROR(Say("taking " + checkpoint.name));
  SoupStep step{.checkpoint = IdOf(checkpoint)};
  Status status = Measure(checkpoint, step);
  if (status.ok()) status = Keep(checkpoint, step);
  if (!status.ok()) {
    if (status.code() == StatusCode::kCancelled) return status;
    if (IsOfTheCheckpoint(status)) return Skip(checkpoint, status.message());
    if (!IsUnchanged(checkpoint)) return Skip(checkpoint, "it vanished or changed: " + status.message());
    return status.Annotate(checkpoint.name);
  }
  step.seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  DF_RETURN_IF_ERROR(Say("keeping " + std::string(KeptName(step.kept))));
  DF_RETURN_IF_ERROR(journal_.AddStep(step));
  DF_RETURN_IF_ERROR(Say("took " + checkpoint.name));
  DF_RETURN_IF_ERROR(MoveLink());
  DF_RETURN_IF_ERROR(Say("linked " + checkpoint.name));
  DF_RETURN_IF_ERROR(Tidy());
  return TakenCheckpoint{.step = step};
}

Result<std::optional<SoupSkip>> Soup::SkipVanished(const std::vector<FoundCheckpoint>& found) {
  const std::optional<OpenStep>& open = journal_.records().open;
  if (!open) return std::optional<SoupSkip>();
  const CheckpointId id = open->checkpoint;
  const auto is_it = [&](const FoundCheckpoint& checkpoint) { return checkpoint.name == id.name; };
  if (std::ranges::any_of(found, is_it)) return std::optional<SoupSkip>();
  const SoupSkip skip{.checkpoint = id, .reason = "it was gone before its step was finished"};
  DF_RETURN_IF_ERROR(journal_.AddSkip(skip));
  DF_RETURN_IF_ERROR(Tidy());
  return std::optional<SoupSkip>(skip);
}

Status Soup::MoveLink() const {
  const SoupStep* const best = BestOrNull();
  if (best == nullptr) return Status::Ok();
  const std::string link = options_.out + "/" + kBestLink, next = options_.out + "/" + kNextLink;
  std::error_code error;
  if (!fs::is_directory(BestDirectory(), error)) {
    return FailedPrecondition(BestDirectory() + ", the best checkpoint so far, is gone; begin again elsewhere");
  }
  if (fs::read_symlink(link, error) == best->directory) return Status::Ok();
  fs::remove(next, error);
  fs::create_directory_symlink(best->directory, next, error);
  if (error) return IoError("cannot make the link " + next, error.value());
  if (std::rename(next.c_str(), link.c_str()) != 0) return IoError("cannot rename " + next + " to " + link, errno);
  return SyncDirectoryOf(link);
}

// Removes what is neither the best, nor to be kept, nor of the step that was begun.
Status Soup::Tidy() const {
  std::vector<std::string> kept;
  for (const SoupStep& step : steps()) {
    const bool stays = options_.keep_all || &step == BestOrNull();
    if (stays && !step.directory.empty()) kept.push_back(fs::path(step.directory).filename().string());
  }
  std::string begun;  // and the temporary names beside it
  if (const auto& open = journal_.records().open) {
    begun = fs::path(TargetOf(open->checkpoint, Kept::kNewest)).filename().string();
  }
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator entries(options_.out + "/" + kCheckpoints, error);
       !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const bool is_begun = !begun.empty() && name.starts_with(begun);
    if (!is_begun && std::ranges::find(kept, name) == kept.end()) leftovers.push_back(entries->path());
  }
  if (error) return IoError("cannot read " + options_.out + "/" + kCheckpoints, error.value());
  for (const fs::path& path : leftovers) {
    fs::remove_all(path, error);
    if (error) return IoError("cannot remove " + path.string(), error.value());
  }
  return Status::Ok();
}

}  // namespace df::tools
