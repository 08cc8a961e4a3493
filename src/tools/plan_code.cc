#include "tools/plan_code.h"

#include <charconv>
#include <cmath>

#include "kernels/packed.h"

namespace df::tools {
namespace {

constexpr size_t kMaxRank = 65536;
constexpr uint64_t kFactorBytes = 2;             // of a low rank's elements: F16 or BF16
constexpr uint64_t kScaleBytes = sizeof(float);  // of a whole weight, and of all in memory
constexpr uint64_t kIndexBytes = sizeof(int32_t);
constexpr double kAutoBits = 1.35;  // what `compress --code auto` uses by default

uint64_t PaddedRows(uint64_t d_out) {
  return (d_out + kernels::kTileRows - 1) / kernels::kTileRows * kernels::kTileRows;
}

Status UnknownCode(std::string_view name) {
  return InvalidArgument("unknown code \"" + std::string(name.substr(0, 40)) +
                         "\"; there are scalar, row, column, rank1, planes2 to planes8, lowrank:R, SIGNS+lowrank:R, "
                         "lora:R, int8, raw, same, auto, Xbpw (bits a weight)");
}

// The rank of "lowrank:R" or "lora:R"; 0 when `text` is not that.
size_t RankAfter(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return 0;
  text.remove_prefix(prefix.size());
  size_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && rank <= kMaxRank ? rank : 0;
}

// Bits of "1.5bpw"; 0 when `text` is not that.
double BitsOf(std::string_view text) {
  if (text == "auto") return kAutoBits;
  if (!text.ends_with("bpw")) return 0;
  text.remove_suffix(3);
  double bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, std::chars_format::fixed);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && bits > 0 && bits <= 32 ? bits : 0;
}

// True when `text` names planes of signs.
bool ReadSigns(std::string_view text, PlannedCode& code) {
  code.n_planes = 1;
  if (text == "scalar") return true;
  code.row_scale = text != "column";
  if (text == "row") return true;
  code.col_scale = true;
  if (text == "column" || text == "rank1") return true;
  if (!text.starts_with("planes") || text.size() != 7 || text[6] < '2' || text[6] > '8') return false;
  code.n_planes = static_cast<size_t>(text[6] - '0');
  return true;
}

uint64_t LowRankStoredBytes(const PlannedCode& code, const WeightShape& shape) {
  return kFactorBytes * code.rank * (shape.d_out + shape.d_in);
}

uint64_t LowRankResidentBytes(const PlannedCode& code, const WeightShape& shape) {
  if (code.rank == 0) return 0;
  return kFactorBytes * code.rank * shape.d_in +
         PackedMatrixBytes({.d_out = shape.d_out, .d_in = code.rank, .element_bytes = kFactorBytes});
}

uint64_t BitsBytes(const PlannedCode& code, const WeightShape& shape) {
  return static_cast<uint64_t>(std::llround(code.bits * static_cast<double>(shape.d_out * shape.d_in) / 8));
}

uint64_t ByteRowsBytes(const WeightShape& shape) { return shape.d_out * (shape.d_in + kScaleBytes + kIndexBytes); }

}  // namespace

Result<PlannedCode> ParsePlannedCode(std::string_view name, uint64_t scale_bytes) {
  PlannedCode code = {.name = std::string(name), .scale_bytes = scale_bytes};
  const auto with_kind = [&code](PlannedKind kind) {
    code.kind = kind;
    return code;
  };
  if (name == "raw" || name == "exact") return with_kind(PlannedKind::kRaw);
  if (name == "same") return with_kind(PlannedKind::kSame);
  if (name == "int8") return with_kind(PlannedKind::kBytes);
  code.bits = BitsOf(name);
  if (code.bits > 0) return with_kind(PlannedKind::kBits);
  const size_t adapter_rank = RankAfter(name, "lora:");
  code.is_adapter = adapter_rank > 0;
  code.rank = code.is_adapter ? adapter_rank : RankAfter(name, "lowrank:");
  if (code.rank > 0) return with_kind(PlannedKind::kLowRank);
  const size_t plus = name.find('+');
  if (plus != std::string_view::npos) {
    code.rank = RankAfter(name.substr(plus + 1), "lowrank:");
    if (code.rank == 0) return UnknownCode(name);
  }
  if (!ReadSigns(name.substr(0, plus), code)) return UnknownCode(name);
  return with_kind(PlannedKind::kSigns);
}

uint64_t PackedMatrixBytes(const WeightShape& shape) {
  return PaddedRows(shape.d_out) * ((shape.d_in + 1) / 2 * 2) * shape.element_bytes;
}

uint64_t StoredBytes(const PlannedCode& code, const WeightShape& shape) {
  switch (code.kind) {
    case PlannedKind::kSame: return 0;
    case PlannedKind::kRaw: return shape.d_out * shape.d_in * shape.element_bytes;
    case PlannedKind::kLowRank: return LowRankStoredBytes(code, shape);
    case PlannedKind::kBytes: return ByteRowsBytes(shape);
    case PlannedKind::kBits: return BitsBytes(code, shape);
    case PlannedKind::kSigns: break;
  }
  uint64_t scales = code.row_scale || code.col_scale ? 0 : kScaleBytes;
  if (code.row_scale) scales += code.scale_bytes * shape.d_out;
  if (code.col_scale) scales += code.scale_bytes * shape.d_in;
  return code.n_planes * (shape.d_out * SignRowBytes(shape.d_in) + scales) + LowRankStoredBytes(code, shape);
}

uint64_t ResidentBytes(const PlannedCode& code, const WeightShape& shape) {
  switch (code.kind) {
    case PlannedKind::kSame: return 0;
    case PlannedKind::kRaw: return PackedMatrixBytes(shape);
    case PlannedKind::kLowRank: return LowRankResidentBytes(code, shape);
    case PlannedKind::kBytes: return ByteRowsBytes(shape);
    case PlannedKind::kBits: return BitsBytes(code, shape);
    case PlannedKind::kSigns: break;
  }
  const uint64_t columns = code.col_scale ? kScaleBytes * shape.d_in : 0;
  const uint64_t rows = PaddedRows(shape.d_out) * (SignRowBytes(shape.d_in) + kScaleBytes);
  return code.n_planes * (rows + columns) + LowRankResidentBytes(code, shape);
}

std::string StoredFormula(const PlannedCode& code) {
  const std::string low_rank = "2 * " + std::to_string(code.rank) + " * (d_out + d_in)";
  switch (code.kind) {
    case PlannedKind::kSame: return "0";
    case PlannedKind::kRaw: return "d_out * d_in * element";
    case PlannedKind::kLowRank: return low_rank;
    case PlannedKind::kBytes: return "d_out * (d_in + 8)";
    case PlannedKind::kBits: return "bits * d_out * d_in / 8";
    case PlannedKind::kSigns: break;
  }
  std::string scales = code.row_scale || code.col_scale ? "" : " + 4";
  const std::string each = " + " + std::to_string(code.scale_bytes);
  if (code.row_scale) scales += each + " * d_out";
  if (code.col_scale) scales += each + " * d_in";
  const std::string plane = "d_out * ceil(d_in / 8)" + scales;
  const std::string planes = code.n_planes == 1 ? plane : std::to_string(code.n_planes) + " * (" + plane + ")";
  return planes + (code.rank > 0 ? " + " + low_rank : "");
}

}  // namespace df::tools
