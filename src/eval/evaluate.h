// One fine-tune and its codes, measured beside each other: the base, the full fine-tune as a model of its own, every
// delta or adapter. Memory holds the base, one full fine-tune and the codes of one subject.
#ifndef DELTAFOLD_EVAL_EVALUATE_H_
#define DELTAFOLD_EVAL_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "eval/bootstrap.h"
#include "eval/questions.h"
#include "store/variant_source.h"

namespace df::eval {

// One way to store a fine-tune.
struct CodedVariant {
  std::string code;       // what the table calls it; "" = read from the delta
  std::string directory;  // of a delta or an adapter
};

struct Subject {
  std::string name;
  std::string full_directory;  // "" = none: no divergence, no difference
  std::vector<CodedVariant> codes;
  std::string task_file;  // questions; "" = none
};

struct EvalOptions {
  size_t n_threads = 0;   // 0 = UsableCpus()
  size_t n_items = 0;     // questions of a task, 0 = all
  std::string text = {};  // for perplexity and divergence on text; "" = none
  WindowOptions windows = {};
  size_t max_tokens = 0;  // of an answer; 0 = twice the reference's and 16
  bool with_base = true;  // measure the base too
  bool generate = true;   // answer the questions; false: score their reference answers alone
  KernelOptions kernels = {.sign_kernel = SignKernel::kExact, .batch_invariant = true};
  DType kv_dtype = DType::kF32;  // of generation
  BootstrapOptions bootstrap = {};
  // What is being done, and how far: false ends with kCancelled. May be empty.
  std::function<bool(const std::string& what, uint64_t done, uint64_t total)> on_progress = {};
};

// Sums by item (a question, a window): what intervals are drawn from.
struct ItemScores {
  std::vector<ItemSum> correct;        // 0 or 1 a question
  std::vector<ItemSum> cross_entropy;  // over tokens
  std::vector<ItemSum> divergence;     // over tokens; empty without a reference
  std::vector<ItemSum> agreement;      // over tokens; empty without a reference
};

struct EvalResult {
  std::string variant;
  std::string code;             // "base", "full", or as in CodedVariant
  std::string delta_directory;  // of a delta; "" for all else
  uint64_t bytes = 0;           // of all stored tensors; 0 for the base
  uint64_t file_bytes = 0;      // the files' headers counted as well
  double bits_per_weight = 0;
  std::string task;                  // file name without folder and extension; "" = none
  ItemScores answers;                // by question: exact match, and teacher-forced over the reference answers
  ItemScores windows;                // by window of text
  std::vector<std::string> replies;  // to the questions, as generated
};

// Loads the subject's parts beside `base` and measures base, full fine-tune and codes, in this order. Errors are those
// of the readers, naming the directory; kFailedPrecondition (a full model among the codes; a fine-tune of another
// architecture; no chat template); kInvalidArgument (a question that is longer than the context); kCancelled.
Result<std::vector<EvalResult>> EvaluateSubject(const LoadedBase& base, const Subject& subject,
                                                const EvalOptions& options);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_EVALUATE_H_
