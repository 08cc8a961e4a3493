#include "format/step_journal.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/atomic_file.h"

namespace df {
namespace {

constexpr std::string_view kFormat = "deltafold steps 2";
constexpr size_t kDigestDigits = 32;
// Of `auto` a step takes some kilobytes; a model has thousands of steps.
constexpr size_t kMaxJournalBytes = size_t{256} << 20;
constexpr size_t kPieceBytes = size_t{4} << 20;

std::string DigestOfText(std::string_view text) {
  Digest digest;
  digest.AddText(text);
  return digest.Hex();
}

std::string Line(const Json& json) {
  const std::string text = DumpJson(json);
  return DigestOfText(text) + " " + text + "\n";
}

// Of the first of `lines`, which it takes off; nothing when it is not whole.
std::optional<Json> TakeLine(std::string_view& lines) {
  const size_t end = lines.find('\n');
  if (end == std::string_view::npos || end <= kDigestDigits) return std::nullopt;
  const std::string_view line = lines.substr(0, end), text = line.substr(kDigestDigits + 1);
  if (line[kDigestDigits] != ' ' || DigestOfText(text) != line.substr(0, kDigestDigits)) return std::nullopt;
  Result<Json> json = ParseJson(text);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  lines.remove_prefix(end + 1);
  return std::move(*json);
}

bool HasDigest(const MappedFile& spool, uint64_t begin_bytes, uint64_t end_bytes, const std::string& expected) {
  Digest digest;
  for (uint64_t at = begin_bytes; at < end_bytes;) {
    const Bytes piece = spool.bytes().subspan(at, std::min<uint64_t>(kPieceBytes, end_bytes - at));
    digest.AddBytes(piece);
    spool.DropPages(piece);
    at += piece.size();
  }
  return digest.Hex() == expected;
}

struct Done {
  uint64_t journal_bytes = 0, spool_bytes = 0;
  std::vector<Json> notes;
};

// The steps that `lines`, which begin at byte `done.journal_bytes` of the journal, and the spool agree on.
void ReadSteps(std::string_view lines, const MappedFile& spool, Done& done) {
  for (;;) {
    const size_t left = lines.size();
    const std::optional<Json> line = TakeLine(lines);
    if (!line) return;
    const Result<int64_t> end = JsonInt(*line, "end", {.min = 0});
    const Result<std::string> data = JsonString(*line, "data");
    const Json* const note = JsonMemberOrNull(*line, "note");
    if (!end.ok() || !data.ok() || note == nullptr) return;
    const auto end_bytes = static_cast<uint64_t>(*end);
    if (end_bytes < done.spool_bytes || end_bytes > spool.bytes().size()) return;
    if (!HasDigest(spool, done.spool_bytes, end_bytes, *data)) return;
    done.spool_bytes = end_bytes;
    done.journal_bytes += left - lines.size();
    done.notes.push_back(*note);
  }
}

// `path` leads to the two.
std::string DifferenceAt(const Json& was, const Json& is, const std::string& path) {
  if (was.is_object() && is.is_object()) {
    for (const auto& [key, value] : is.items()) {
      const std::string inner = path.empty() ? key : path + "." + key;
      const Json* const other = JsonMemberOrNull(was, key);
      if (std::string found = DifferenceAt(other == nullptr ? Json() : *other, value, inner); !found.empty()) {
        return found;
      }
    }
    for (const auto& [key, value] : was.items()) {
      if (!is.contains(key)) return (path.empty() ? key : path + "." + key) + " was " + DumpJson(value) + ", is absent";
    }
    return "";
  }
  return was == is ? "" : path + " was " + DumpJson(was) + ", is " + DumpJson(is);
}

}  // namespace

std::string FirstDifference(const Json& was, const Json& is) { return DifferenceAt(was, is, ""); }

Result<StepJournal> StepJournal::Create(const std::string& directory, const Json& task, uint64_t first_byte) {
  const std::string path = directory + "/" + kFileName;
  DF_ASSIGN_OR_RETURN(AppendFile spool, AppendFile::Create(directory + "/" + kSpoolName, first_byte));
  const std::string head = Line({{"format", kFormat}, {"task", task}, {"first_byte", first_byte}});
  DF_RETURN_IF_ERROR(WriteFileAtomically(path, head));  // a journal never lacks its task
  DF_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Reopen(path, head.size()));
  return StepJournal(std::move(file), std::move(spool), task, first_byte);
}

Result<StepJournal> StepJournal::Reopen(const std::string& directory) {
  const std::string path = directory + "/" + kFileName, spool_path = directory + "/" + kSpoolName;
  DF_ASSIGN_OR_RETURN(const std::string text, ReadFileBounded(path, kMaxJournalBytes));
  std::string_view lines = text;
  const std::optional<Json> head = TakeLine(lines);
  const Json* const format = head ? JsonMemberOrNull(*head, "format") : nullptr;
  const Json* const task = head ? JsonMemberOrNull(*head, "task") : nullptr;
  const Result<int64_t> first_byte =
      head ? JsonInt(*head, "first_byte", {.min = 0}) : Result<int64_t>(Corrupt("no head"));
  if (format == nullptr || *format != kFormat || task == nullptr || !first_byte.ok()) {
    return Corrupt(path + " does not begin with the task of a run, as \"" + std::string(kFormat) + "\" has it");
  }
  const auto first = static_cast<uint64_t>(*first_byte);
  Done done{.journal_bytes = text.size() - lines.size(), .spool_bytes = first, .notes = {}};
  {
    DF_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> spool, MappedFile::Open(spool_path));
    ReadSteps(lines, *spool, done);
    DF_RETURN_IF_ERROR(spool->CheckIntact());
  }
  DF_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Reopen(path, done.journal_bytes));
  DF_ASSIGN_OR_RETURN(AppendFile spool, AppendFile::Reopen(spool_path, done.spool_bytes));
  StepJournal journal(std::move(file), std::move(spool), *task, first);
  journal.notes_ = std::move(done.notes);
  journal.has_steps_ = !journal.notes_.empty();
  return journal;
}

Status StepJournal::Append(Bytes data) {
  data_digest_.AddBytes(data);
  return spool_.Append(data);
}

Status StepJournal::EndStep(const Json& note) {
  const std::string line = Line({{"end", spool_.size_bytes()}, {"data", data_digest_.Hex()}, {"note", note}});
  DF_RETURN_IF_ERROR(journal_.Append(AsBytes(line)));
  data_digest_ = Digest();
  has_steps_ = true;
  if (first_byte_ > 0) spool_.StartWriteback();  // it stays where it is
  return Status::Ok();
}

Status StepJournal::Publish(std::string_view header, const std::string& path) {
  DF_CHECK(header.size() == first_byte_);
  DF_RETURN_IF_ERROR(spool_.WriteAt(0, AsBytes(header)));
  if (std::rename(spool_.path().c_str(), path.c_str()) != 0) {
    return IoError("cannot rename " + spool_.path() + " to " + path, errno);
  }
  if (unlink(journal_.path().c_str()) != 0) return IoError("cannot remove " + journal_.path(), errno);
  return Status::Ok();
}

Status StepJournal::Remove() {
  for (const std::string& path : {journal_.path(), spool_.path()}) {
    if (unlink(path.c_str()) != 0) return IoError("cannot remove " + path, errno);
  }
  return Status::Ok();
}

}  // namespace df
