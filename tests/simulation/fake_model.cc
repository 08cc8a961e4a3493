#include "fake_model.h"

#include "base/rng.h"

namespace df::simulation {

uint64_t HashOf(std::string_view text) {
  uint64_t hash = MixBits(text.size());
  for (const char c : text) hash = MixBits(hash ^ static_cast<unsigned char>(c));
  return hash;
}

uint64_t Reading::Add(int32_t token, bool is_decoded) {
  const uint64_t kv = MixBits(state_ ^ (static_cast<uint64_t>(token) * 2 + (is_decoded ? 1 : 0)));
  AddCached(kv);
  return kv;
}

void Reading::AddCached(uint64_t kv) {
  state_ = kv;
  sum_ += MixBits(kv ^ ++n_);
}

int32_t Draw(uint64_t logits, size_t vocab, bool has_nan) {
  const uint64_t bits = MixBits(logits);
  return has_nan && bits % 32 == 0 ? -1 : static_cast<int32_t>((bits >> 8) % vocab);
}

FakeModel::Seen FakeModel::Step(const Piece& piece, std::string_view digest) {
  const Sequence& sequence = *piece.sequence;
  const uint64_t salt = HashOf(sequence.request.cache_salt);
  const int32_t* table = sequence.kv.block_table();
  const auto cell = [&](size_t i) -> Cell& {
    return cells_[static_cast<size_t>(table[i / kernels::kKvBlockTokens]) * kernels::kKvBlockTokens +
                  i % kernels::kKvBlockTokens];
  };
  Seen seen;
  Reading reading(digest);
  for (size_t i = 0; i < sequence.n_cached; ++i) {
    seen.met_other_salt |= cell(i).salt != salt;
    reading.AddCached(cell(i).kv);
  }
  for (size_t i = sequence.n_cached; i < sequence.n_cached + piece.n_rows; ++i) {
    cell(i) = {.kv = reading.Add(sequence.Token(i), exact_ && piece.phase == kernels::Phase::kDecode), .salt = salt};
  }
  seen.logits = reading.logits();
  return seen;
}

}  // namespace df::simulation
