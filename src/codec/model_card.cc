#include "codec/model_card.h"

#include <cmath>

#include "base/json.h"

namespace df {
namespace {

// Six decimals: what follows is noise to a reader.
double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

std::string Decimal(double value) { return DumpJson(Json(std::round(value * 1e4) / 1e4)); }

std::string ChoiceText(const std::optional<Code>& code) { return code ? CodeText(*code) : "auto"; }

bool AnyChosen(const CompressOptions& options) { return !options.matrices || !options.embeddings || !options.head; }

std::string BoundText(const CompressOptions& options) {
  if (options.max_error) return "error " + DumpJson(Json(*options.max_error));
  return BudgetText(options.budget);
}

std::string CalibrationText(const CompressReport& report, const CompressOptions& options) {
  if (report.calibration_tokens == 0) return "none";
  return std::to_string(report.calibration_tokens) + " tokens of " + DumpJson(options.calibration->source);
}

std::string OutputErrorLine(const CompressReport& report) {
  if (!report.mean_output_error) return "";
  return "| mean relative error of the outputs on the calibration text | " + Decimal(*report.mean_output_error) +
         " |\n";
}

std::string Recipe(const CompressOptions& options) {
  return "matrices " + ChoiceText(options.matrices) + "; embeddings " + ChoiceText(options.embeddings) + "; head " +
         ChoiceText(options.head) + (AnyChosen(options) ? "; auto within " + BoundText(options) : "");
}

Json TensorJson(const WeightReport& weight) {
  Json entry = {{"name", weight.name},
                {"code", weight.code},
                {"shape", weight.shape.dims()},
                {"bytes", weight.bytes},
                {"full_bytes", weight.full_bytes}};
  entry["relative_frobenius"] = Rounded(weight.quality.relative_frobenius);
  entry["cosine"] = Rounded(weight.quality.cosine);
  if (weight.output_error) entry["output_error"] = Rounded(*weight.output_error);
  for (size_t i = 0; i < weight.candidates.size(); ++i) {
    const Candidate& candidate = weight.candidates[i];
    Json& listed = entry["candidates"].emplace_back();
    listed = {{"code", CodeText(candidate.code)}, {"bytes", candidate.bytes}, {"error", Rounded(candidate.error)}};
    if (candidate.IsLossless()) listed["lossless"] = true;
    if (i == weight.chosen) listed["chosen"] = true;
  }
  return entry;
}

}  // namespace

Json ToJson(const CompressReport& report, const CompressOptions& options) {
  Json json;
  json["codec"] = {{"code", ChoiceText(options.matrices)},
                   {"embeddings", ChoiceText(options.embeddings)},
                   {"head", ChoiceText(options.head)}};
  if (AnyChosen(options)) json["codec"]["bound"] = BoundText(options);
  if (report.calibration_tokens > 0) {
    json["codec"]["calibration"] = {{"source", options.calibration->source}, {"tokens", report.calibration_tokens}};
  }
  json["quality"] = {{"mean_relative_frobenius", Rounded(report.mean_relative_frobenius)},
                     {"mean_cosine", Rounded(report.mean_cosine)}};
  if (report.mean_output_error) json["quality"]["mean_output_error"] = Rounded(*report.mean_output_error);
  json["bytes"] = {{"delta", report.delta_bytes}, {"full", report.full_bytes}};
  json["tensors"] = Json::array();
  for (const WeightReport& weight : report.weights) json["tensors"].push_back(TensorJson(weight));
  return json;
}

std::string CardHead(const std::string& base_name) {
  // A JSON string is a YAML string: names cannot break out of the front matter.
  return "---\n"
         "base_model: " +
         DumpJson(base_name) +
         "\n"
         "base_model_relation: adapter\n"
         "library_name: deltafold\n"
         "tags: [deltafold, delta]\n"
         "---\n\n";
}

std::string ModelCard(const CompressReport& report, const CompressOptions& options) {
  const double share =
      report.full_bytes == 0 ? 0 : static_cast<double>(report.delta_bytes) / static_cast<double>(report.full_bytes);
  return CardHead(options.base_name) + "# Delta of " + DumpJson(options.model_name) + " against " +
         DumpJson(options.base_name) +
         "\n\n"
         "Made and served by deltafold: the base's weights with this delta folded in answer as the fine-tune does, "
         "up to the error below.\n\n"
         "| | |\n|---|---|\n"
         "| recipe | " +
         Recipe(options) +
         " |\n"
         "| calibration | " +
         CalibrationText(report, options) +
         " |\n"
         "| bytes | " +
         std::to_string(report.delta_bytes) + " of " + std::to_string(report.full_bytes) + " (" + Decimal(share * 100) +
         " %) |\n"
         "| weights | " +
         std::to_string(report.weights.size()) + ", " + std::to_string(report.n_unchanged) +
         " unchanged and not stored |\n"
         "| mean relative Frobenius error of the coded differences | " +
         Decimal(report.mean_relative_frobenius) +
         " |\n"
         "| mean cosine | " +
         Decimal(report.mean_cosine) + " |\n" + OutputErrorLine(report) + "| base fingerprint | " +
         report.base_fingerprint +
         " |\n\n"
         "Every tensor's code, bytes and error stand in `delta_config.json`.\n" +
         (options.origin.empty() ? "" : "\n" + options.origin);
}

}  // namespace df
