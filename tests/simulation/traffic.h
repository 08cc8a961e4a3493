// Clients: what they ask for, and that each gets exactly the answer of the generation that its name stood for when it
// asked, or a true reason why not.
#ifndef DELTAFOLD_TESTS_SIMULATION_TRAFFIC_H_
#define DELTAFOLD_TESTS_SIMULATION_TRAFFIC_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "draws.h"
#include "engine.h"
#include "environment.h"
#include "operator.h"
#include "store.h"

namespace df::simulation {

class Traffic {
 public:
  Traffic(Environment& environment, const Operator& names, const Store& store, Engine& engine);

  void Start() { ArriveLater(); }
  bool AllSent() const { return n_sent_ >= environment_.plan.n_requests || is_over_; }
  // No further requests; those under way are told that the engine stops.
  void Stop();
  // What clients were told since the last look. Some whose answer stands still leave.
  void ReadEvents();
  // I12: at the end, everybody was told of an end.
  void CheckAllEnded() const;
  size_t n_ended() const { return n_ended_; }
  size_t n_answered() const { return n_answered_; }

 private:
  struct Client {
    std::string id, digest;
    std::vector<int32_t> answer;  // what it must be told, to the end
    FinishReason finish = FinishReason::kLength;
    std::shared_ptr<EventQueue> events = std::make_shared<EventQueue>();
    std::shared_ptr<const Variant> variant;  // some hold it until their end
    size_t n_told = 0;
    int64_t sent_us = 0, deadline_us = kNoDeadline;
    bool is_cancelled = false, has_ended = false;
    bool lost_weights = false;  // seen preempted, waiting for its weights
  };

  void ArriveLater();
  void Arrive();
  void Send();
  std::vector<int32_t> MakePrompt();
  void Expect(const GenerationRequest& request, bool has_nan, Client& client) const;
  void CancelLater(uint64_t number);
  void CancelSomeWithoutWeights();
  void Read(Client& client, const TokenEvent& event);
  void CheckEnd(const Client& client, const TokenEvent& event);
  void CheckError(const Client& client, const Status& status);
  bool HasWaitedLong(const Client& client) const;

  Environment& environment_;
  const Operator& names_;
  const Store& store_;
  Engine& engine_;
  Draws draws_;
  std::map<uint64_t, Client> clients_;
  std::vector<uint64_t> told_;   // numbers with news
  std::vector<int32_t> former_;  // the last request's prompt and answer
  size_t n_sent_ = 0, n_ended_ = 0, n_answered_ = 0;
  bool is_over_ = false;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_TRAFFIC_H_
