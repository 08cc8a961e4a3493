// --calibrate of compress: where the text comes from that codes are fitted to.
#ifndef DELTAFOLD_CLI_CALIBRATION_H_
#define DELTAFOLD_CLI_CALIBRATION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "codec/layer_stream.h"

namespace df::cli {

struct CalibrationOptions {
  std::string source = "self";  // "self", "none" or a file
  uint64_t seed = 0;
  uint64_t max_bytes = Calibration().max_bytes;
};

inline constexpr char kSelfSource[] = "self";
inline constexpr char kNoSource[] = "none";
inline constexpr char kRandomSource[] = "random tokens";

// Whether a file that is named is there: kNotFound, kIo.
Status CheckSource(const CalibrationOptions& options);

// `unless_given`: what help says of a --calibrate that is not given.
void AddCalibrationOptions(const Command& command, CalibrationOptions& options,
                           const std::string& unless_given = kSelfSource);

struct CalibratedModels {
  std::string base_directory;
  std::shared_ptr<const Checkpoint> fine_tune;
};

// Nothing for "none". "self": what the fine-tune writes by itself, or random tokens where it has no tokenizer that says
// how its texts begin. The fine-tune stays in its mapped files. `go_on` as in CalibrationTextOptions.
Result<std::optional<Calibration>> MakeCalibration(const CalibrationOptions& options, const CalibratedModels& models,
                                                   KernelContext& context, const std::function<bool()>& go_on);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_CALIBRATION_H_
