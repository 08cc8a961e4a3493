#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/atomic_file.h"
#include "cli/command.h"
#include "cli/kernel_arguments.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "format/safetensors.h"
#include "kernels/sample.h"
#include "model/decoder.h"
#include "store/variant_source.h"

namespace df::cli {
namespace {

constexpr size_t kMaxIdsBytes = size_t{64} << 20;
constexpr size_t kRowsAStep = 128;  // logits of a large vocabulary stay below 100 MB

struct LogitsOptions {
  std::string model, variant, ids, out;
  std::string path = "prefill";
  std::string kv_cache_dtype = "f32";
  size_t n_threads = 0;
  size_t n_greedy = 0;
  WeightMemory weights = WeightMemory::kRam;
  // Compared with other implementations: exact signs unless asked otherwise.
  KernelOptions kernels = {.sign_kernel = SignKernel::kExact, .batch_invariant = false};
};

// Numbers between brackets, commas and white space.
Result<std::vector<int32_t>> ParseIds(const std::string& argument) {
  std::string text = argument;
  std::error_code ignored;  // a list so long that it cannot be a path
  if (std::filesystem::exists(argument, ignored)) {
    DF_ASSIGN_OR_RETURN(text, FromFiles(ReadFileBounded(argument, kMaxIdsBytes)));
  }
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ',' || c == '\n' || c == '\t' || c == '\r') c = ' ';
  }
  std::vector<int32_t> ids;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    if (*at == ' ') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && *next != ' ')) {
      return InvalidArgument("--ids must be a file or a list of token ids (\"1,2,3\"); cannot read id " +
                             std::to_string(ids.size()) + " of \"" + argument.substr(0, 80) + "\"");
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

// One sequence on the decoder, without the engine: every row's logits are wanted.
class Sequencer {
 public:
  Sequencer(KernelContext& context, std::shared_ptr<const BaseWeights> base,
            std::shared_ptr<const VariantWeights> variant, KvPoolOptions kv)
      : context_(context),
        decoder_(base),
        kv_(base->config, kv),
        blocks_(kv.n_blocks),
        lease_(blocks_),
        variant_(std::move(variant)) {
    DF_CHECK(lease_.TryCover(kv.n_blocks * kernels::kKvBlockTokens));
  }

  // Appends `tokens`; their logits are valid until the next call.
  MatView<const float> Step(std::span<const int32_t> tokens, kernels::Phase phase) {
    Batch batch;
    batch.tokens.assign(tokens.begin(), tokens.end());
    batch.segments.push_back({.end = tokens.size(),
                              .phase = phase,
                              .variant = variant_.get(),
                              .position = position_,
                              .block_table = lease_.block_table()});
    for (size_t i = 0; i < tokens.size(); ++i) batch.logit_rows.push_back(i);
    position_ += tokens.size();
    return decoder_.Step(context_, batch, kv_);
  }

  size_t vocab() const { return variant_ ? variant_->config.vocab : decoder_.base().config.vocab; }

  int32_t Greedy(MatView<const float> logits, size_t row) {
    const kernels::SampleRow draw{.row = row, .vocab = vocab()};
    kernels::Sampled sampled;
    kernels::Sample(context_, logits, {&draw, 1}, {&sampled, 1});
    return sampled.token;
  }

 private:
  KernelContext& context_;
  Decoder decoder_;
  KvPool kv_;
  KvBlocks blocks_;
  KvLease lease_;
  std::shared_ptr<const VariantWeights> variant_;
  size_t position_ = 0;
};

Status CheckIds(const std::vector<int32_t>& ids, size_t n_greedy, const ModelConfig& config) {
  if (ids.empty()) return InvalidArgument("--ids holds no token");
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= config.vocab) {
      return InvalidArgument("token " + std::to_string(id) + " is not in the vocabulary of " +
                             std::to_string(config.vocab));
    }
  }
  if (n_greedy > config.max_positions || ids.size() + n_greedy > config.max_positions) {
    return InvalidArgument(std::to_string(ids.size()) + " ids and " + std::to_string(n_greedy) +
                           " more are beyond the model's " + std::to_string(config.max_positions) + " positions");
  }
  return Status::Ok();
}

// Runs the ids through `path`, writing their logits where `writer` is not null; returns the first greedy token.
Result<int32_t> RunIds(Sequencer& sequencer, const std::vector<int32_t>& ids, kernels::Phase phase,
                       SafetensorsWriter* writer) {
  int32_t next = -1;
  const size_t n_rows = phase == kernels::Phase::kDecode ? 1 : kRowsAStep;
  for (size_t begin = 0; begin < ids.size(); begin += n_rows) {
    const size_t n_now = std::min(n_rows, ids.size() - begin);
    const MatView<const float> logits = sequencer.Step({ids.data() + begin, n_now}, phase);
    for (size_t row = 0; writer != nullptr && row < n_now; ++row) {
      DF_RETURN_IF_ERROR(writer->Write(AsBytes(std::span<const float>(logits.Row(row), sequencer.vocab()))));
    }
    next = sequencer.Greedy(logits, n_now - 1);
  }
  return next;
}

Status PrintGreedy(Sequencer& sequencer, int32_t token, size_t n_greedy) {
  for (size_t i = 0; i < n_greedy; ++i) {
    if (token < 0) return Internal("non-finite logits after " + std::to_string(i) + " greedy tokens");
    std::cout << (i == 0 ? "" : " ") << token;
    if (i + 1 < n_greedy) token = sequencer.Greedy(sequencer.Step({&token, 1}, kernels::Phase::kDecode), 0);
  }
  if (n_greedy > 0) std::cout << std::endl;
  return Status::Ok();
}

Status RunLogits(const LogitsOptions& options) {
  if (options.out.empty() && options.n_greedy == 0)
    return InvalidArgument("nothing to do: give --out, --greedy, or both");
  if (options.path != "prefill" && options.path != "decode") {
    return InvalidArgument("--path must be prefill or decode, got \"" + options.path + "\"");
  }
  DF_RETURN_IF_ERROR(CheckKernelOptions(options.kernels));
  KernelContext context(options.n_threads == 0 ? UsableCpus() : options.n_threads, options.kernels);
  DF_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(options.ids));
  DF_ASSIGN_OR_RETURN(const std::string directory, ResolveModelDirectory(options.model));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, FromFiles(Checkpoint::Open(directory)));
  DF_ASSIGN_OR_RETURN(const auto base, FromFiles(LoadBase(context, checkpoint, options.weights)));
  DF_RETURN_IF_ERROR(checkpoint->CheckIntact());
  std::shared_ptr<const VariantWeights> variant;
  if (!options.variant.empty()) {
    DF_ASSIGN_OR_RETURN(variant, FromFiles(LoadVariantWeights(context, *base, options.variant)));
  }
  DF_RETURN_IF_ERROR(CheckIds(ids, options.n_greedy, variant ? variant->config : base->config));
  DF_ASSIGN_OR_RETURN(const DType kv_dtype, ParseKvDtype(options.kv_cache_dtype, *base));

  Sequencer sequencer(context, base, variant,
                      {.dtype = kv_dtype, .n_blocks = KvBlocksFor(ids.size() + options.n_greedy)});
  const kernels::Phase phase = options.path == "decode" ? kernels::Phase::kDecode : kernels::Phase::kPrefill;
  std::optional<SafetensorsWriter> writer;
  if (!options.out.empty()) {
    DF_ASSIGN_OR_RETURN(
        writer, SafetensorsWriter::Create(options.out, {{"logits", DType::kF32, {ids.size(), sequencer.vocab()}}},
                                          {{"path", options.path}, {"kv_cache_dtype", options.kv_cache_dtype}}));
  }
  DF_ASSIGN_OR_RETURN(const int32_t next, RunIds(sequencer, ids, phase, writer ? &*writer : nullptr));
  DF_RETURN_IF_ERROR(base->CheckIntact());
  if (writer) DF_RETURN_IF_ERROR(writer->Commit());
  DF_RETURN_IF_ERROR(PrintGreedy(sequencer, next, options.n_greedy));
  return base->CheckIntact();
}

}  // namespace

void AddLogits(const Command& app) {
  const Command command = app.Sub("logits", "Write the logits of given token ids, for comparison");
  const auto options = std::make_shared<LogitsOptions>();
  command.Option("--model", options->model, "Base model: a directory, or a hub id in the local Hugging Face cache")
      .Required();
  command.Option("--variant", options->variant, "A delta or adapter directory on it").TypeName("PATH");
  command.Option("--ids", options->ids, "Token ids: a file (JSON array, or separated), or \"1,2,3\"").Required();
  command.Option("--path", options->path, "prefill (all at once) or decode (one by one)").ShowDefault();
  command.Option("--kv-cache-dtype", options->kv_cache_dtype, "f32, bf16 or auto").ShowDefault();
  command.Option("--threads", options->n_threads, "Threads for kernels, 0 = all usable CPUs").ShowDefault();
  AddKernelOptions(command, options->kernels);
  AddWeightsOption(command, options->weights);
  command.Option("--out", options->out, "safetensors file to write: `logits` f32 [n, vocab]").NotEmpty();
  command.Option("--greedy", options->n_greedy, "Print this many greedy tokens that follow the ids").TypeName("N");
  command.Footer(
      "Examples:\n"
      "  deltafold logits --model ./base --ids 1,17,42 --out logits.safetensors\n"
      "  deltafold logits --model ./base --variant ./delta --ids ids.json --path decode --greedy 16");
  command.OnRun([options] { return Report("logits", RunLogits(*options)); });
}

}  // namespace df::cli
