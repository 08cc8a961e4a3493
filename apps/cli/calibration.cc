#include "cli/calibration.h"

#include <algorithm>
#include <filesystem>

#include "base/presence.h"
#include "engine/calibration_text.h"
#include "engine/engine.h"
#include "model/weights.h"
#include "text/model_text.h"

namespace df::cli {
namespace {

// The fine-tune's own where it has one, else the base's.
Result<ModelText> TextOf(const CalibratedModels& models) {
  const Result<ModelText> base = LoadModelText(models.base_directory);
  return LoadModelText(models.fine_tune->directory(), base.ok() ? &*base : nullptr);
}

Result<TokenSequences> WriteOwnText(const CalibratedModels& models, const std::vector<int32_t>& opening,
                                    KernelContext& context, const CalibrationTextOptions& options) {
  DF_ASSIGN_OR_RETURN(const auto weights, LoadBase(context, models.fine_tune, WeightMemory::kMapped));
  DF_ASSIGN_OR_RETURN(const auto engine, Engine::Create(weights, {.n_threads = context.pool.n_threads(),
                                                                  .max_num_seqs = options.n_sequences,
                                                                  .max_model_len = options.n_tokens,
                                                                  .enable_prefix_caching = false}));
  return SampleOwnText(*engine, opening, options);
}

}  // namespace

Status CheckSource(const CalibrationOptions& options) {
  if (options.source == kNoSource || options.source == kSelfSource) return Status::Ok();
  DF_ASSIGN_OR_RETURN(const bool is_there, HasFile(options.source));
  if (is_there) return Status::Ok();
  return NotFound("--calibrate " + options.source + ": no such file; give self, none, or a text to read");
}

void AddCalibrationOptions(const Command& command, CalibrationOptions& options, const std::string& unless_given) {
  command
      .Option("--calibrate", options.source,
              "Text that the matrices' codes are fitted to: self (the fine-tune writes it), none, or a FILE: text, or "
              "JSON lines with messages or text [" +
                  unless_given + "]")
      .NotEmpty()
      .Value("SOURCE");
  command.Option("--seed", options.seed, "Of what the fine-tune writes [0]").Value("N");
  command.Bytes("--calibrate-memory", options.max_bytes, "Most memory that calibration may take [4GB]").Value("BYTES");
}

Result<std::optional<Calibration>> MakeCalibration(const CalibrationOptions& options, const CalibratedModels& models,
                                                   KernelContext& context, const std::function<bool()>& go_on) {
  if (options.source == kNoSource) return std::optional<Calibration>();
  const ModelConfig& config = models.fine_tune->config();
  CalibrationTextOptions text_options{.seed = options.seed, .go_on = go_on};
  text_options.n_tokens = std::min(text_options.n_tokens, config.max_positions);
  Calibration calibration{
      .context = &context, .sequences = {}, .max_bytes = options.max_bytes, .source = options.source};
  const Result<ModelText> text = TextOf(models);
  if (options.source != kSelfSource) {
    if (!text.ok()) return text.status();
    DF_ASSIGN_OR_RETURN(calibration.sequences, ReadCalibrationFile(options.source, *text, text_options));
    calibration.source = std::filesystem::path(options.source).filename();
    return std::optional<Calibration>(std::move(calibration));
  }
  if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
  const std::vector<int32_t> opening = text.ok() ? OpeningTokens(*text) : std::vector<int32_t>();
  if (opening.empty()) {
    calibration.source = kRandomSource;
    calibration.sequences = RandomTokens(config.vocab, text_options);
  } else {
    DF_ASSIGN_OR_RETURN(calibration.sequences, WriteOwnText(models, opening, context, text_options));
  }
  return std::optional<Calibration>(std::move(calibration));
}

}  // namespace df::cli
