// Any bytes as the two files of an adapter directory: adapter_config.json, a NUL, adapter_model.safetensors. What opens
// and fits the modules of a base can be measured, digested and read in full.
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "base/check.h"
#include "format/peft_adapter.h"
#include "model/bind.h"
#include "model/weights.h"

namespace {

float sink;  // keeps the reads

// The base of tests/golden/lora/llama3-gqa, whose adapters are the seeds.
df::BaseWeights MadeBase() {
  df::BaseWeights base;
  base.config.n_layers = 2;
  base.config.n_heads = 4;
  base.config.n_kv_heads = 2;
  base.config.head_dim = 16;
  base.config.d_model = 64;
  base.config.d_ff = 128;
  base.config.vocab = 256;
  return base;
}

// Removed with the process.
const std::string& Directory() {
  static const struct Made {
    Made() { DF_CHECK(mkdtemp(path.data()) != nullptr); }
    ~Made() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path = std::filesystem::temp_directory_path() / "adapter-dir-fuzz-XXXXXX";
  } made;
  return made.path;
}

void Write(const std::string& name, std::string_view content) {
  std::ofstream file(Directory() + "/" + name, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
}

void ReadAll(const df::TensorView& view) {
  for (size_t i = 0; i < view.elements(); ++i) sink += df::FloatAt(view, i);
}

void ReadAll(const df::ModuleChange& change, const df::BaseModule& module) {
  const df::LinearDelta& delta = change.weight;
  const bool is_norm = module.kind == df::ModuleKind::kNorm;
  const bool is_table = module.kind == df::ModuleKind::kEmbedding || module.kind == df::ModuleKind::kHead;
  if (!is_norm) DF_CHECK(delta.d_in == module.d_in);
  if (!is_norm && !is_table) DF_CHECK(delta.d_out == module.d_out);
  for (const df::LowRank& pair : delta.low_rank) {
    DF_CHECK(pair.a.shape[1] == delta.d_in && pair.b.shape[0] == delta.d_out && pair.a.shape[0] == pair.b.shape[1]);
    ReadAll(pair.a);
    ReadAll(pair.b);
  }
  if (delta.rows) {
    DF_CHECK(delta.rows->values.elements() == delta.rows->index.size() * delta.d_in);
    for (const int32_t row : delta.rows->index) DF_CHECK(row >= 0 && static_cast<size_t>(row) < delta.d_out);
    ReadAll(delta.rows->values);
  }
  if (delta.raw && !is_norm) DF_CHECK(delta.raw->elements() == delta.d_out * delta.d_in);
  if (delta.magnitude) DF_CHECK(delta.magnitude->elements() == delta.d_out);
  for (const auto* view : {&delta.raw, &delta.magnitude, &delta.bias, &change.added_bias}) {
    if (*view) ReadAll(**view);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const df::BaseWeights base = MadeBase();
  static const std::vector<df::BaseModule> modules = df::ListModules(base.config);
  const std::string_view input = df::AsText({data, size});
  const size_t end = input.find('\0');
  if (end == std::string_view::npos) return 0;
  Write("adapter_config.json", input.substr(0, end));
  Write("adapter_model.safetensors", input.substr(end + 1));
  const auto adapter = df::PeftAdapter::Open(Directory());
  if (!adapter.ok()) return 0;
  DF_CHECK((*adapter)->Digest().ok());
  const auto changes = (*adapter)->Bind(modules);
  const auto measured = df::MeasureAdapter(base, **adapter, nullptr);
  DF_CHECK(measured.ok() == changes.ok());
  if (!changes.ok()) return 0;
  for (const auto& [path, change] : changes->modules) {
    const auto module = std::find_if(modules.begin(), modules.end(), [&](const auto& one) { return one.path == path; });
    DF_CHECK(module != modules.end());
    ReadAll(change, *module);
  }
  DF_CHECK(measured->most_bytes > 0 && measured->vocab > 0);
  return 0;
}
