#include "codec/materialize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>

#include "base/atomic_file.h"
#include "codec/bound_variant.h"
#include "codec/decode.h"
#include "codec/full_checkpoint.h"
#include "codec/row_ops.h"
#include "codec/side_files.h"

namespace df {
namespace {

// Rows are decoded and written in blocks of about this size: large against the cost of a write, small against a tensor.
constexpr size_t kBlockBytes = size_t{4} << 20;

struct Shard {
  std::string file_name;
  std::vector<const BoundWeight*> weights;  // in file order
};

DType TargetDType(const BoundWeight& weight, const MaterializeOptions& options) {
  return options.dtype.value_or(weight.base->view.dtype);
}

uint64_t TargetBytes(const BoundWeight& weight, const MaterializeOptions& options) {
  return uint64_t{weight.change.d_out} * weight.change.d_in * DTypeBytes(TargetDType(weight, options));
}

// The largest shard of the base, where it has more than one.
uint64_t ShardLimit(const BoundVariant& variant, const MaterializeOptions& options) {
  std::map<const MappedFile*, uint64_t> files;
  for (const BoundWeight& weight : variant.weights) files[weight.base->file] = weight.base->file->bytes().size();
  uint64_t largest = 0;
  for (const auto& [file, bytes] : files) largest = std::max(largest, bytes);
  return files.size() > 1 ? std::min(largest, options.max_shard_bytes) : options.max_shard_bytes;
}

std::vector<Shard> PlanShards(const BoundVariant& variant, const MaterializeOptions& options) {
  const uint64_t limit = ShardLimit(variant, options);
  std::vector<Shard> shards;
  uint64_t shard_bytes = 0;
  for (const BoundWeight& weight : variant.weights) {
    const uint64_t bytes = TargetBytes(weight, options);
    if (shards.empty() || shard_bytes + bytes > limit) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().weights.push_back(&weight);
    shard_bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file_name = ShardFileName(i, shards.size());
    // Largest elements first, so that every tensor is aligned when mapped.
    std::ranges::sort(shards[i].weights, [&](const BoundWeight* a, const BoundWeight* b) {
      const size_t a_bytes = DTypeBytes(TargetDType(*a, options)), b_bytes = DTypeBytes(TargetDType(*b, options));
      return a_bytes != b_bytes ? a_bytes > b_bytes : a->slot.name < b->slot.name;
    });
  }
  return shards;
}

class CheckpointMaker {
 public:
  CheckpointMaker(ThreadPool& pool, const MaterializeOptions& options, const BoundVariant& variant)
      : pool_(pool), options_(options) {
    progress_.n_tensors = variant.weights.size();
    for (const BoundWeight& weight : variant.weights) progress_.n_bytes += TargetBytes(weight, options);
  }

  Status WriteShard(const std::string& directory, const Shard& shard) {
    std::vector<TensorSpec> specs;
    for (const BoundWeight* weight : shard.weights) {
      specs.push_back(
          {weight->slot.name, TargetDType(*weight, options_),
           weight->slot.IsVector() ? Shape{weight->slot.d_out} : Shape{weight->slot.d_out, weight->slot.d_in}});
    }
    // "pt" is what the reference implementation wants to read before it loads a file.
    DF_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::Create(directory + "/" + shard.file_name, specs, {{"format", "pt"}}));
    for (const BoundWeight* weight : shard.weights) {
      if (options_.on_progress && !options_.on_progress(progress_)) {
        return Cancelled("stopped before " + weight->slot.name);
      }
      DF_RETURN_IF_ERROR(WriteWeight(*weight, writer));
      weight->base->file->DropPages(weight->base->view.bytes);
      ++progress_.done_tensors;
      progress_.done_bytes += TargetBytes(*weight, options_);
    }
    return writer.Commit();
  }

 private:
  Status WriteWeight(const BoundWeight& weight, SafetensorsWriter& writer) {
    const DType dtype = TargetDType(weight, options_);
    const RowDecoder decoder(weight.base->view, weight.change);
    const size_t row_bytes = decoder.d_in() * DTypeBytes(dtype);
    const size_t block_rows = std::max<size_t>(1, kBlockBytes / std::max<size_t>(row_bytes, 1));
    Buffer<uint8_t> block(std::min(block_rows, decoder.d_out()) * row_bytes);
    Mat<float> row_of_thread(pool_.n_threads(), decoder.d_in());
    std::atomic<bool> fits{true};
    std::atomic<bool> has_lengths{true};  // of rows that a magnitude scales
    for (size_t first = 0; first < decoder.d_out(); first += block_rows) {
      const size_t n_rows = std::min(block_rows, decoder.d_out() - first);
      pool_.ParallelFor(n_rows, RowGrain(decoder.d_in()), [&](size_t begin, size_t end, size_t thread) {
        const std::span<float> row = row_of_thread.view().RowSpan(thread);
        for (size_t r = begin; r < end; ++r) {
          decoder.Decode(first + r, row);
          // relaxed: ParallelFor itself orders the result before the look at it
          if (!std::isfinite(row[0])) has_lengths.store(false, std::memory_order_relaxed);
          if (!row_ops::Narrow(row, dtype, block.data() + r * row_bytes)) fits.store(false, std::memory_order_relaxed);
        }
      });
      DF_RETURN_IF_ERROR(writer.Write({block.data(), n_rows * row_bytes}));
    }
    if (weight.change.magnitude && !has_lengths.load(std::memory_order_relaxed)) {
      return Corrupt("tensor " + weight.slot.name + ": use_dora scales a row that has no length");
    }
    if (fits.load(std::memory_order_relaxed)) return Status::Ok();
    return FailedPrecondition("tensor " + weight.slot.name + " overflows " + std::string(DTypeName(dtype)) +
                              "; choose another dtype");
  }

  ThreadPool& pool_;
  const MaterializeOptions& options_;
  StreamProgress progress_;
};

Status WriteIndex(const std::string& directory, const std::vector<Shard>& shards, uint64_t total_bytes) {
  if (shards.size() == 1) return Status::Ok();
  std::map<std::string, std::string> places;
  for (const Shard& shard : shards) {
    for (const BoundWeight* weight : shard.weights) places[weight->slot.name] = shard.file_name;
  }
  return WriteShardIndex(directory, places, total_bytes);
}

// The variant's config with the dtype that was written and what an adapter changes.
Status WriteConfig(const BoundVariant& variant, const std::string& source, const std::string& target, DType dtype) {
  ConfigChanges changes{.dtype = dtype};
  if (variant.adapter != nullptr) {
    changes.vocab = variant.config.vocab;
    changes.unties = !variant.tied;
  }
  return WriteFullConfig(source, target, changes);
}

}  // namespace

Result<MaterializeReport> Materialize(ThreadPool& pool, const Checkpoint& base, const std::string& variant_directory,
                                      const std::string& target, const MaterializeOptions& options) {
  DF_ASSIGN_OR_RETURN(const BoundVariant variant, BindVariant(base, variant_directory));
  if (variant.delta != nullptr) DF_RETURN_IF_ERROR(variant.delta->VerifyDigest());
  DF_ASSIGN_OR_RETURN(AtomicDirectory directory,
                      AtomicDirectory::Create(target, {.replace = options.replace,
                                                       .mark = "config.json",
                                                       .inputs = {base.directory(), variant_directory}}));
  const std::vector<Shard> shards = PlanShards(variant, options);
  CheckpointMaker maker(pool, options, variant);
  MaterializeReport report{.n_tensors = variant.weights.size(), .n_shards = shards.size()};
  for (const BoundWeight& weight : variant.weights) report.bytes += TargetBytes(weight, options);
  for (const Shard& shard : shards) DF_RETURN_IF_ERROR(maker.WriteShard(directory.path(), shard));
  DF_RETURN_IF_ERROR(WriteIndex(directory.path(), shards, report.bytes));
  const std::string& config_source = variant.delta != nullptr ? variant_directory : base.directory();
  DF_RETURN_IF_ERROR(
      WriteConfig(variant, config_source, directory.path(), TargetDType(variant.weights.front(), options)));
  DF_RETURN_IF_ERROR(CopyTextFiles(base.directory(), variant_directory, directory.path()));
  DF_RETURN_IF_ERROR(base.CheckIntact());
  if (variant.delta != nullptr) DF_RETURN_IF_ERROR(variant.delta->CheckIntact());
  if (variant.adapter != nullptr) DF_RETURN_IF_ERROR(variant.adapter->file().file().CheckIntact());
  DF_RETURN_IF_ERROR(directory.Commit());
  return report;
}

}  // namespace df
