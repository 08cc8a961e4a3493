#include "engine/calibration_text.h"

#include <algorithm>
#include <memory>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/prompt.h"

namespace df {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kPieceBytes = size_t{1} << 20;  // of plain text at a time

using Sequences = std::vector<std::vector<int32_t>>;

size_t CommonPrefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

Json UserMessage(const char* content) { return Json::array({{{"role", "user"}, {"content", content}}}); }

// All tokens of one request; `status` of its end.
Result<std::vector<int32_t>> Collect(EventQueue& events, const CalibrationTextOptions& options) {
  std::vector<int32_t> tokens;
  for (;;) {
    if (options.go_on && !options.go_on()) return Cancelled("stopped while the model wrote its calibration text");
    for (TokenEvent& event : events.TakeAllBlocking()) {
      if (event.token >= 0) tokens.push_back(event.token);
      if (!event.finish) continue;
      DF_RETURN_IF_ERROR(event.status);
      return tokens;
    }
  }
}

Result<std::vector<int32_t>> EncodeLine(const Json& line, const ModelText& text) {
  if (line.is_object() && line.contains("messages") && line["messages"].is_array()) {
    Json messages = line["messages"];
    const bool has_answer = line.contains("answer") && line["answer"].is_string();
    if (has_answer) messages.push_back({{"role", "assistant"}, {"content", line["answer"]}});
    return EncodeChat(text, messages, {.render = {.add_generation_prompt = false}});
  }
  if (line.is_object() && line.contains("text") && line["text"].is_string()) {
    return EncodePrompt(text, line["text"].get_ref<const std::string&>());
  }
  return InvalidArgument("expected an object with \"messages\" (and \"answer\") or with \"text\"");
}

Result<Sequences> ReadLines(std::string_view content, const ModelText& text, size_t max_tokens) {
  Sequences sequences;
  size_t n_tokens = 0;
  for (size_t number = 1; !content.empty() && n_tokens < max_tokens; ++number) {
    const std::string_view line = content.substr(0, content.find('\n'));
    content.remove_prefix(std::min(content.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto where = [&](const Status& status) { return status.Annotate("line " + std::to_string(number)); };
    const Result<Json> json = ParseJson(line);
    if (!json.ok()) return where(json.status());
    Result<std::vector<int32_t>> ids = EncodeLine(*json, text);
    if (!ids.ok()) return where(ids.status());
    if (ids->empty()) continue;
    ids->resize(std::min({ids->size(), kWindowTokens, max_tokens - n_tokens}));
    n_tokens += ids->size();
    sequences.push_back(*std::move(ids));
  }
  return sequences;
}

Result<Sequences> ReadText(std::string_view content, const ModelText& text, size_t max_tokens) {
  std::vector<int32_t> ids;
  while (!content.empty() && ids.size() < max_tokens) {
    size_t n = std::min(content.size(), kPieceBytes);
    while (n < content.size() && n > 1 && (content[n] & 0xC0) == 0x80) --n;  // not within a character
    DF_ASSIGN_OR_RETURN(const std::vector<int32_t> piece,
                        EncodePrompt(text, content.substr(0, n), {.add_special_tokens = ids.empty()}));
    ids.insert(ids.end(), piece.begin(), piece.end());
    content.remove_prefix(n);
  }
  ids.resize(std::min(ids.size(), max_tokens));
  Sequences sequences;
  for (size_t begin = 0; begin < ids.size(); begin += kWindowTokens) {
    const auto first = ids.begin() + static_cast<ptrdiff_t>(begin);
    sequences.emplace_back(first, first + static_cast<ptrdiff_t>(std::min(kWindowTokens, ids.size() - begin)));
  }
  return sequences;
}

}  // namespace

std::vector<int32_t> OpeningTokens(const ModelText& text) {
  if (text.chat_template != nullptr) {
    const Result<std::vector<int32_t>> one = EncodeChat(text, UserMessage("a")),
                                       other = EncodeChat(text, UserMessage("7"));
    if (one.ok() && other.ok()) {
      std::vector<int32_t> opening = *one;
      opening.resize(CommonPrefix(*one, *other));
      if (!opening.empty()) return opening;
    }
  }
  if (!text.tokenizer->prefix_ids().empty()) return text.tokenizer->prefix_ids();
  return text.bos_id ? std::vector<int32_t>{*text.bos_id} : std::vector<int32_t>();
}

Result<Sequences> SampleOwnText(Engine& engine, const std::vector<int32_t>& opening,
                                const CalibrationTextOptions& options) {
  Sequences sequences;
  std::vector<std::shared_ptr<EventQueue>> queues;
  std::vector<int32_t> prompt = opening;
  prompt.resize(std::min(prompt.size(), options.n_tokens));
  if (prompt.size() == options.n_tokens) return Sequences(options.n_sequences, prompt);
  for (size_t i = 0; i < options.n_sequences; ++i) {
    GenerationRequest request;
    request.id = "calibration-" + std::to_string(i);
    request.prompt = prompt;
    request.params.max_tokens = options.n_tokens - prompt.size();
    request.params.seed = RandomBits(options.seed, i);
    request.params.ignore_eos = true;
    request.events = queues.emplace_back(std::make_shared<EventQueue>());
    DF_RETURN_IF_ERROR(engine.Submit(std::move(request)));
  }
  for (const std::shared_ptr<EventQueue>& queue : queues) {
    DF_ASSIGN_OR_RETURN(const std::vector<int32_t> written, Collect(*queue, options));
    std::vector<int32_t>& sequence = sequences.emplace_back(prompt);
    sequence.insert(sequence.end(), written.begin(), written.end());
  }
  return sequences;
}

Result<Sequences> ReadCalibrationFile(const std::string& path, const ModelText& text,
                                      const CalibrationTextOptions& options) {
  DF_ASSIGN_OR_RETURN(const std::string content, ReadFileBounded(path, kMaxFileBytes));
  const size_t max_tokens = options.n_sequences * options.n_tokens;
  const bool is_lines = content.starts_with('{');
  Result<Sequences> sequences = is_lines ? ReadLines(content, text, max_tokens) : ReadText(content, text, max_tokens);
  if (!sequences.ok()) return sequences.status().Annotate(path);
  if (sequences->empty()) return InvalidArgument(path + " holds no token to calibrate on");
  return sequences;
}

Sequences RandomTokens(size_t vocab, const CalibrationTextOptions& options) {
  Sequences sequences(options.n_sequences, std::vector<int32_t>(options.n_tokens));
  for (size_t i = 0; i < options.n_sequences * options.n_tokens; ++i) {
    const double draw = RandomUnit(options.seed, i) * static_cast<double>(vocab);
    sequences[i / options.n_tokens][i % options.n_tokens] = static_cast<int32_t>(draw);
  }
  return sequences;
}

}  // namespace df
