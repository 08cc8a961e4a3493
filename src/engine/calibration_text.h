// Token sequences to calibrate a compression on: the model's own, a file's, or random ones. Called by the command line.
#ifndef DELTAFOLD_ENGINE_CALIBRATION_TEXT_H_
#define DELTAFOLD_ENGINE_CALIBRATION_TEXT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "text/model_text.h"

namespace df {

struct CalibrationTextOptions {
  size_t n_sequences = 48;
  size_t n_tokens = 160;  // of a sequence, its beginning included; at least 1
  uint64_t seed = 0;
  std::function<bool()> go_on = {};  // asked now and then; false: kCancelled. May be empty
};

// What the model's chats begin with: all that its template writes before the words of a first message; without a
// template BOS; empty without either, or where the template refuses.
std::vector<int32_t> OpeningTokens(const ModelText& text);

// Samples sequences that begin with `opening` at temperature 1 from the engine's base, past any end token. They depend
// on the weights, the options and, where the engine is batch-invariant, on nothing else. The only errors are those of
// Engine::Submit, of a generation and kCancelled.
Result<std::vector<std::vector<int32_t>>> SampleOwnText(Engine& engine, const std::vector<int32_t>& opening,
                                                        const CalibrationTextOptions& options);

// The first n_sequences * n_tokens tokens of a file. JSON lines (the file begins with "{"): a sequence a line, of
// {"messages": [...], "answer": "..."} (the answer may be absent) by the chat template or of {"text": "..."}; anything
// else: plain text in windows. A sequence has at most kWindowTokens. At most 64 MiB are read. The only errors are those
// of reading, kInvalidArgument (a line that is neither, naming it; no token at all) and those of EncodeChat and
// EncodePrompt, naming the line.
inline constexpr size_t kWindowTokens = 512;
Result<std::vector<std::vector<int32_t>>> ReadCalibrationFile(const std::string& path, const ModelText& text,
                                                              const CalibrationTextOptions& options);

// Uniform draws from [0, vocab): when nothing better is to be had.
std::vector<std::vector<int32_t>> RandomTokens(size_t vocab, const CalibrationTextOptions& options);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_CALIBRATION_TEXT_H_
