// The flags that say how a fine-tune is coded: what compress and merge share.
#ifndef DELTAFOLD_CLI_CODE_ARGUMENTS_H_
#define DELTAFOLD_CLI_CODE_ARGUMENTS_H_

#include <string>

#include "base/status.h"
#include "cli/flags.h"
#include "codec/compressor.h"

namespace df::cli {

struct CodeArguments {
  std::string code, embeddings, head;  // as given; empty: not given
  std::string bytes, max_error;

  bool IsGiven() const {
    return !code.empty() || !embeddings.empty() || !head.empty() || !bytes.empty() || !max_error.empty();
  }
};

// --code, --embeddings, --head, --bytes, --max-error.
void AddCodeOptions(const Command& command, CodeArguments& arguments);

// Embedding and head follow --code auto, and get what the default budget leaves where nothing is said; beside a given
// code they are exact. The only error is kInvalidArgument.
Status ReadCodes(const CodeArguments& arguments, CompressOptions& options);

// Random inputs tell too little of the columns for rank-1 scales. After options.calibration is known.
void FitToCalibration(const CodeArguments& arguments, CompressOptions& options);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_CODE_ARGUMENTS_H_
