// The operator: changes names, pins and memory while traffic goes on, and knows what each call must answer.
#ifndef DELTAFOLD_TESTS_SIMULATION_OPERATOR_H_
#define DELTAFOLD_TESTS_SIMULATION_OPERATOR_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "draws.h"
#include "environment.h"
#include "store.h"

namespace df::simulation {

class Operator {
 public:
  Operator(Environment& environment, Store& store);

  void Start();
  void Stop() { is_over_ = true; }
  void RetireAll();

  // What a name stands for: the digest, "" for the base; null: nothing.
  const std::string* DigestOrNull(const std::string& name) const;
  bool HasNan(const std::string& digest) const;
  // I3: the registry holds what it was given, nothing else.
  void CheckNames() const;

 private:
  struct Name {
    std::string digest, parent_digest, parent;
  };
  struct Expected {
    std::string name, generation;  // generation "" = any
  };

  void ChangeLater();
  void Change();
  void Register(const std::string& name, const Content& content, const std::string& parent, bool may_replace);
  void Publish(const std::string& name, Source source, const PutOptions& options, bool pinned);
  bool IsParent(const std::string& name) const;
  bool KeepsFamily(const std::string& name, const Name& given) const;
  std::string DrawParent(const std::string& name);
  void RegisterAny(bool may_replace);
  void Retire();
  void SetPinned(bool pinned);
  void Prefetch();
  void Evict();
  bool MayEvict(const std::string& name) const;
  Expected DrawName();
  std::string DrawExpected(const std::string& name);
  // What a call with that must answer, before anything of its own: kOk, kNotFound, kUnavailable (a mismatch).
  StatusCode Found(const Expected& expected) const;
  void Check(const std::string& call, const std::string& name, const Status& got, StatusCode expected,
             StatusCode also = StatusCode::kOk);

  Environment& environment_;
  Store& store_;
  Draws draws_;
  std::map<std::string, Name> names_;
  std::map<std::string, bool> nan_digests_;
  bool is_over_ = false;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_OPERATOR_H_
