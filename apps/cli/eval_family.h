// What `eval` is asked to measure, from flags and family files.
#ifndef DELTAFOLD_CLI_EVAL_FAMILY_H_
#define DELTAFOLD_CLI_EVAL_FAMILY_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "eval/evaluate.h"

namespace df::cli {

struct EvalFamily {
  std::string base;  // directory or hub id; "" = not said
  std::vector<eval::Subject> subjects;
};

// Adds a family file (docs/evaluating.md): {"base": {"path"}, "variants": [{"name", "path", "full", "codes": {CODE:
// path}, "task" or "eval"}]}; paths are relative to it. The only errors are the file's and kCorrupt naming the variant.
Status AddFamilyFile(const std::string& path, EvalFamily& family);

// NAME=PATH or NAME:CODE=PATH: a full model, a delta or an adapter, by what the directory holds.
Status AddVariant(const std::string& argument, EvalFamily& family);

// FILE for every variant without a task, NAME=FILE for one. After all variants.
Status AddTask(const std::string& argument, EvalFamily& family);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_EVAL_FAMILY_H_
