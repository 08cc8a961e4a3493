#include "traffic.h"

#include <algorithm>
#include <utility>

namespace df::simulation {
namespace {

constexpr int32_t kStopToken = 0;

}  // namespace

Traffic::Traffic(Environment& environment, const Operator& names, const Store& store, Engine& engine)
    : environment_(environment),
      names_(names),
      store_(store),
      engine_(engine),
      draws_(environment.plan.seed, Stream::kTraffic) {}

void Traffic::ArriveLater() {
  environment_.timeline.In(draws_.Between<int64_t>(0, 2 * environment_.plan.gap_us), [this] { Arrive(); });
}

void Traffic::Arrive() {
  if (AllSent()) return;
  const size_t n = environment_.plan.is_bursty && draws_.PerMille(200) ? draws_.Between<size_t>(2, 8) : 1;
  for (size_t i = 0; i < n && !AllSent(); ++i) Send();
  ArriveLater();
}

// Few beginnings, so that many share blocks; sometimes cut within one, sometimes all of one, sometimes a former prompt
// with its answer, as in a conversation.
std::vector<int32_t> Traffic::MakePrompt() {
  const Plan& plan = environment_.plan;
  const size_t n_tokens = draws_.Between<size_t>(1, plan.longest_prompt);
  if (draws_.PerMille(200) && n_tokens < former_.size())
    return {former_.begin(), former_.begin() + static_cast<std::ptrdiff_t>(n_tokens)};
  const size_t n_shared = draws_.PerMille(800) ? draws_.Between<size_t>(n_tokens / 2, n_tokens) : 0;
  const uint64_t beginning = draws_.Below(plan.n_beginnings);
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < n_tokens; ++i) {
    const uint64_t bits = i < n_shared ? RandomBits(beginning, i) : draws_.Below(UINT64_MAX);
    prompt.push_back(static_cast<int32_t>(bits % plan.vocab));
  }
  return prompt;
}

void Traffic::Send() {
  const Plan& plan = environment_.plan;
  const uint64_t number = n_sent_++;
  const bool wants_base = draws_.PerMille(plan.base_per_mille);
  const bool wants_hot = draws_.PerMille(plan.hot_per_mille);
  const size_t n_wanted = wants_hot ? 1 : plan.names.size();
  const size_t at = plan.is_zipf ? draws_.Zipf(n_wanted) : draws_.Below(n_wanted);
  const std::string name = wants_base ? "base" : plan.names[at];
  std::shared_ptr<const Variant> variant = store_.FindOrNull(name);
  const std::string* named = names_.DigestOrNull(name);
  if ((variant == nullptr) != (named == nullptr)) environment_.verdict.Break("I5", "whether there is a " + name);
  if (variant == nullptr || named == nullptr) return environment_.trace.Note("unknown name", name);

  Client& client = clients_[number];
  client.id = std::to_string(number);
  client.sent_us = environment_.now_us();
  client.digest = variant->IsBase() ? "" : variant->generation->info().digest;
  if (client.digest != *named) environment_.verdict.Break("I3", name + " stands for another than it was given");
  GenerationRequest request;
  request.id = client.id;
  request.prompt = MakePrompt();
  request.variant = variant->generation;
  request.variant_name = name;
  request.cache_salt = std::to_string(draws_.Below(plan.n_salts));
  request.params.max_tokens = draws_.Between<size_t>(1, plan.longest_answer);
  request.eos_ids = {kStopToken};
  request.events = client.events;
  if (draws_.PerMille(plan.deadline_per_mille)) {
    request.timeout_ms = draws_.Between<int64_t>(0, 40) * draws_.Between<int64_t>(0, 40);
    client.deadline_us = environment_.now_us() + *request.timeout_ms * 1000;
  }
  Expect(request, request.variant != nullptr && names_.HasNan(client.digest), client);
  former_ = request.prompt;
  former_.insert(former_.end(), client.answer.begin(), client.answer.end());
  if (client.finish == FinishReason::kError) former_.pop_back();
  client.events->SetWaker([this, number] { told_.push_back(number); });
  if (request.variant != nullptr) request.variant->CountRequest(environment_.now_us());
  if (draws_.PerMille(500)) client.variant = variant;
  const bool fits = request.prompt.size() < plan.context_tokens;
  const Status sent = engine_.Submit(std::move(request));
  environment_.trace.Note(sent.ok() ? "request" : "refused", client.id + " of " + name + " = " + client.digest);
  if (sent.ok() == fits || (fits && sent.code() == StatusCode::kResourceExhausted)) {
    if (sent.ok() && draws_.PerMille(plan.cancel_per_mille)) CancelLater(number);
  } else {
    environment_.verdict.Break("I12", "request " + client.id + ": " + sent.message());
  }
  if (!sent.ok()) clients_.erase(number);
}

void Traffic::Expect(const GenerationRequest& request, bool has_nan, Client& client) const {
  const Plan& plan = environment_.plan;
  Reading reading(client.digest);
  for (const int32_t token : request.prompt) reading.Add(token, false);
  const size_t room = plan.context_tokens - std::min(plan.context_tokens, request.prompt.size());
  const size_t most = std::min(room, *request.params.max_tokens);
  while (client.answer.size() < most) {
    const int32_t token = Draw(reading.logits(), plan.vocab, has_nan);
    client.answer.push_back(token);
    client.finish = token < 0             ? FinishReason::kError
                    : token == kStopToken ? FinishReason::kStop
                                          : FinishReason::kLength;
    if (client.finish != FinishReason::kLength) return;
    reading.Add(token, !plan.shares_answers);
  }
}

void Traffic::CancelLater(uint64_t number) {
  const int64_t scale_us = draws_.PerMille(300) ? 100 : 40 * environment_.plan.longest_step_us;
  environment_.timeline.In(draws_.Between<int64_t>(0, scale_us), [this, number] {
    const auto client = clients_.find(number);
    if (client != clients_.end()) client->second.is_cancelled = true;
    engine_.Cancel(std::to_string(number));  // it may have ended: then nothing happens
  });
}

// Of those who were preempted and find their weights gone: too few leave in such a moment by chance.
void Traffic::CancelSomeWithoutWeights() {
  for (const auto& [arrival, live] : engine_.live()) {
    const Sequence& sequence = *live.sequence;
    if (sequence.ticket == 0 || !sequence.is_cold || !sequence.NeedsWeights()) continue;
    const uint64_t number = std::stoull(sequence.request.id);
    const bool is_new = !std::exchange(clients_.at(number).lost_weights, true);
    if (is_new && draws_.PerMille(environment_.plan.cancel_per_mille)) CancelLater(number);
  }
}

void Traffic::ReadEvents() {
  CancelSomeWithoutWeights();
  while (!told_.empty()) {
    const std::vector<uint64_t> told = std::exchange(told_, {});
    for (const uint64_t number : told) {
      Client& client = clients_.at(number);
      for (const TokenEvent& event : client.events->TakeAll()) Read(client, event);
    }
  }
}

void Traffic::Read(Client& client, const TokenEvent& event) {
  if (client.has_ended) {
    environment_.verdict.Break("I12", "request " + client.id + " is told something after its end");
    return;
  }
  if (event.token >= 0) {
    const bool is_right = client.n_told < client.answer.size() && client.answer[client.n_told] == event.token;
    if (!is_right) {
      environment_.verdict.Break("I1", "request " + client.id + " of \"" + client.digest + "\" is told token " +
                                           std::to_string(client.n_told) + " of another answer");
    }
    ++client.n_told;
  }
  if (!event.finish) return;
  client.has_ended = true;
  client.variant.reset();
  ++n_ended_;
  environment_.trace.Note("end",
                          client.id + " " + std::string(FinishReasonName(*event.finish)) + " " + event.status.message(),
                          client.n_told);
  CheckEnd(client, event);
}

void Traffic::CheckEnd(const Client& client, const TokenEvent& event) {
  Verdict& verdict = environment_.verdict;
  if (*event.finish == FinishReason::kError && event.status.code() != StatusCode::kInternal) {
    return CheckError(client, event.status);
  }
  if (*event.finish == FinishReason::kCancelled) {
    const bool is_late = event.status.code() == StatusCode::kDeadlineExceeded;
    if (is_late ? environment_.now_us() < client.deadline_us : !client.is_cancelled && !is_over_) {
      verdict.Break("I12", "request " + client.id + " ends for no reason: " + event.status.message());
    }
    return;
  }
  ++n_answered_;
  const size_t n_tokens = client.answer.size() - (client.finish == FinishReason::kError ? 1 : 0);
  if (*event.finish != client.finish || client.n_told != n_tokens) {
    verdict.Break("I1", "request " + client.id + " ends with " + std::string(FinishReasonName(*event.finish)) +
                            " after " + std::to_string(client.n_told) + " of " + std::to_string(n_tokens) + " tokens");
  }
}

// I8: who is told that he has waited too long has, and could not have run. (While one that was preempted waits for its
// weights, nobody else asks.)
bool Traffic::HasWaitedLong(const Client& client) const {
  const int64_t longest_us = environment_.plan.scheduler.longest_weights_wait_us;
  const bool could_run = store_.HasOpen(client.digest) && engine_.scheduler().stats().n_preemptions == 0;
  return longest_us > 0 && environment_.now_us() - client.sent_us >= longest_us && !could_run;
}

// I5: a load that failed is told with its cause. I7: and only to those whose content it is.
void Traffic::CheckError(const Client& client, const Status& status) {
  if (status.code() == StatusCode::kResourceExhausted) return;  // a step without memory
  const bool fits_alone = status.message().find("for variants: unpin something") != std::string::npos;
  bool is_true = fits_alone || status.message().find("the budget for variants is") != std::string::npos;
  if (status.message().find("variant-wait-timeout") != std::string::npos) is_true = HasWaitedLong(client);
  for (size_t begin = 0; begin != std::string::npos && !client.digest.empty();) {
    const std::string digest = client.digest.substr(begin);  // its own, or its parent's
    is_true |= status.message().find("content " + digest + ": ") != std::string::npos &&
               store_.failed_digests().contains(digest);
    begin = client.digest.find('+', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (status.code() != StatusCode::kUnavailable || !is_true) {
    environment_.verdict.Break("I7", "request " + client.id + " of \"" + client.digest +
                                         "\" fails for what is not its own: " + status.message());
  }
}

void Traffic::Stop() {
  is_over_ = true;
  engine_.Stop();
}

void Traffic::CheckAllEnded() const {
  for (const auto& [number, client] : clients_) {
    if (client.has_ended) continue;
    environment_.verdict.Break("I12", "request " + client.id + " was never told of its end");
  }
}

}  // namespace df::simulation
