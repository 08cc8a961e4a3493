#include "kernels/packed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/float16.h"
#include "kernels/cpu/packed.h"
#include "kernels/ref/packed.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

using PackTile = void (*)(const ref::TileSource& source, size_t n, uint8_t* tile);

struct TilePackers {
  PackTile full;    // 32 rows
  PackTile ragged;  // fewer
};

TilePackers PackersOf(DType dtype) {
  TilePackers packers = {};
  switch (dtype) {
    case DType::kBf16: packers = {cpu::PackTileBf16, ref::PackTileBf16}; break;
    case DType::kF16: packers = {cpu::PackTileF16, ref::PackTileF16}; break;
    case DType::kF32: packers = {cpu::PackTileF32, ref::PackTileF32}; break;
    default: DF_CHECK(IsWeightDType(dtype));
  }
  if (IsScalarTarget()) packers.full = packers.ragged;
  return packers;
}

// A [d_out] x stride_bytes matrix on its way to tiles.
struct Job {
  Bytes source;
  size_t d_out = 0;
  size_t stride_bytes = 0;  // of a stored row
  size_t n = 0;             // columns (or bytes of signs) of a row
  size_t tile_bytes = 0;
  uint8_t* tiles = nullptr;
  TilePackers packers = {};
};

void PackTileRange(const Job& job, size_t begin, size_t end) {
  for (size_t tile = begin; tile < end; ++tile) {
    const size_t row = tile * kTileRows;
    const size_t n_rows = std::min(kTileRows, job.d_out - row);
    const ref::TileSource source = {
        .rows = job.source.data() + row * job.stride_bytes, .stride_bytes = job.stride_bytes, .n_rows = n_rows};
    (n_rows == kTileRows ? job.packers.full : job.packers.ragged)(source, job.n, job.tiles + tile * job.tile_bytes);
  }
}

// Source bytes between two calls of `release`: small beside the memory bounds of loading, large beside a barrier.
constexpr size_t kReleaseBytes = size_t{8} << 20;

void RunJob(KernelContext& context, const Job& job, void (*release)(void* user, Bytes part), void* user) {
  const size_t n_tiles = (job.d_out + kTileRows - 1) / kTileRows;
  // Products give each thread an equal share of the tiles: its pages lie on its node, whichever thread packs them.
  PlaceShares(context.readers, {job.tiles, n_tiles * job.tile_bytes});
  const size_t source_tile_bytes = kTileRows * job.stride_bytes;
  const size_t per_part =
      release == nullptr ? n_tiles : std::max<size_t>(1, kReleaseBytes / std::max<size_t>(1, source_tile_bytes));
  for (size_t first = 0; first < n_tiles; first += per_part) {
    const size_t count = std::min(per_part, n_tiles - first);
    context.pool.ParallelFor(count, 1,
                             [&](size_t begin, size_t end, size_t) { PackTileRange(job, first + begin, first + end); });
    if (release == nullptr) continue;
    const size_t done = std::min(job.source.size(), first * source_tile_bytes + count * source_tile_bytes);
    release(user, job.source.subspan(first * source_tile_bytes, done - first * source_tile_bytes));
  }
}

float Decode(DType dtype, const uint8_t* at) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(LoadUnaligned<Bf16>(at));
    case DType::kF16: return ToFloat(LoadUnaligned<F16>(at));
    case DType::kI8: return static_cast<float>(static_cast<int8_t>(*at));
    default: return LoadUnaligned<float>(at);
  }
}

Buffer<float> Floats(const TensorView& tensor, Arena* arena) {
  Buffer<float> values(tensor.elements(), arena);
  ReadFloats(tensor, 0, values.span());
  return values;
}

RowMajorWeight CopyRows(const TensorView& weight, Arena* arena) {
  DF_CHECK(weight.shape.rank() == 2 && (IsWeightDType(weight.dtype) || weight.dtype == DType::kI8));
  RowMajorWeight packed = {.dtype = weight.dtype,
                           .n_rows = weight.shape[0],
                           .d_in = weight.shape[1],
                           .values = Buffer<uint8_t>(weight.bytes.size(), arena)};
  if (!weight.bytes.empty()) std::memcpy(packed.values.data(), weight.bytes.data(), weight.bytes.size());
  return packed;
}

// Where packed weights go, and what becomes of the stored ones.
struct PackOptions {
  Arena* arena = nullptr;
  void (*release)(void* user, Bytes part) = nullptr;
  void* user = nullptr;
};

PackedWeight PackTiles(KernelContext& context, const TensorView& weight, const PackOptions& options) {
  DF_CHECK(weight.shape.rank() == 2 && IsWeightDType(weight.dtype));
  PackedWeight packed = {.dtype = weight.dtype, .d_out = weight.shape[0], .d_in = weight.shape[1], .tiles = {}};
  DF_CHECK(weight.bytes.size() == packed.d_out * packed.d_in * DTypeBytes(packed.dtype));
  packed.tiles = Buffer<uint8_t>(packed.n_tiles() * packed.tile_bytes(), options.arena);
  const Job job = {.source = weight.bytes,
                   .d_out = packed.d_out,
                   .stride_bytes = packed.d_in * DTypeBytes(packed.dtype),
                   .n = packed.d_in,
                   .tile_bytes = packed.tile_bytes(),
                   .tiles = packed.tiles.data(),
                   .packers = PackersOf(packed.dtype)};
  RunJob(context, job, options.release, options.user);
  return packed;
}

PackedPlane PackPlane(KernelContext& context, const LinearDelta& delta, const SignPlane& plane, Arena* arena) {
  const auto [d_out, d_in] = std::pair(delta.d_out, delta.d_in);
  const size_t n_tiles = (d_out + kTileRows - 1) / kTileRows;
  const size_t row_bytes = SignRowBytes(d_in);
  DF_CHECK(plane.bits.size() == d_out * row_bytes);
  PackedPlane packed = {.d_in = d_in,
                        .bits = Buffer<uint8_t>(n_tiles * row_bytes * kTileRows, arena),
                        .row_scale = Buffer<float>(n_tiles * kTileRows, arena),
                        .col_scale = {}};
  Job job = {.source = plane.bits,
             .d_out = d_out,
             .stride_bytes = row_bytes,
             .n = row_bytes,
             .tile_bytes = row_bytes * kTileRows,
             .tiles = packed.bits.data(),
             .packers = {cpu::PackTileSigns, ref::PackTileSigns}};
  if (IsScalarTarget()) job.packers.full = job.packers.ragged;
  RunJob(context, job, nullptr, nullptr);

  std::fill_n(packed.row_scale.data(), d_out, 1.0F);
  if (plane.row_scale) {
    DF_CHECK(plane.row_scale->elements() == d_out);
    ReadFloats(*plane.row_scale, 0, packed.row_scale.span().first(d_out));
  }
  for (float& scale : packed.row_scale.span()) scale *= plane.scale;
  if (plane.col_scale) packed.col_scale = Floats(*plane.col_scale, arena);
  DF_CHECK(packed.col_scale.empty() || packed.col_scale.size() == d_in);
  return packed;
}

// PackWeight(matrix).bytes().
size_t PackedBytesOf(const TensorView& matrix) {
  PackedWeight packed = {.dtype = matrix.dtype, .d_out = matrix.shape[0], .d_in = matrix.shape[1], .tiles = {}};
  return packed.n_tiles() * packed.tile_bytes();
}

PackedLowRank PackLowRank(KernelContext& context, const LowRank& pair, Arena* arena) {
  PackedLowRank packed = {.rank = pair.a.shape[0],
                          .scale = pair.scale,
                          .a = CopyRows(pair.a, arena),
                          .b = PackTiles(context, pair.b, {.arena = arena})};
  DF_CHECK(packed.b.d_in == packed.rank);
  return packed;
}

// Sum of `size` (a member of Buffer) over all buffers of a delta.
template <typename Size>
size_t SumBuffers(const PackedDelta& delta, const Size& size) {
  size_t sum = size(delta.gain_row) + size(delta.bias);
  for (const PackedPlane& plane : delta.planes) sum += size(plane.bits) + size(plane.row_scale) + size(plane.col_scale);
  for (const PackedLowRank& pair : delta.low_rank) sum += size(pair.a.values) + size(pair.b.tiles);
  if (delta.rows) sum += size(delta.rows->values.values) + delta.rows->index.size() * sizeof(int32_t);
  if (delta.byte_rows) {
    const PackedByteRows& rows = *delta.byte_rows;
    sum += size(rows.values.values) + size(rows.step) + rows.index.size() * sizeof(int32_t);
  }
  if (delta.raw) sum += size(delta.raw->tiles);
  return sum;
}

PackedWeight Borrow(const PackedWeight& weight) {
  return {.dtype = weight.dtype,
          .d_out = weight.d_out,
          .d_in = weight.d_in,
          .tiles = weight.tiles.Borrow(),
          .mapped = weight.mapped};
}

RowMajorWeight Borrow(const RowMajorWeight& weight) {
  return {.dtype = weight.dtype, .n_rows = weight.n_rows, .d_in = weight.d_in, .values = weight.values.Borrow()};
}

}  // namespace

float PackedWeight::At(size_t row, size_t col) const {
  if (IsMapped()) return Decode(dtype, mapped.data() + (row * d_in + col) * DTypeBytes(dtype));
  const size_t in_tile =
      dtype == DType::kBf16 ? (col / 2 * kTileRows + row % kTileRows) * 2 + col % 2 : col * kTileRows + row % kTileRows;
  return Decode(dtype, tiles.data() + row / kTileRows * tile_bytes() + in_tile * DTypeBytes(dtype));
}

void PackedWeight::ReadRow(size_t row, float* out) const {
  for (size_t col = 0; col < d_in; ++col) out[col] = At(row, col);
}

float RowMajorWeight::At(size_t row, size_t col) const { return Decode(dtype, Row(row) + col * DTypeBytes(dtype)); }

void RowMajorWeight::ReadRow(size_t row, float* out) const {
  for (size_t col = 0; col < d_in; ++col) out[col] = At(row, col);
}

size_t PackedByteRows::Find(size_t row) const {
  const auto found = std::ranges::lower_bound(index, static_cast<int32_t>(row));
  const bool listed = found != index.end() && *found == static_cast<int32_t>(row);
  return listed ? static_cast<size_t>(found - index.begin()) : index.size();
}

size_t PackedDelta::bytes() const {
  return SumBuffers(*this, [](const auto& buffer) { return buffer.size_bytes(); });
}

size_t PackedDelta::owned_bytes() const {
  return SumBuffers(*this, [](const auto& buffer) { return buffer.owned_bytes(); });
}

PackedDelta Borrow(const PackedDelta& delta) {
  PackedDelta borrowed;
  borrowed.d_out = delta.d_out;
  borrowed.d_in = delta.d_in;
  for (const PackedPlane& plane : delta.planes) {
    borrowed.planes.push_back({.d_in = plane.d_in,
                               .bits = plane.bits.Borrow(),
                               .row_scale = plane.row_scale.Borrow(),
                               .col_scale = plane.col_scale.Borrow()});
  }
  for (const PackedLowRank& pair : delta.low_rank) {
    borrowed.low_rank.push_back({.rank = pair.rank, .scale = pair.scale, .a = Borrow(pair.a), .b = Borrow(pair.b)});
  }
  if (delta.byte_rows) {
    const PackedByteRows& rows = *delta.byte_rows;
    borrowed.byte_rows = PackedByteRows{.index = rows.index, .values = Borrow(rows.values), .step = rows.step.Borrow()};
  }
  if (delta.rows) borrowed.rows = PackedRows{.index = delta.rows->index, .values = Borrow(delta.rows->values)};
  if (delta.raw) borrowed.raw = Borrow(*delta.raw);
  borrowed.gain_row = delta.gain_row.Borrow();
  borrowed.bias = delta.bias.Borrow();
  return borrowed;
}

size_t PackedBytes(const LinearDelta& delta) {
  const size_t n_tiles = (delta.d_out + kTileRows - 1) / kTileRows;
  size_t sum = 0;
  for (const SignPlane& plane : delta.planes) {
    sum += n_tiles * kTileRows * (SignRowBytes(delta.d_in) + sizeof(float));
    if (plane.col_scale) sum += delta.d_in * sizeof(float);
  }
  for (const LowRank& pair : delta.low_rank) sum += pair.a.bytes.size() + PackedBytesOf(pair.b);
  if (delta.rows) sum += delta.rows->values.bytes.size() + delta.rows->index.size() * sizeof(int32_t);
  if (delta.byte_rows) {
    const ByteRows& rows = *delta.byte_rows;
    sum += rows.values.bytes.size() + rows.step.bytes.size() + rows.index.size() * sizeof(int32_t);
  }
  if (delta.raw) sum += PackedBytesOf(*delta.raw);
  if (delta.gain_row) sum += delta.gain_row->elements() * sizeof(float);
  if (delta.bias) sum += delta.bias->elements() * sizeof(float);
  return sum;
}

size_t ArenaBytes(const LinearDelta& delta) {
  constexpr size_t kOfAPlane = 3, kOfAPair = 2, kOthers = 6;  // rows, byte rows and their steps, raw, gain, bias
  const size_t n_buffers = kOfAPlane * delta.planes.size() + kOfAPair * delta.low_rank.size() + kOthers;
  return PackedBytes(delta) + n_buffers * kAlignment;
}

PackedWeight PackWeight(KernelContext& context, const TensorView& weight) { return PackTiles(context, weight, {}); }

PackedWeight PackWeight(KernelContext& context, const TensorView& weight, void (*release)(void* user, Bytes part),
                        void* user) {
  return PackTiles(context, weight, {.release = release, .user = user});
}

PackedWeight MapWeight(const TensorView& weight) {
  DF_CHECK(weight.shape.rank() == 2 && IsWeightDType(weight.dtype));
  DF_CHECK(weight.bytes.size() == weight.shape[0] * weight.shape[1] * DTypeBytes(weight.dtype));
  return {
      .dtype = weight.dtype, .d_out = weight.shape[0], .d_in = weight.shape[1], .tiles = {}, .mapped = weight.bytes};
}

RowMajorWeight PackRowMajor(const TensorView& weight) { return CopyRows(weight, nullptr); }

PackedDelta PackDelta(KernelContext& context, const LinearDelta& delta, Arena* arena) {
  DF_CHECK(!delta.magnitude);
  PackedDelta packed;
  packed.d_out = delta.d_out;
  packed.d_in = delta.d_in;
  for (const SignPlane& plane : delta.planes) packed.planes.push_back(PackPlane(context, delta, plane, arena));
  for (const LowRank& pair : delta.low_rank) packed.low_rank.push_back(PackLowRank(context, pair, arena));
  if (delta.rows) {
    packed.rows = PackedRows{.index = delta.rows->index, .values = CopyRows(delta.rows->values, arena)};
    DF_CHECK(packed.rows->index.size() == packed.rows->values.n_rows);
  }
  if (delta.byte_rows) {
    const ByteRows& rows = *delta.byte_rows;
    packed.byte_rows =
        PackedByteRows{.index = rows.index, .values = CopyRows(rows.values, arena), .step = Floats(rows.step, arena)};
    DF_CHECK(rows.index.size() == packed.byte_rows->values.n_rows && rows.index.size() == rows.step.elements());
  }
  if (delta.raw) packed.raw = PackTiles(context, *delta.raw, {.arena = arena});
  if (delta.gain_row) packed.gain_row = Floats(*delta.gain_row, arena);
  if (delta.bias) packed.bias = Floats(*delta.bias, arena);
  return packed;
}

}  // namespace df::kernels
