#include "format/delta_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "format/digest.h"
#include "format/message.h"

namespace df::internal {
namespace {

// 16 planes would be larger than bf16 weights.
constexpr size_t kMaxPlanes = 16;

struct Suffix {
  std::string_view text;
  const TensorView* WeightParts::* part;
  int since_version = 1;
};
constexpr std::array<Suffix, 10> kSuffixes = {{{".sign", &WeightParts::sign},
                                               {".scale", &WeightParts::scale},
                                               {".scale_row", &WeightParts::scale_row},
                                               {".scale_col", &WeightParts::scale_col},
                                               {".lora_A", &WeightParts::lora_a},
                                               {".lora_B", &WeightParts::lora_b},
                                               {".rows_index", &WeightParts::rows_index},
                                               {".rows", &WeightParts::rows},
                                               {".rows_q", &WeightParts::rows_q, 2},
                                               {".rows_step", &WeightParts::rows_step, 2}}};

// The weight that a tensor belongs to; nullopt for a name of no known form. Every weight of a supported architecture
// ends with .weight or .bias, so its own name is never mistaken for a suffix.
std::optional<std::string_view> WeightOf(std::string_view name, int format_version) {
  if (name.ends_with(".weight") || name.ends_with(".bias")) return name;
  for (const Suffix& suffix : kSuffixes) {
    if (!name.ends_with(suffix.text) || suffix.since_version > format_version) continue;
    const std::string_view weight = name.substr(0, name.size() - suffix.text.size());
    if (weight.ends_with(".weight")) return weight;
  }
  return std::nullopt;
}

Status BadTensor(std::string_view weight, std::string_view suffix, const std::string& expected,
                 const TensorView& found) {
  return Corrupt("tensor " + Quoted(std::string(weight) + std::string(suffix)) + " must be " + expected + ", found " +
                 std::string(DTypeName(found.dtype)) + " " + ToString(found.shape));
}

Status CheckFinite(std::string_view name, const TensorView& view) {
  std::array<float, 256> piece;
  for (size_t done = 0; done < view.elements(); done += piece.size()) {
    const std::span<float> values(piece.data(), std::min(piece.size(), view.elements() - done));
    ReadFloats(view, done, values);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      return Corrupt("tensor " + Quoted(name) + " is not finite at element " + std::to_string(done + i));
    }
  }
  return Status::Ok();
}

// The checks of one weight. Sizes become known with the first part that tells them; later parts must agree.
class PartsChecker {
 public:
  PartsChecker(std::string_view weight, const WeightParts& parts, size_t max_dim)
      : weight_(weight), parts_(parts), max_dim_(max_dim) {}

  Status Check() {
    DF_RETURN_IF_ERROR(CheckGroups());
    if (parts_.raw != nullptr && !IsWeightDType(parts_.raw->dtype)) {
      return BadTensor(weight_, "", "F32, BF16 or F16", *parts_.raw);
    }
    if (parts_.sign != nullptr) DF_RETURN_IF_ERROR(CheckSign());
    if (parts_.lora_a != nullptr) DF_RETURN_IF_ERROR(CheckLowRank());
    if (parts_.rows != nullptr) DF_RETURN_IF_ERROR(CheckRows());
    if (parts_.rows_q != nullptr) DF_RETURN_IF_ERROR(CheckByteRows());
    return Status::Ok();
  }

 private:
  Status Incomplete(std::string_view has, std::string_view lacks) const {
    return Corrupt("weight " + Quoted(weight_) + " has " + std::string(has) + " but no " + std::string(lacks));
  }

  Status CheckGroups() const {
    const bool scaled = parts_.scale != nullptr || parts_.scale_row != nullptr || parts_.scale_col != nullptr;
    if (parts_.sign != nullptr && !scaled) return Incomplete(".sign", ".scale, .scale_row or .scale_col");
    if (parts_.sign == nullptr && scaled) return Incomplete("scales", ".sign");
    if (parts_.lora_a != nullptr && parts_.lora_b == nullptr) return Incomplete(".lora_A", ".lora_B");
    if (parts_.lora_a == nullptr && parts_.lora_b != nullptr) return Incomplete(".lora_B", ".lora_A");
    if (parts_.rows != nullptr && parts_.rows_index == nullptr) return Incomplete(".rows", ".rows_index");
    if (parts_.rows_q != nullptr && parts_.rows_index == nullptr) return Incomplete(".rows_q", ".rows_index");
    if (parts_.rows_q != nullptr && parts_.rows_step == nullptr) return Incomplete(".rows_q", ".rows_step");
    if (parts_.rows_q == nullptr && parts_.rows_step != nullptr) return Incomplete(".rows_step", ".rows_q");
    const bool has_rows = parts_.rows != nullptr || parts_.rows_q != nullptr;
    if (!has_rows && parts_.rows_index != nullptr) return Incomplete(".rows_index", ".rows or .rows_q");
    if (parts_.rows != nullptr && parts_.rows_q != nullptr) {
      return Corrupt("weight " + Quoted(weight_) + " has both .rows and .rows_q");
    }
    const bool coded = parts_.sign != nullptr || parts_.lora_a != nullptr || has_rows;
    if (parts_.raw != nullptr && coded) return Corrupt("weight " + Quoted(weight_) + " is both replaced and coded");
    return Status::Ok();
  }

  Status CheckSign() {
    const TensorView& sign = *parts_.sign;
    if (sign.dtype != DType::kU8 || sign.shape.rank() != 3) {
      return BadTensor(weight_, ".sign", "U8 [planes, d_out, ceil(d_in/8)]", sign);
    }
    const size_t planes = sign.shape[0];
    if (planes == 0 || planes > kMaxPlanes) return BadTensor(weight_, ".sign", "1 to 16 planes", sign);
    d_out_ = sign.shape[1];
    if (parts_.scale != nullptr) {
      if (parts_.scale->dtype != DType::kF32 || parts_.scale->shape != Shape{planes}) {
        return BadTensor(weight_, ".scale", "F32 " + ToString(Shape{planes}), *parts_.scale);
      }
    }
    if (parts_.scale_row != nullptr) {
      DF_RETURN_IF_ERROR(CheckScaleVectors(".scale_row", *parts_.scale_row, {planes, *d_out_}));
    }
    if (parts_.scale_col == nullptr) return Status::Ok();
    const size_t d_in = parts_.scale_col->shape.rank() == 2 ? parts_.scale_col->shape[1] : 0;
    if (SignRowBytes(d_in) != sign.shape[2]) {
      return BadTensor(weight_, ".scale_col",
                       "[planes, d_in] with " + std::to_string(sign.shape[2]) + " bytes of signs a row",
                       *parts_.scale_col);
    }
    d_in_ = d_in;
    return CheckScaleVectors(".scale_col", *parts_.scale_col, {planes, d_in});
  }

  Status CheckScaleVectors(std::string_view suffix, const TensorView& view, const Shape& expected) const {
    if ((view.dtype != DType::kF32 && view.dtype != DType::kBf16) || view.shape != expected) {
      return BadTensor(weight_, suffix, "F32 or BF16 " + ToString(expected), view);
    }
    if (view.shape[1] > max_dim_) {
      return BadTensor(weight_, suffix, "no longer than config.json allows, " + std::to_string(max_dim_), view);
    }
    return Status::Ok();
  }

  Status CheckLowRank() {
    const TensorView& a = *parts_.lora_a;
    const TensorView& b = *parts_.lora_b;
    if (!IsWeightDType(a.dtype) || a.shape.rank() != 2 || a.shape[0] == 0 || a.shape[1] != d_in_.value_or(a.shape[1])) {
      return BadTensor(weight_, ".lora_A", "float [r, " + DInText() + "]", a);
    }
    d_in_ = a.shape[1];
    if (!IsWeightDType(b.dtype) ||
        b.shape != Shape{d_out_.value_or(b.shape.rank() == 2 ? b.shape[0] : 0), a.shape[0]}) {
      return BadTensor(
          weight_, ".lora_B",
          "float [" + (d_out_ ? std::to_string(*d_out_) : "d_out") + ", " + std::to_string(a.shape[0]) + "]", b);
    }
    return CheckRowBytes(".lora_A", a);
  }

  Status CheckRows() {
    if (!IsWeightDType(parts_.rows->dtype)) return BadTensor(weight_, ".rows", "F32, BF16 or F16", *parts_.rows);
    return CheckRowsAndIndex(".rows", *parts_.rows);
  }

  Status CheckByteRows() {
    if (parts_.rows_q->dtype != DType::kI8) return BadTensor(weight_, ".rows_q", "I8", *parts_.rows_q);
    DF_RETURN_IF_ERROR(CheckRowsAndIndex(".rows_q", *parts_.rows_q));
    const Shape expected{parts_.rows_q->shape[0]};
    if (parts_.rows_step->dtype != DType::kF32 || parts_.rows_step->shape != expected) {
      return BadTensor(weight_, ".rows_step", "F32 " + ToString(expected), *parts_.rows_step);
    }
    return Status::Ok();
  }

  Status CheckRowsAndIndex(std::string_view suffix, const TensorView& rows) {
    const TensorView& index = *parts_.rows_index;
    if (index.dtype != DType::kI32 || index.shape.rank() != 1) {
      return BadTensor(weight_, ".rows_index", "I32 [k]", index);
    }
    const size_t k = index.shape[0];
    if (rows.shape.rank() != 2 || rows.shape[0] != k || rows.shape[1] != d_in_.value_or(rows.shape[1])) {
      return BadTensor(weight_, suffix, "[" + std::to_string(k) + ", " + DInText() + "]", rows);
    }
    int64_t previous = -1;
    for (size_t i = 0; i < k; ++i) {
      const auto row = LoadUnaligned<int32_t>(index.bytes.data() + i * sizeof(int32_t));
      if (row <= previous) {
        return Corrupt("tensor " + Quoted(std::string(weight_) + ".rows_index") + " must increase from 0, found " +
                       std::to_string(row) + " after " + std::to_string(previous));
      }
      previous = row;
    }
    return CheckRowBytes(suffix, rows);
  }

  // A part that tells d_in must fit the signs, which tell it only up to the next 8.
  Status CheckRowBytes(std::string_view suffix, const TensorView& view) const {
    if (parts_.sign == nullptr || SignRowBytes(view.shape[1]) == parts_.sign->shape[2]) return Status::Ok();
    return BadTensor(weight_, suffix, "as wide as " + std::to_string(parts_.sign->shape[2]) + " bytes of signs a row",
                     view);
  }

  std::string DInText() const { return d_in_ ? std::to_string(*d_in_) : "d_in"; }

  std::string_view weight_;
  const WeightParts& parts_;
  const size_t max_dim_;
  std::optional<size_t> d_out_, d_in_;
};

}  // namespace

int FormatVersionOf(const LinearDelta& delta) { return delta.byte_rows ? 2 : 1; }

WeightParts PartsOf(const TensorMap& tensors, std::string_view weight) {
  WeightParts parts;
  const auto find = [&tensors](std::string_view name) -> const TensorView* {
    const auto at = tensors.find(name);
    return at == tensors.end() ? nullptr : &at->second.view;
  };
  parts.raw = find(weight);
  for (const Suffix& suffix : kSuffixes) parts.*suffix.part = find(std::string(weight) + std::string(suffix.text));
  return parts;
}

Result<std::vector<std::string>> CheckDeltaTensors(const TensorMap& tensors, int format_version, size_t max_dim) {
  std::vector<std::string> weights;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<std::string_view> weight = WeightOf(name, format_version);
    if (!weight) {
      return Unsupported("tensor " + Quoted(name) + " is no weight and has no suffix known to format version " +
                         std::to_string(format_version));
    }
    weights.emplace_back(*weight);
  }
  std::sort(weights.begin(), weights.end());
  weights.erase(std::unique(weights.begin(), weights.end()), weights.end());
  for (const std::string& weight : weights) {
    const WeightParts parts = PartsOf(tensors, weight);
    DF_RETURN_IF_ERROR(PartsChecker(weight, parts, max_dim).Check());
  }
  return weights;
}

Status CheckScale(std::string_view name, const TensorView& view) {
  const bool is_scale = name.ends_with(".scale") || name.ends_with(".scale_row") || name.ends_with(".scale_col") ||
                        name.ends_with(".rows_step");
  return is_scale ? CheckFinite(name, view) : Status::Ok();
}

Status CheckScales(const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) DF_RETURN_IF_ERROR(CheckScale(name, tensor.view));
  return Status::Ok();
}

std::string ContentDigest(const TensorMap& tensors) {
  Digest digest;
  for (const auto& [name, tensor] : tensors) digest.AddTensor(name, tensor.view, tensor.file);
  return digest.Hex();
}

}  // namespace df::internal
