#include "merge/report.h"

#include <algorithm>
#include <cmath>

namespace df::merge {
namespace {

std::vector<double> Roots(const std::vector<double>& squares) {
  std::vector<double> roots;
  for (const double square : squares) roots.push_back(std::sqrt(square));
  return roots;
}

Json TensorJson(const TensorReport& tensor) {
  const Report& report = tensor.report;
  Json json = {{"name", tensor.name},
               {"dtype", DTypeName(tensor.dtype)},
               {"shape", tensor.shape.dims()},
               {"way", WayName(report.way)},
               {"task_norms", Roots(report.task_squares)},
               {"result_norm", std::sqrt(report.result_squares)}};
  if (!report.coefficients.empty()) json["coefficients"] = report.coefficients;
  for (const SpectrumReport& cut : report.spectra) {
    json["cuts"].push_back({{"rank", cut.rank},
                            {"of", cut.size},
                            {"kept_energy", cut.energy},
                            {"largest", cut.largest},
                            {"first_cut", cut.first_cut},
                            {"way", WayName(cut.way)}});
  }
  if (report.edit) json["edit"] = {{"rho", report.edit->rho}, {"low", report.edit->low}, {"high", report.edit->high}};
  if (!report.blocks.empty()) json["blocks"] = report.blocks;
  return json;
}

std::string Decimal(double value) { return DumpJson(Json(std::round(value * 1e4) / 1e4)); }

Result<std::vector<double>> ReadNumbers(const Json& note, std::string_view key) {
  const Json* const list = JsonMemberOrNull(note, key);
  if (list == nullptr || !list->is_array())
    return Corrupt("the journal's note has no list \"" + std::string(key) + "\"");
  std::vector<double> numbers;
  for (const Json& entry : *list) {
    if (!entry.is_number()) return Corrupt("the journal's \"" + std::string(key) + "\" holds no numbers");
    numbers.push_back(entry.get<double>());
  }
  return numbers;
}

constexpr Way kWays[] = {Way::kElementwise, Way::kCopied, Way::kGram, Way::kRandomised};

Result<Way> ReadWay(const Json& note) {
  DF_ASSIGN_OR_RETURN(const std::string name, JsonString(note, "way"));
  for (const Way way : kWays) {
    if (WayName(way) == name) return way;
  }
  return Corrupt("the journal names the way \"" + name + "\"");
}

Result<size_t> ReadSize(const Json& note, std::string_view key) {
  DF_ASSIGN_OR_RETURN(const int64_t value, JsonInt(note, key, {.min = 0}));
  return static_cast<size_t>(value);
}

Result<SpectrumReport> ReadCut(const Json& note) {
  SpectrumReport cut;
  DF_ASSIGN_OR_RETURN(cut.rank, ReadSize(note, "rank"));
  DF_ASSIGN_OR_RETURN(cut.size, ReadSize(note, "size"));
  DF_ASSIGN_OR_RETURN(cut.energy, JsonNumber(note, "energy"));
  DF_ASSIGN_OR_RETURN(cut.largest, JsonNumber(note, "largest"));
  DF_ASSIGN_OR_RETURN(cut.first_cut, JsonNumber(note, "first_cut"));
  DF_ASSIGN_OR_RETURN(cut.way, ReadWay(note));
  return cut;
}

// "| largest | kept |" lines of the card.
std::string NormLines(const MergeReport& report) {
  std::string lines;
  const std::vector<double> norms = report.TaskNorms();
  const std::string what = report.has_base ? "difference" : "weights";
  for (size_t i = 0; i < norms.size() && i < report.model_names.size(); ++i) {
    lines +=
        "| norm of the " + what + ", " + DumpJson(Json(report.model_names[i])) + " | " + Decimal(norms[i]) + " |\n";
  }
  lines += "| norm of the merged " + what + " | " + Decimal(report.ResultNorm()) + " |\n";
  const std::optional<double> kept = report.MeanKeptEnergy();
  if (kept) lines += "| mean energy of what was kept of spectra | " + Decimal(*kept) + " |\n";
  if (report.n_added_tokens > 0) {
    lines += "| tokens beyond the base's | " + std::to_string(report.n_added_tokens) + " |\n";
  }
  return lines;
}

}  // namespace

double MergeReport::ResultNorm() const {
  double sum = 0;
  for (const TensorReport& tensor : tensors) sum += tensor.report.result_squares;
  return std::sqrt(sum);
}

std::vector<double> MergeReport::TaskNorms() const {
  std::vector<double> sums(model_names.size());
  for (const TensorReport& tensor : tensors) {
    for (size_t i = 0; i < std::min(sums.size(), tensor.report.task_squares.size()); ++i) {
      sums[i] += tensor.report.task_squares[i];
    }
  }
  return Roots(sums);
}

std::optional<double> MergeReport::MeanKeptEnergy() const {
  double sum = 0;
  size_t n = 0;
  for (const TensorReport& tensor : tensors) {
    for (const SpectrumReport& cut : tensor.report.spectra) {
      sum += cut.energy;
      ++n;
    }
  }
  return n == 0 ? std::nullopt : std::optional(sum / static_cast<double>(n));
}

Json ToJson(const MergeReport& report) {
  Json json = {{"models", report.model_names},
               {"bytes", {{"read", report.read_bytes}, {"written", report.bytes}}},
               {"shards", report.n_shards},
               {"vocab", report.vocab},
               {"added_tokens", report.n_added_tokens},
               {"tied", report.tied},
               {"norms_of", report.has_base ? "differences" : "weights"},
               {"task_norms", report.TaskNorms()},
               {"result_norm", report.ResultNorm()}};
  if (const std::optional<double> kept = report.MeanKeptEnergy()) json["mean_kept_energy"] = *kept;
  if (!report.scales.empty()) json["scales"] = report.scales;
  json["tensors"] = Json::array();
  for (const TensorReport& tensor : report.tensors) json["tensors"].push_back(TensorJson(tensor));
  return json;
}

Json NoteOf(const Report& report) {
  Json note = {{"way", WayName(report.way)},
               {"task_squares", report.task_squares},
               {"result_squares", report.result_squares},
               {"coefficients", report.coefficients},
               {"step_squares", report.step_squares},
               {"blocks", report.blocks},
               {"cuts", Json::array()}};
  for (const SpectrumReport& cut : report.spectra) {
    note["cuts"].push_back({{"rank", cut.rank},
                            {"size", cut.size},
                            {"energy", cut.energy},
                            {"largest", cut.largest},
                            {"first_cut", cut.first_cut},
                            {"way", WayName(cut.way)}});
  }
  if (report.edit) note["edit"] = {{"rho", report.edit->rho}, {"low", report.edit->low}, {"high", report.edit->high}};
  return note;
}

Result<Report> ReadNote(const Json& note) {
  Report report;
  DF_ASSIGN_OR_RETURN(report.way, ReadWay(note));
  DF_ASSIGN_OR_RETURN(report.task_squares, ReadNumbers(note, "task_squares"));
  DF_ASSIGN_OR_RETURN(report.result_squares, JsonNumber(note, "result_squares"));
  DF_ASSIGN_OR_RETURN(report.coefficients, ReadNumbers(note, "coefficients"));
  DF_ASSIGN_OR_RETURN(report.step_squares, ReadNumbers(note, "step_squares"));
  DF_ASSIGN_OR_RETURN(const std::vector<double> blocks, ReadNumbers(note, "blocks"));
  for (const double block : blocks) report.blocks.push_back(static_cast<size_t>(block));
  const Json* const cuts = JsonMemberOrNull(note, "cuts");
  if (cuts == nullptr || !cuts->is_array()) return Corrupt("the journal's note has no list \"cuts\"");
  for (const Json& entry : *cuts) {
    DF_ASSIGN_OR_RETURN(report.spectra.emplace_back(), ReadCut(entry));
  }
  if (const Json* const edit = JsonMemberOrNull(note, "edit")) {
    Report::Edit read;
    DF_ASSIGN_OR_RETURN(read.rho, JsonNumber(*edit, "rho"));
    DF_ASSIGN_OR_RETURN(read.low, JsonNumber(*edit, "low"));
    DF_ASSIGN_OR_RETURN(read.high, JsonNumber(*edit, "high"));
    report.edit = read;
  }
  return report;
}

std::string RecipeSection(const Recipe& recipe) { return "## Recipe\n\n```yaml\n" + RecipeText(recipe) + "```\n"; }

std::string MergeCard(const MergeReport& report, const Recipe& recipe) {
  // A JSON string is a YAML string: names cannot break out of the front matter.
  std::string models;
  std::vector<std::string> names = report.model_names;
  if (recipe.base_model && std::ranges::count(names, *recipe.base_model) == 0) {
    names.insert(names.begin(), *recipe.base_model);
  }
  for (const std::string& name : names) models += "- " + DumpJson(Json(name)) + "\n";
  return "---\nbase_model:\n" + models +
         "base_model_relation: merge\nlibrary_name: transformers\ntags: [deltafold, merge]\n---\n\n"
         "# Merge of " +
         std::to_string(report.model_names.size()) + (report.model_names.size() == 1 ? " model" : " models") + " by " +
         recipe.method + "\n\nMade by deltafold: " + std::string(FindMethodOrNull(recipe.method)->summary) +
         ". Sums are taken in f32 or wider, and rounded once.\n\n| | |\n|---|---|\n| tensors | " +
         std::to_string(report.tensors.size()) + " |\n| bytes of weights | " + std::to_string(report.bytes) + " |\n" +
         NormLines(report) + "\n" + RecipeSection(recipe);
}

}  // namespace df::merge
