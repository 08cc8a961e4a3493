#include "codec/compress_steps.h"

#include <algorithm>
#include <span>

#include "codec/model_card.h"
#include "format/digest.h"

namespace df {
namespace {

Status CheckStep(const Json& note, std::string_view step, const std::string& weight) {
  const Json* const found_step = JsonMemberOrNull(note, "step");
  const Json* const found_weight = JsonMemberOrNull(note, "weight");
  if (found_step != nullptr && *found_step == step && found_weight != nullptr && *found_weight == weight) {
    return Status::Ok();
  }
  return Corrupt("the journal of the run that was stopped has another step where " + std::string(step) + " of " +
                 weight + " is due; discard it with --force");
}

Result<uint64_t> ReadBytes(const Json& note) {
  DF_ASSIGN_OR_RETURN(const int64_t bytes, JsonInt(note, "bytes", {.min = 0}));
  return static_cast<uint64_t>(bytes);
}

Result<Candidate> ReadCandidate(const Json& entry) {
  Candidate candidate;
  DF_ASSIGN_OR_RETURN(const std::string code, JsonString(entry, "code"));
  DF_ASSIGN_OR_RETURN(candidate.code, ParseCode(code));
  DF_ASSIGN_OR_RETURN(candidate.bytes, ReadBytes(entry));
  DF_ASSIGN_OR_RETURN(candidate.error, JsonNumber(entry, "error"));
  DF_ASSIGN_OR_RETURN(candidate.loss, JsonNumber(entry, "loss"));
  return candidate;
}

}  // namespace

Result<Json> CompressTask(const Checkpoint& fine_tune, const std::string& base_fingerprint,
                          const CompressOptions& options) {
  DF_ASSIGN_OR_RETURN(const std::string files, FilesIdentity(fine_tune));
  Json task = {{"base_fingerprint", base_fingerprint},
               {"fine_tune_files", files},
               {"base_name", options.base_name},
               {"model_name", options.model_name}};
  if (!options.origin.empty()) task["origin"] = options.origin;
  if (options.calibration) {
    Digest digest;
    for (const std::vector<int32_t>& sequence : options.calibration->sequences) {
      const std::span<const int32_t> ids = sequence;
      digest.AddText({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
    }
    task["calibration"] = {{"tokens", digest.Hex()}, {"max_bytes", options.calibration->max_bytes}};
  }
  task["budget_may_grow"] = options.budget_may_grow;
  task["codec"] = ToJson(CompressReport{}, options).at("codec");
  return task;
}

Json NoteOf(const std::string& weight, const std::vector<Candidate>& candidates) {
  Json note = {{"step", "survey"}, {"weight", weight}, {"candidates", Json::array()}};
  for (const Candidate& candidate : candidates) {
    note["candidates"].push_back({{"code", CodeText(candidate.code)},
                                  {"bytes", candidate.bytes},
                                  {"error", candidate.error},
                                  {"loss", candidate.loss}});
  }
  return note;
}

Result<std::vector<Candidate>> ReadCandidates(const Json& note, const std::string& weight) {
  DF_RETURN_IF_ERROR(CheckStep(note, "survey", weight));
  const Json* const entries = JsonMemberOrNull(note, "candidates");
  if (entries == nullptr || !entries->is_array() || entries->empty()) {
    return Corrupt("the journal's survey of " + weight + " has no candidates");
  }
  std::vector<Candidate> candidates;
  for (const Json& entry : *entries) {
    DF_ASSIGN_OR_RETURN(candidates.emplace_back(), ReadCandidate(entry));
  }
  return candidates;
}

Json NoteOf(const WeightReport& report) {
  return {{"step", "encoding"},
          {"weight", report.name},
          {"code", report.code},
          {"chosen", report.chosen},
          {"bytes", report.bytes},
          {"relative_frobenius", report.quality.relative_frobenius},
          {"cosine", report.quality.cosine},
          {"max_abs_error", report.quality.max_abs_error}};
}

Status ReadEncoded(const Json& note, WeightReport& report) {
  DF_RETURN_IF_ERROR(CheckStep(note, "encoding", report.name));
  DF_ASSIGN_OR_RETURN(report.code, JsonString(note, "code"));
  const auto n_candidates = static_cast<int64_t>(report.candidates.size());
  DF_ASSIGN_OR_RETURN(const int64_t chosen,
                      JsonInt(note, "chosen", {.min = 0, .max = std::max<int64_t>(n_candidates, 1) - 1}));
  report.chosen = static_cast<size_t>(chosen);
  DF_ASSIGN_OR_RETURN(report.bytes, ReadBytes(note));
  DF_ASSIGN_OR_RETURN(report.quality.relative_frobenius, JsonNumber(note, "relative_frobenius"));
  DF_ASSIGN_OR_RETURN(report.quality.cosine, JsonNumber(note, "cosine"));
  DF_ASSIGN_OR_RETURN(report.quality.max_abs_error, JsonNumber(note, "max_abs_error"));
  return Status::Ok();
}

}  // namespace df
