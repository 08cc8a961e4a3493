// merge/: several fine-tunes of one base to one. Input: the views of one tensor in the base and in k models, as stored,
// and the settings that hold for it; output: the merged tensor in f32, a block at a time, and what there is to report.
// Called by the merger over checkpoints (merger.h) and by the adapter pool, offline.
//
// method.h is what all methods share. The methods: linear.h, task_arithmetic.h, slerp.h, ties.h, dare.h,
// svd_average.h, monosoup.h, opcm.h. To add one: a function of the type MergeTensor beside them and a row in
// kMethods of method.cc.
#ifndef DELTAFOLD_MERGE_METHOD_H_
#define DELTAFOLD_MERGE_METHOD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/tensor_view.h"

namespace df::merge {

// One tensor as it stands in the base and in k >= 1 models: F32, BF16 or F16 each, all of one shape, of any rank, not
// necessarily aligned (mapped files). Whoever merges vocabularies makes the shapes equal first. No view is written.
struct TensorGroup {
  std::string name;                     // for messages, and what draws depend on
  std::optional<TensorView> base = {};  // where the method needs one
  std::vector<TensorView> models = {};  // [k], in the order of the recipe; slerp: what t = 0 and t = 1 give
  bool is_linear = false;               // the weight of a linear layer or the head: opcm projects these alone
  // What messages call the base and the models [k]; empty: "the base", "model 1" and so on.
  std::string base_name = {};
  std::vector<std::string> model_names = {};

  std::string BaseName() const { return base_name.empty() ? "the base" : base_name; }
  std::string ModelName(size_t model) const {
    return model < model_names.size() ? model_names[model] : "model " + std::to_string(model + 1);
  }
};

// What the recipe says for one tensor, its filters and gradients resolved. A method looks at its own fields only.
struct Settings {
  std::vector<double> weights = {};    // [k]
  std::vector<double> densities = {};  // [k] share of the entries that is kept, in (0, 1]
  double lambda = 1;                   // of the merged task vector
  bool normalize = false;              // divide by the sum of the weights
  bool rescale = true;                 // dare: what is kept is divided by its density
  double t = 0;                        // slerp: 0 gives the first model, 1 the second
  size_t rank = 0;                     // svd_average: leading singular values kept of each task vector; 0: by energy
  double energy = 0;                   // svd_average, monosoup: share of the squares that the leading values must reach
  bool effective_rank = false;         // monosoup: their number is exp of the spectrum's entropy instead
  double alpha = 0.5;                  // opcm: share of the sum of singular values that is projected out whole
  uint64_t seed = 0;                   // dare: with it, the tensor's name and the model's place, a draw is determined
};

// Takes elements [first, first + values.size()) of the merged tensor in row-major order. Called from several threads at
// once, each element once, in any order; `values` is gone after the call. It must not fail: whoever narrows the values
// keeps for himself what did not fit.
using Sink = std::function<void(size_t first, std::span<const float> values)>;

// How a tensor was merged.
enum class Way {
  kElementwise,  // every element by itself
  kCopied,       // the only model's values as they are
  kGram,         // singular values and vectors from all eigenvalues of the Gram matrix in f64
  kRandomised,   // from a random projection (linalg/randomized_svd.h)
};
std::string_view WayName(Way way);  // "element-wise", "copied", "Gram eigenvalues", "randomised"

// What a truncation of one task vector D = sum_i s_i u_i v_i^T kept: D_k, the k leading terms.
struct SpectrumReport {
  size_t rank = 0;       // k
  size_t size = 0;       // min(rows, columns)
  double energy = 0;     // P = |D_k|^2 / |D|^2
  double largest = 0;    // s_1
  double first_cut = 0;  // s_{k+1}, 0 where k is full
  Way way = Way::kGram;  // how it was found
};

struct Report {
  Way way = Way::kElementwise;
  // |W_i - W_b|^2 of each model and |W - W_b|^2 of the result as f32, summed in f64; of a method without base |W_i|^2
  // and |W|^2. opcm: of the result before it is scaled.
  std::vector<double> task_squares = {};
  double result_squares = 0;
  // What each model's difference (without base: the model) was multiplied by where that is one number: [k] or empty.
  std::vector<double> coefficients = {};
  std::vector<SpectrumReport> spectra = {};  // svd_average: [k]; monosoup: [1]; empty where nothing was cut
  // monosoup: W = W_b + high D_k + low (D - D_k), rho = (s_{k+1} / s_1)^2.
  struct Edit {
    double rho = 0, low = 0, high = 1;
  };
  std::optional<Edit> edit = {};
  // opcm: |T_t|^2 after the models 1 to t, [k], unscaled; `blocks`: the leading block's size at the steps 2 to k of a
  // projected weight, else empty.
  std::vector<double> step_squares = {};
  std::vector<size_t> blocks = {};
};

enum class ParameterKind { kNumber, kFlag, kCount };  // values are given as double: flags 0 or 1, counts whole

// A key under `parameters` of a recipe.
struct Parameter {
  std::string_view name;
  ParameterKind kind = ParameterKind::kNumber;
  bool per_model = false;  // may be given for each model; else one for the merge
  bool is_required = false;
  double otherwise = 0;  // when it is not given
  double least = 0, most = 0;
  std::string_view meaning;  // one line for help and messages
};

using MergeTensor = Result<Report> (*)(ThreadPool& pool, const TensorGroup& group, const Settings& settings,
                                       const Sink& sink);

struct Method {
  std::string_view name;
  std::string_view summary;
  bool needs_base = true;  // else a base is not looked at
  size_t min_models = 1, max_models = SIZE_MAX;
  std::span<const Parameter> parameters = {};
  std::span<const std::string_view> one_of = {};  // parameters of which one must be given
  // Sums over the whole model are needed before any tensor is done: see opcm.h.
  bool has_second_pass = false;
  MergeTensor merge = nullptr;  // to be called through Merge
};

// All methods, in the order of the documents.
std::span<const Method> Methods();
const Method* FindMethodOrNull(std::string_view name);
const Parameter* FindParameterOrNull(const Method& method, std::string_view name);

// What holds when a recipe says nothing beyond what is required, for `n_models`.
Settings DefaultSettings(const Method& method, size_t n_models);

// Sets the parameter `name` of `method`; `model` matters for those of each model, and nullopt sets it for all. The only
// errors are kInvalidArgument: a name that the method does not have (listing those it has), a value that is out of
// range, not finite or not whole, by name, with the range. `model` is below the number of models of `settings`.
Status SetParameter(const Method& method, std::string_view name, std::optional<size_t> model, double value,
                    Settings& settings);

// Merges one tensor. `sink` gets every element once, unless an error is returned: then what it got is void. The result
// depends on the group, the settings and, for the ways kGram and kRandomised, on the processor's instruction set, never
// on the number of threads. Memory: element-wise methods some 256 KiB a thread and 8 (k + 1) bytes for 16384 elements;
// those with singular values at most k + 3 tensors in f32. Calls of one pool must not overlap.
//
// The only errors are kInvalidArgument (a base or number of models that the method cannot do with, shapes that differ,
// settings that contradict each other, all before anything is computed), kUnsupported (a dtype; dimensions beyond
// LAPACK's), kCorrupt (NaN or infinity, naming tensor, model and place, or a result that overflows f32) and kInternal
// (LAPACK did not converge).
Result<Report> Merge(ThreadPool& pool, const Method& method, const TensorGroup& group, const Settings& settings,
                     const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_METHOD_H_
