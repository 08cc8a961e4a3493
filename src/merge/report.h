// What a merge did, tensor by tensor: for --json, for the model card, and for the journal of a resumable run.
#ifndef DELTAFOLD_MERGE_REPORT_H_
#define DELTAFOLD_MERGE_REPORT_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "merge/method.h"
#include "merge/recipe.h"
#include "tensor/tensor_view.h"

namespace df::merge {

struct TensorReport {
  std::string name;
  Shape shape;
  DType dtype = DType::kBf16;
  Report report;
};

struct MergeReport {
  std::vector<TensorReport> tensors;     // in the order of computation
  std::vector<std::string> model_names;  // in the order of the coefficients
  uint64_t read_bytes = 0, bytes = 0;    // of weights
  size_t n_shards = 0;
  size_t vocab = 0, n_added_tokens = 0;
  bool tied = false;
  bool has_base = false;       // norms and coefficients are of the differences to it, else of the models
  std::vector<double> scales;  // opcm: lambda_1 .. lambda_k
  double stream_seconds = 0;   // until the last tensor was with the file system; what a stopped run did is not in it

  double ResultNorm() const;              // |W - W_b| (|W| without a base) over all tensors
  std::vector<double> TaskNorms() const;  // |W_i - W_b|, a model each
  // Of what was cut to leading singular values: the mean share of squares kept, nothing where nothing was cut.
  std::optional<double> MeanKeptEnergy() const;
};

Json ToJson(const MergeReport& report);

// A tensor's report and back; a name and shape are not in it. kCorrupt for what is none.
Json NoteOf(const Report& report);
Result<Report> ReadNote(const Json& note);

// README.md of a merged checkpoint. `recipe` has names for people in place of paths.
std::string MergeCard(const MergeReport& report, const Recipe& recipe);
// The recipe as a section of a card, for what is made of a merge.
std::string RecipeSection(const Recipe& recipe);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_REPORT_H_
