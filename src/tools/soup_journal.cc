#include "tools/soup_journal.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/atomic_file.h"
#include "base/presence.h"
#include "format/step_journal.h"

namespace df::tools {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr std::array<std::string_view, 3> kKeptNames = {"best", "newest", "merged"};

Json OrNull(const std::optional<double>& score) { return score ? Json(*score) : Json(nullptr); }

Json LineOf(std::string_view event, const CheckpointId& checkpoint) {
  return {{"event", event}, {"checkpoint", checkpoint.name}, {"step", checkpoint.step}, {"stamp", checkpoint.stamp}};
}

Result<CheckpointId> ReadId(const Json& line) {
  CheckpointId id;
  DF_ASSIGN_OR_RETURN(id.name, JsonString(line, "checkpoint"));
  DF_ASSIGN_OR_RETURN(const int64_t step, JsonInt(line, "step", {.min = 0}));
  DF_ASSIGN_OR_RETURN(id.stamp, JsonString(line, "stamp"));
  id.step = static_cast<uint64_t>(step);
  return id;
}

Result<std::optional<double>> ReadScore(const Json& line, std::string_view key) {
  if (JsonMemberOrNull(line, key) == nullptr) return std::optional<double>();
  DF_ASSIGN_OR_RETURN(const double score, JsonNumber(line, key));
  return std::optional<double>(score);
}

Result<SoupStep> ReadStep(const Json& line) {
  SoupStep step;
  DF_ASSIGN_OR_RETURN(step.checkpoint, ReadId(line));
  DF_ASSIGN_OR_RETURN(step.newest, ReadScore(line, "newest"));
  DF_ASSIGN_OR_RETURN(step.merged, ReadScore(line, "merged"));
  DF_ASSIGN_OR_RETURN(step.best, ReadScore(line, "best"));
  DF_ASSIGN_OR_RETURN(const std::string kept, JsonString(line, "kept"));
  DF_ASSIGN_OR_RETURN(step.directory, JsonStringOr(line, "directory", ""));
  DF_ASSIGN_OR_RETURN(step.method, JsonStringOr(line, "method", ""));
  DF_ASSIGN_OR_RETURN(step.note, JsonStringOr(line, "note", ""));
  DF_ASSIGN_OR_RETURN(step.seconds, JsonNumberOr(line, "seconds", 0));
  for (size_t i = 0; i < kKeptNames.size(); ++i) {
    if (kept == kKeptNames[i]) step.kept = static_cast<Kept>(i);
  }
  if (kept != KeptName(step.kept)) return Corrupt("\"kept\" is \"" + kept + "\"");
  // It is joined to the soup's directory, and what is not the best there is removed.
  const bool is_plain = step.directory.find("..") == std::string::npos && !step.directory.starts_with("/");
  if (!is_plain || step.best.has_value() == step.directory.empty()) {
    return Corrupt("\"directory\" is \"" + step.directory + "\"");
  }
  return step;
}

void NoteScore(const CheckpointId& id, const std::string& method, double score, SoupRecords& records) {
  if (!records.open || records.open->checkpoint != id) records.open = OpenStep{.checkpoint = id};
  if (method.empty()) {
    records.open->newest = score;
  } else {
    records.open->merged = score;
    records.open->method = method;
  }
}

Status ReadLine(const Json& line, SoupRecords& records) {
  DF_ASSIGN_OR_RETURN(const std::string event, JsonString(line, "event"));
  if (event == "score") {
    DF_ASSIGN_OR_RETURN(const CheckpointId id, ReadId(line));
    DF_ASSIGN_OR_RETURN(const std::optional<double> score, ReadScore(line, "score"));
    DF_ASSIGN_OR_RETURN(const std::string method, JsonStringOr(line, "method", ""));
    NoteScore(id, method, score.value_or(std::numeric_limits<double>::quiet_NaN()), records);
  } else if (event == "step") {
    DF_ASSIGN_OR_RETURN(SoupStep step, ReadStep(line));
    records.steps.push_back(std::move(step));
    records.open.reset();
  } else if (event == "skip") {
    SoupSkip skip;
    DF_ASSIGN_OR_RETURN(skip.checkpoint, ReadId(line));
    DF_ASSIGN_OR_RETURN(skip.reason, JsonString(line, "reason"));
    records.skips.push_back(std::move(skip));
    records.open.reset();
  } else {
    return Corrupt("the event \"" + event + "\" is unknown");
  }
  return Status::Ok();
}

Status CheckHeader(const std::string& path, const Json& was, const Json& is) {
  if (was == is) return Status::Ok();
  return FailedPrecondition(path + " belongs to another soup: " + FirstDifference(was, is) +
                            ". Its scores cannot be compared; take another directory");
}

}  // namespace

std::string_view KeptName(Kept kept) { return kKeptNames[static_cast<size_t>(kept)]; }

Result<SoupJournal> SoupJournal::Open(const std::string& path, const Json& header) {
  DF_ASSIGN_OR_RETURN(const bool is_there, HasFile(path));
  if (!is_there) DF_RETURN_IF_ERROR(WriteFileAtomically(path, DumpJson(header) + "\n"));
  DF_ASSIGN_OR_RETURN(const std::string text, ReadFileBounded(path, kMaxBytes));
  SoupRecords records;
  size_t number = 0, begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    ++number;
    const std::string where = path + " line " + std::to_string(number);
    Result<Json> line = ParseJson(std::string_view(text).substr(begin, end - begin));
    if (!line.ok() || !line->is_object()) {
      return Corrupt(where + " is no JSON object" + (line.ok() ? "" : ": " + line.status().message()));
    }
    if (number == 1) {
      DF_RETURN_IF_ERROR(CheckHeader(path, *line, header));
      continue;
    }
    const Status read = ReadLine(*line, records);
    if (!read.ok()) return Corrupt(where + ": " + read.message());
  }
  if (number == 0) return Corrupt(path + " has no first line");
  DF_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Reopen(path, begin));
  return SoupJournal(std::move(file), std::move(records));
}

Status SoupJournal::Append(const Json& line) {
  DF_RETURN_IF_ERROR(file_.Append(AsBytes(DumpJson(line) + "\n")));
  return file_.Sync();
}

Status SoupJournal::AddScore(const CheckpointId& checkpoint, const std::string& method, double score) {
  Json line = LineOf("score", checkpoint);
  if (!method.empty()) line["method"] = method;
  line["score"] = std::isfinite(score) ? Json(score) : Json(nullptr);
  DF_RETURN_IF_ERROR(Append(line));
  NoteScore(checkpoint, method, score, records_);
  return Status::Ok();
}

Status SoupJournal::AddStep(const SoupStep& step) {
  DF_RETURN_IF_ERROR(Append(ToJson(step)));
  records_.steps.push_back(step);
  records_.open.reset();
  return Status::Ok();
}

Status SoupJournal::AddSkip(const SoupSkip& skip) {
  DF_RETURN_IF_ERROR(Append(ToJson(skip)));
  records_.skips.push_back(skip);
  records_.open.reset();
  return Status::Ok();
}

Json ToJson(const SoupStep& step) {
  Json line = LineOf("step", step.checkpoint);
  line["newest"] = OrNull(step.newest);
  line["merged"] = OrNull(step.merged);
  line["kept"] = KeptName(step.kept);
  line["best"] = OrNull(step.best);
  line["directory"] = step.directory;
  line["method"] = step.method;
  line["note"] = step.note;
  line["seconds"] = step.seconds;
  return line;
}

Json ToJson(const SoupSkip& skip) {
  Json line = LineOf("skip", skip.checkpoint);
  line["reason"] = skip.reason;
  return line;
}

}  // namespace df::tools
