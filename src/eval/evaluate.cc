#include "eval/evaluate.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "eval/answers.h"
#include "format/delta_dir.h"
#include "format/peft_adapter.h"

namespace df::eval {
namespace {

// A model that takes part: measured, and asked.
struct Participant {
  EvalResult result;
  Scored scored;
  std::shared_ptr<const Variant> variant;  // whose text it speaks; of a full fine-tune: on its own base
};

// Elements of all weights that the architecture reads.
double Parameters(const ModelConfig& config) {
  double sum = 0;
  for (const Slot& slot : ListSlots(config, config.tied_head)) sum += static_cast<double>(slot.d_out * slot.d_in);
  return sum;
}

uint64_t TensorBytes(const VariantSource& source) {
  uint64_t sum = 0;
  if (source.delta != nullptr) {
    for (const auto& [name, tensor] : source.delta->tensors()) sum += tensor.view.bytes.size();
  } else {
    for (const NamedTensor& tensor : source.adapter->file().tensors()) sum += tensor.view.bytes.size();
  }
  return sum;
}

// What compress says it did: "rank1", or in older deltas "rank1" and "planes".
std::string CodeOf(const VariantSource& source) {
  if (source.delta == nullptr) return "adapter";
  const Json* codec = JsonMemberOrNull(source.delta->delta_config(), "codec");
  if (codec == nullptr || !codec->is_object()) return "delta";
  const auto text = [codec](std::string_view key) {
    const Result<std::string> value = JsonStringOr(*codec, key, "");
    return value.ok() ? *value : "";
  };
  if (text("scale").empty()) return text("code").empty() ? "delta" : text("code");
  const Result<int64_t> planes = JsonIntOr(*codec, "planes", {.min = 1, .max = 64}, 1);
  return planes.ok() && *planes > 1 ? std::to_string(*planes) + " planes " + text("scale") : text("scale");
}

ItemScores ItemsOf(const std::vector<SequenceScore>& scores, bool compared) {
  ItemScores items;
  for (const SequenceScore& score : scores) {
    const auto n_tokens = static_cast<double>(score.n_tokens);
    items.correct.push_back({score.n_right == score.n_tokens ? 1.0 : 0.0, 1});
    items.cross_entropy.push_back({score.cross_entropy, n_tokens});
    if (!compared) continue;
    items.divergence.push_back({score.divergence, n_tokens});
    items.agreement.push_back({static_cast<double>(score.n_agree), n_tokens});
  }
  return items;
}

class SubjectRun {
 public:
  SubjectRun(const LoadedBase& base, const Subject& subject, const EvalOptions& options)
      : base_(base),
        subject_(subject),
        options_(options),
        context_(options.n_threads == 0 ? UsableCpus() : options.n_threads, options.kernels) {}

  Result<std::vector<EvalResult>> Run() {
    DF_RETURN_IF_ERROR(LoadFull());
    DF_RETURN_IF_ERROR(LoadCodes());
    DF_RETURN_IF_ERROR(Prepare());
    AddBase();
    DF_RETURN_IF_ERROR(Score());
    DF_RETURN_IF_ERROR(AnswerQuestions());
    std::vector<EvalResult> results;
    results.reserve(participants_.size());
    for (Participant& participant : participants_) results.push_back(std::move(participant.result));
    return results;
  }

 private:
  bool HasFull() const { return !subject_.full_directory.empty(); }

  Participant& Add(std::string code, Scored scored, std::shared_ptr<const Variant> variant) {
    Participant participant = {.result = {}, .scored = std::move(scored), .variant = std::move(variant)};
    participant.result.variant = subject_.name;
    participant.result.code = std::move(code);
    participants_.push_back(std::move(participant));
    return participants_.back();
  }

  static void CountBits(EvalResult& result, uint64_t bytes, uint64_t file_bytes, const ModelConfig& config) {
    result.bytes = bytes;
    result.file_bytes = file_bytes;
    result.bits_per_weight = 8 * static_cast<double>(bytes) / Parameters(config);
  }

  // The full fine-tune is the first participant: the reference.
  Status LoadFull() {
    if (!HasFull()) return Status::Ok();
    DF_RETURN_IF_ERROR(Say("loading " + subject_.name, 0, 1));
    Result<LoadedBase> full = LoadBaseVariant(context_, subject_.name, subject_.full_directory);
    if (!full.ok()) return full.status().Annotate(subject_.name);
    const uint64_t bytes = full->variant->stored_bytes;
    Participant& participant = Add("full", {.base = full->weights}, full->variant);
    CountBits(participant.result, bytes, bytes, full->weights->config);
    return Status::Ok();
  }

  Status LoadCodes() {
    for (const CodedVariant& coded : subject_.codes) {
      const Status status = LoadCode(coded);
      if (!status.ok()) return status.Annotate(subject_.name + ": " + coded.directory);
    }
    return Status::Ok();
  }

  Status LoadCode(const CodedVariant& coded) {
    DF_ASSIGN_OR_RETURN(const auto source, OpenVariant(*base_.weights, coded.directory, {.verify = false}));
    DF_ASSIGN_OR_RETURN(const auto weights, PackVariant(context_, *base_.weights, *source, {.first_reading = true}));
    DF_ASSIGN_OR_RETURN(const auto variant, DescribeVariant(*base_.variant, *source, subject_.name));
    variant->generation = FixedGeneration(weights);
    Participant& participant =
        Add(coded.code.empty() ? CodeOf(*source) : coded.code, {.base = base_.weights, .variant = weights}, variant);
    if (source->delta != nullptr) participant.result.delta_directory = coded.directory;
    CountBits(participant.result, TensorBytes(*source), source->info.stored_bytes, source->info.config);
    return Status::Ok();
  }

  // `code`, or "rank1 (2)" where there is one already.
  std::string Distinct(const std::string& code) const {
    size_t n = 1;
    std::string name = code;
    const auto is_taken = [&](const Participant& participant) { return participant.result.code == name; };
    while (std::any_of(participants_.begin(), participants_.end(), is_taken)) {
      name = code + " (" + std::to_string(++n) + ")";
    }
    return name;
  }

  // The subject's own words: those of its fine-tune, or of its first code.
  const Variant& Speaker() const { return participants_.empty() ? *base_.variant : *participants_.front().variant; }

  Status Prepare() {
    const ModelText& text = *Speaker().text;
    if (!options_.text.empty()) {
      DF_ASSIGN_OR_RETURN(windows_, Windows(text, options_.text, options_.windows));
    }
    if (subject_.task_file.empty()) return Status::Ok();
    DF_ASSIGN_OR_RETURN(questions_, ReadQuestions(subject_.task_file, options_.n_items));
    Result<std::vector<AskedQuestion>> asked = Tokenise(text, questions_, ClosingToken(text, Speaker().eos_ids));
    if (!asked.ok()) return asked.status().Annotate(subject_.task_file);
    asked_ = *std::move(asked);
    for (const AskedQuestion& question : asked_) references_.push_back(question.reference);
    return Status::Ok();
  }

  // The base reads the same tokens and ends at the same ones, whatever its own text files say. One whose vocabulary is
  // too small for them is left out.
  void AddBase() {
    if (!options_.with_base) return;
    int32_t largest = 0;
    for (const auto* sequences : {&references_, &windows_}) {
      for (const ScoredSequence& sequence : *sequences) {
        for (const int32_t token : sequence.tokens) largest = std::max(largest, token);
      }
    }
    if (static_cast<size_t>(largest) >= base_.weights->config.vocab) return;
    auto variant = std::make_shared<Variant>(*base_.variant);
    variant->text = Speaker().text;
    variant->eos_ids = Speaker().eos_ids;
    Add("base", {.base = base_.weights}, std::move(variant));
    // Base, full, codes is the order of the tables; the reference stays where it is until then.
  }

  Status Score() {
    std::vector<Scored> models;
    models.reserve(participants_.size());
    for (const Participant& participant : participants_) models.push_back(participant.scored);
    if (models.empty()) return InvalidArgument(subject_.name + ": nothing to measure");
    const auto score = [&](const std::string& what, const std::vector<ScoredSequence>& sequences,
                           ItemScores EvalResult::* to) -> Status {
      if (sequences.empty()) return Status::Ok();
      const uint64_t total = FedTokens(sequences) * models.size();
      ScorerOptions scorer;
      scorer.on_progress = [&](uint64_t done) { return Say(subject_.name + " " + what, done, total).ok(); };
      const auto scores = ScoreSequences(context_, models, HasFull(), sequences, scorer);
      if (!scores.ok()) return scores.status().Annotate(subject_.name + " " + what);
      for (size_t i = 0; i < participants_.size(); ++i) {
        const bool compared = HasFull() && models[i].vocab() == models[0].vocab();
        participants_[i].result.*to = ItemsOf((*scores)[i], compared);
      }
      return Status::Ok();
    };
    DF_RETURN_IF_ERROR(score("text", windows_, &EvalResult::windows));
    return score("answers", references_, &EvalResult::answers);
  }

  size_t MaxTokens(const AskedQuestion& question) const {
    const size_t reference = question.reference.tokens.size() - question.prompt.size();
    return options_.max_tokens > 0 ? options_.max_tokens : 2 * reference + 16;
  }

  Status AnswerQuestions() {
    if (!asked_.empty()) {
      const std::string task = std::filesystem::path(subject_.task_file).stem().string();
      for (Participant& participant : participants_) participant.result.task = task;
    }
    if (!asked_.empty() && options_.generate) {
      std::vector<Participant*> full, on_base;
      for (Participant& participant : participants_) {
        (participant.scored.base == base_.weights ? on_base : full).push_back(&participant);
      }
      DF_RETURN_IF_ERROR(AnswerTogether(full));
      for (Participant* participant : full) Forget(*participant);
      DF_RETURN_IF_ERROR(AnswerTogether(on_base));
    }
    const auto base = std::find_if(participants_.begin(), participants_.end(),
                                   [](const Participant& p) { return p.result.code == "base" && p.variant->IsBase(); });
    if (base != participants_.end()) std::rotate(participants_.begin(), base, base + 1);
    return Status::Ok();
  }

  // Its weights are not needed any more.
  static void Forget(Participant& participant) { participant.scored = {}; }

  // All of them are on one base: one engine, mixed batches.
  Status AnswerTogether(const std::vector<Participant*>& group) {
    if (group.empty()) return Status::Ok();
    size_t context_tokens = 2;
    std::vector<Ask> asks;
    for (const AskedQuestion& question : asked_) {
      const size_t max_tokens = MaxTokens(question);
      context_tokens = std::max(context_tokens, question.prompt.size() + max_tokens);
      for (const Participant* participant : group) {
        asks.push_back({.variant = participant->variant, .prompt = question.prompt, .max_tokens = max_tokens});
      }
    }
    const auto& base = group.front()->scored.base;
    DF_ASSIGN_OR_RETURN(const auto engine,
                        Engine::Create(base, {.n_threads = options_.n_threads,
                                              .max_model_len = std::min(context_tokens, base->config.max_positions),
                                              .kv_dtype = options_.kv_dtype,
                                              .kernels = options_.kernels}));
    const auto on_answer = [&](size_t n) { return Say(subject_.name + " asking", n, asks.size()).ok(); };
    DF_ASSIGN_OR_RETURN(std::vector<std::string> answers, AnswerAll(*engine, asks, on_answer));
    for (size_t i = 0; i < asked_.size(); ++i) {
      for (size_t k = 0; k < group.size(); ++k) {
        std::string& reply = answers[i * group.size() + k];
        EvalResult& result = group[k]->result;
        result.answers.correct[i].sum = reply == questions_[i].answer ? 1 : 0;
        result.replies.push_back(std::move(reply));
      }
    }
    return Status::Ok();
  }

  Status Say(const std::string& what, uint64_t done, uint64_t total) const {
    if (!options_.on_progress || options_.on_progress(what, done, total)) return Status::Ok();
    return Status(StatusCode::kCancelled, "interrupted");
  }

  const LoadedBase& base_;
  const Subject& subject_;
  const EvalOptions& options_;
  KernelContext context_;
  std::vector<Participant> participants_;  // full fine-tune, codes, base; base first in the end
  std::vector<Question> questions_;
  std::vector<AskedQuestion> asked_;
  std::vector<ScoredSequence> references_, windows_;
};

}  // namespace

Result<std::vector<EvalResult>> EvaluateSubject(const LoadedBase& base, const Subject& subject,
                                                const EvalOptions& options) {
  return SubjectRun(base, subject, options).Run();
}

}  // namespace df::eval
