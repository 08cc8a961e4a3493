#include "codec/code.h"

#include <array>
#include <charconv>
#include <optional>

#include "codec/byte_rows.h"
#include "codec/calibrate.h"
#include "codec/exact.h"
#include "codec/low_rank.h"
#include "codec/residual.h"
#include "codec/whitened.h"

namespace df {
namespace {

constexpr std::string_view kPlanes = "planes";
constexpr std::string_view kLowRankPrefix = "lowrank:";

struct NamedCode {
  std::string_view name;
  Code code;
};
constexpr std::array<NamedCode, 9> kNamed = {{{"scalar", {.sign = {.scale = ScaleKind::kScalar}}},
                                              {"row", {.sign = {.scale = ScaleKind::kRow}}},
                                              {"column", {.sign = {.scale = ScaleKind::kColumn}}},
                                              {"rank1", {.sign = {.scale = ScaleKind::kRank1}}},
                                              {"lowrank", {.kind = CodeKind::kLowRank}},
                                              {"int8", {.kind = CodeKind::kByteRows}},
                                              {"rows", {.kind = CodeKind::kRows}},
                                              {"raw", {.kind = CodeKind::kRaw}},
                                              {"exact", {.kind = CodeKind::kExact}}}};

std::optional<size_t> ParseNumber(std::string_view text, size_t min, size_t max) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.starts_with('0')) return std::nullopt;
  return value >= min && value <= max ? std::optional(value) : std::nullopt;
}

std::optional<Code> FindNamed(std::string_view text) {
  for (const NamedCode& named : kNamed) {
    if (named.name == text) return named.code;
  }
  return std::nullopt;
}

// "3", "3:row": planes with rank-1 scales, or others.
std::optional<Code> ParsePlanes(std::string_view text) {
  const size_t colon = text.find(':');
  const auto n_planes = ParseNumber(text.substr(0, colon), 2, kMaxPlanes);
  if (!n_planes) return std::nullopt;
  if (colon == std::string_view::npos) return Code{.sign = {.n_planes = *n_planes}};
  std::optional<Code> code = FindNamed(text.substr(colon + 1));
  if (!code || code->kind != CodeKind::kSign || code->sign.scale == ScaleKind::kRank1) return std::nullopt;
  code->sign.n_planes = *n_planes;
  return code;
}

std::optional<Code> ParsePart(std::string_view text) {
  if (const std::optional<Code> named = FindNamed(text)) return named;
  if (text.starts_with(kPlanes)) return ParsePlanes(text.substr(kPlanes.size()));
  if (text.starts_with(kLowRankPrefix)) {
    const auto rank = ParseNumber(text.substr(kLowRankPrefix.size()), 1, kMaxCodedRank);
    if (rank) return Code{.kind = CodeKind::kLowRank, .rank = *rank};
  }
  return std::nullopt;
}

std::optional<Code> Parse(std::string_view text) {
  const size_t plus = text.find('+');
  if (plus == std::string_view::npos) return ParsePart(text);
  std::optional<Code> signs = ParsePart(text.substr(0, plus));
  const std::optional<Code> rest = ParsePart(text.substr(plus + 1));
  if (!signs || signs->kind != CodeKind::kSign || !rest || rest->kind != CodeKind::kLowRank || rest->rank == 0) {
    return std::nullopt;
  }
  signs->rank = rest->rank;
  return signs;
}

std::string SignText(const SignOptions& sign) {
  std::string scale;
  for (const NamedCode& named : kNamed) {
    if (named.code.kind == CodeKind::kSign && named.code.sign.scale == sign.scale) scale = named.name;
  }
  if (sign.n_planes == 1) return scale;
  return std::string(kPlanes) + std::to_string(sign.n_planes) + (sign.scale == ScaleKind::kRank1 ? "" : ":" + scale);
}

// A product that was found, where it is one and smaller than the changed rows or the whole.
Result<EncodedWeight> EncodeFoundRank(ThreadPool& pool, const WeightPair& pair) {
  DF_ASSIGN_OR_RETURN(EncodedWeight product, EncodeLowRank(pool, pair, 0));
  DF_ASSIGN_OR_RETURN(EncodedWeight exact, EncodeExact(pool, pair, ExactCode::kSmallest));
  const bool is_smaller = !product.delta.IsBase() && StoredBytes(product.delta) < StoredBytes(exact.delta);
  return is_smaller ? std::move(product) : std::move(exact);
}

bool HasNewRows(const WeightPair& pair) { return MatrixRows(pair.fine_tune) > MatrixRows(pair.base); }

// Beside what is there already.
Status AddLowRank(ThreadPool& pool, const WeightPair& pair, size_t rank, const WeightInputs* inputs,
                  EncodedWeight& encoded) {
  if (encoded.delta.IsBase() || !inputs || !inputs->HasMoment()) return AddLowRankOfResidual(pool, pair, rank, encoded);
  return AddWhitenedLowRank(pool, pair, *inputs, rank, encoded);
}

Result<EncodedWeight> EncodeSigns(ThreadPool& pool, const WeightPair& pair, const Code& code,
                                  const WeightInputs* inputs) {
  DF_ASSIGN_OR_RETURN(EncodedWeight encoded, EncodeSign(pool, pair, code.sign));
  if (HasNewRows(pair)) {
    DF_RETURN_IF_ERROR(AddNewRows(pair, encoded));
    encoded.quality = MeasureQuality(pool, pair, encoded.delta);
  }
  if (inputs && !encoded.delta.IsBase()) CalibratePlanes(pool, pair, *inputs, encoded);
  if (code.rank > 0) DF_RETURN_IF_ERROR(AddLowRank(pool, pair, code.rank, inputs, encoded));
  return encoded;
}

Result<EncodedWeight> EncodeAs(ThreadPool& pool, const WeightPair& pair, const Code& code, const WeightInputs* inputs) {
  switch (code.kind) {
    case CodeKind::kSign: return EncodeSigns(pool, pair, code, inputs);
    case CodeKind::kByteRows: return EncodeByteRows(pool, pair);
    case CodeKind::kRows: return EncodeExact(pool, pair, ExactCode::kRows);
    case CodeKind::kRaw: return EncodeExact(pool, pair, ExactCode::kRaw);
    case CodeKind::kExact: return EncodeExact(pool, pair, ExactCode::kSmallest);
    case CodeKind::kLowRank: break;
  }
  if (code.rank == 0) return EncodeFoundRank(pool, pair);
  if (inputs && inputs->HasMoment()) return EncodeWhitenedLowRank(pool, pair, *inputs, code.rank);
  return EncodeLowRank(pool, pair, code.rank);
}

}  // namespace

bool TakesInputs(const Code& code) {
  return code.kind == CodeKind::kSign || (code.kind == CodeKind::kLowRank && code.rank > 0);
}

std::string CodeText(const Code& code) {
  const std::string rank = std::string(kLowRankPrefix) + std::to_string(code.rank);
  if (code.kind == CodeKind::kSign) return SignText(code.sign) + (code.rank > 0 ? "+" + rank : "");
  if (code.kind == CodeKind::kLowRank && code.rank > 0) return rank;
  for (const NamedCode& named : kNamed) {
    if (named.code.kind == code.kind) return std::string(named.name);
  }
  return "";
}

Result<Code> ParseCode(std::string_view text) {
  if (const std::optional<Code> code = Parse(text)) return *code;
  return InvalidArgument(
      "no code \"" + std::string(text.substr(0, 40)) + "\"; there are scalar, row, column, rank1, planes2 to planes" +
      std::to_string(kMaxPlanes) +
      " (with rank-1 scales; planes2:row: with others), each also with +lowrank:R; lowrank, lowrank:R (R from 1 to " +
      std::to_string(kMaxCodedRank) + "), int8, rows, raw, exact");
}

Status CheckCode(const WeightPair& pair, const Code& code) {
  if (!HasNewRows(pair) || !HasLowRank(code)) return Status::Ok();
  return Unsupported("tensor " + pair.name + " grew from " + std::to_string(MatrixRows(pair.base)) + " to " +
                     std::to_string(MatrixRows(pair.fine_tune)) +
                     " rows, which low rank cannot hold; choose another code than " + CodeText(code) + " for it");
}

Result<EncodedWeight> Encode(ThreadPool& pool, const WeightPair& pair, const Code& code, const WeightInputs* inputs) {
  DF_RETURN_IF_ERROR(CheckCode(pair, code));
  DF_ASSIGN_OR_RETURN(EncodedWeight encoded, EncodeAs(pool, pair, code, inputs));
  // Nothing may stand for no change alone: a difference that a code cannot hold at all is kept whole.
  return encoded.delta.IsBase() ? EncodeExact(pool, pair, ExactCode::kSmallest) : std::move(encoded);
}

}  // namespace df
