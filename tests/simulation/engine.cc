#include "engine.h"

#include <algorithm>
#include <utility>

namespace df::simulation {
namespace {

constexpr int64_t kLongestWakeUs = 100;

bool ByArrival(const Piece& a, const Piece& b) { return a.sequence->arrival < b.sequence->arrival; }

}  // namespace

Engine::Engine(Environment& environment, const Store& store)
    : environment_(environment),
      store_(store),
      inbox_(environment.plan.max_queued_requests),
      model_(environment.plan.n_blocks, !environment.plan.shares_answers),
      blocks_(environment.plan.n_blocks),
      scheduler_(environment.plan.scheduler, blocks_),
      steps_(environment.plan.seed, Stream::kSteps) {}

Status Engine::Submit(GenerationRequest request) {
  DF_RETURN_IF_ERROR(
      CheckRequest(request, {.context_tokens = environment_.plan.context_tokens, .vocab = environment_.plan.vocab}));
  const std::string digest = request.variant == nullptr ? "" : request.variant->info().digest;
  const bool has_room = WaitingFor(digest) < environment_.plan.max_queued_requests;
  const Status sent = inbox_.Submit({.request = std::move(request), .submitted_us = environment_.now_us()});
  if (sent.ok()) ++submitted_[digest];
  if (sent.ok() && !has_room) environment_.verdict.Break("I8", "more requests wait for one variant than may");
  if (sent.code() == StatusCode::kResourceExhausted && has_room) {
    environment_.verdict.Break("I7", "a request of \"" + digest + "\" is refused because others wait for others");
  }
  if (sent.ok()) Nudge();
  return sent;
}

void Engine::Cancel(const std::string& id) {
  inbox_.Cancel(id);
  Nudge();
}

void Engine::Wake() {
  inbox_.Wake();
  Nudge();
}

// A turn soon, unless a step is under way: a turn follows it anyway.
void Engine::Nudge() {
  if (is_stepping_ || is_stopped_ || std::exchange(is_nudged_, true)) return;
  environment_.timeline.In(steps_.Between<int64_t>(0, kLongestWakeUs), [this, n = ++n_turns_scheduled_] {
    if (n == n_turns_scheduled_) Turn();
  });
}

void Engine::Turn() {
  is_nudged_ = false;
  if (is_stopped_) return;
  ++n_turns_scheduled_;
  if (is_stepping_) longest_step_us_ = std::max(longest_step_us_, environment_.now_us() - turn_us_);
  CheckWokenInTime();
  turn_us_ = environment_.now_us();
  awake_us_ = environment_.awake_us();
  News news;
  inbox_.Take(0, news);
  Accept(news);
  for (const std::string& id : news.cancelled) End(scheduler_.RemoveById(id), Cancelled("cancelled"));
  End(scheduler_.RemoveExpired(turn_us_), DeadlineExceeded("the time allowed for the request is over"));
  if (news.woken) scheduler_.AskAgain();
  Plan();
  CheckNews(news);
  CheckOverdue();
  CheckAsks();
  inbox_.SetWaiting(scheduler_.n_waiting());
  if (is_stepping_) {
    const int64_t step_us = steps_.Between(environment_.plan.least_step_us, environment_.plan.longest_step_us);
    environment_.timeline.In(step_us, [this] { EndStep(); });
    return;
  }
  const int64_t next_us = scheduler_.NextEventUs();
  if (next_us == kNoDeadline) return;
  environment_.timeline.In(std::max<int64_t>(0, next_us - turn_us_), [this, n = ++n_turns_scheduled_] {
    if (n == n_turns_scheduled_) Turn();
  });
}

void Engine::Accept(News& news) {
  submitted_.clear();
  for (Submission& submission : news.submitted) {
    auto sequence = MakeSequence(std::move(submission.request),
                                 {.context_tokens = environment_.plan.context_tokens, .vocab = environment_.plan.vocab},
                                 submission.submitted_us, blocks_);
    sequence->arrival = n_accepted_++;
    sequence->place = std::move(submission.place);
    sequence->promise = std::move(submission.promise);
    if (environment_.plan.caches_prefixes) SharePrefix(*sequence);
    Live live = {.sequence = sequence.get(),
                 .digest = sequence->request.variant == nullptr ? "" : sequence->request.variant->info().digest,
                 .n_preemptions = scheduler_.stats().n_preemptions,
                 .since_us = environment_.awake_us()};
    for (const uint64_t other : unadmitted_) live.n_before += live_.at(other).digest == live.digest ? 1 : 0;
    largest_cost_ = std::max(largest_cost_, CostTokens(*sequence));
    unadmitted_.insert(sequence->arrival);
    live_.emplace(sequence->arrival, std::move(live));
    scheduler_.Enqueue(std::move(sequence));
  }
}

void Engine::SharePrefix(Sequence& sequence) const {
  const GenerationRequest& request = sequence.request;
  sequence.prefix_domain =
      MakePrefixDomain({.base_fingerprint = "base",
                        .kv_dtype = "bf16",
                        .generation_digest = request.variant == nullptr ? "" : request.variant->info().digest,
                        .cache_salt = request.cache_salt});
  sequence.shares_answer = environment_.plan.shares_answers;
}

void Engine::Plan() {
  std::vector<uint64_t> held;  // arrivals of those that run on a variant
  for (const auto& [arrival, live] : live_) {
    if (live.sequence->kv.n_blocks() > 0 && !live.digest.empty()) held.push_back(arrival);
  }
  const uint64_t n_ended_leases = store_.n_ended_leases();
  const std::span<const Piece> pieces = scheduler_.PlanStep(turn_us_);
  const auto n_preempted = std::count_if(
      held.begin(), held.end(), [this](uint64_t arrival) { return live_.at(arrival).sequence->kv.n_blocks() == 0; });
  if (store_.n_ended_leases() - n_ended_leases < static_cast<uint64_t>(n_preempted)) {
    environment_.verdict.Break("I12", "who was preempted keeps its lease");
  }
  is_stepping_ = !pieces.empty();
  CheckPlan(pieces);
  CheckAdmissions();
  // The plan's order is that of addresses; what is drawn must not depend on it.
  pieces_.assign(pieces.begin(), pieces.end());
  std::sort(pieces_.begin(), pieces_.end(), ByArrival);
  for (FailedSequence& failed : scheduler_.TakeFailed()) {
    const bool is_late = failed.cause.message().find("still wanted") != std::string::npos;
    if (is_late) left_wanted_.insert(Store::IdOf(*failed.sequence->request.variant));
    Sequences one;
    one.push_back(std::move(failed.sequence));
    End(std::move(one), failed.cause);
  }
  CheckClaims();
}

void Engine::EndStep() {
  if (is_stopped_) return;
  if (!is_healthy_ && steps_.PerMille(environment_.plan.step_fault_per_mille)) {
    environment_.trace.Note("step fails", "no memory");
    // As EndWithoutMemory, told in the order of arrival: that of Clear is one of addresses.
    End(scheduler_.RemoveAll(), ResourceExhausted("no memory for the next step of the model"));
    return Turn();
  }
  std::vector<std::pair<Sequence*, int32_t>> drawn;
  for (const Piece& piece : pieces_) {
    const int32_t token = RunPiece(piece);
    if (piece.ReachesEnd()) drawn.emplace_back(piece.sequence, token);
  }
  for (const Piece& piece : pieces_) piece.sequence->Advance(piece.n_rows);
  for (const auto& [sequence, token] : drawn) Deliver(*sequence, token);
  Turn();
}

// I1: on the weights of the generation that the request was given. I2: on its own keys and values.
int32_t Engine::RunPiece(const Piece& piece) {
  const Sequence& sequence = *piece.sequence;
  const Live& live = live_.at(sequence.arrival);
  const VariantWeights* weights = sequence.lease.weights();
  const std::string digest = weights == nullptr ? "" : weights->digest;
  if (digest != live.digest) {
    environment_.verdict.Break(
        "I1", "request " + sequence.request.id + " of \"" + live.digest + "\" runs on \"" + digest + "\"");
  }
  const FakeModel::Seen seen = model_.Step(piece, digest);
  if (seen.met_other_salt) {
    environment_.verdict.Break("I2", "request " + sequence.request.id + " reads blocks of another salt");
  }
  const bool has_nan = sequence.request.variant != nullptr &&
                       static_cast<const SimulatedGeneration&>(*sequence.request.variant).source().has_nan;
  return Draw(seen.logits, environment_.plan.vocab, has_nan);
}

void Engine::Deliver(Sequence& sequence, int32_t token) {
  TokenEvent event = AppendToken(sequence, token, environment_.now_us());
  const std::shared_ptr<EventQueue> events = sequence.request.events;
  EndPromise promise;
  if (event.finish) {
    promise = std::move(sequence.promise);
    live_.erase(sequence.arrival);
    scheduler_.Remove(sequence);
  }
  events->Push(std::move(event));
}

// In the order of arrival: theirs is that of addresses.
void Engine::End(Sequences sequences, const Status& why) {
  std::sort(sequences.begin(), sequences.end(), [](const auto& a, const auto& b) { return a->arrival < b->arrival; });
  for (std::unique_ptr<Sequence>& sequence : sequences) {
    const std::shared_ptr<EventQueue> events = sequence->request.events;
    TokenEvent event = CutShort(*sequence, why, environment_.now_us());
    const EndPromise promise = std::move(sequence->promise);
    live_.erase(sequence->arrival);
    unadmitted_.erase(sequence->arrival);
    sequence.reset();
    events->Push(std::move(event));
  }
}

void Engine::Stop() {
  is_stopped_ = true;
  inbox_.Stop();
  News news;
  inbox_.Take(0, news);
  Accept(news);
  End(scheduler_.RemoveAll(), Cancelled("the engine is shutting down"));
  inbox_.SetWaiting(0);
}

}  // namespace df::simulation
