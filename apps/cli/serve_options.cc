#include "cli/serve_options.h"

#include "base/json.h"
#include "cli/pool_settings.h"

namespace df::cli {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold serve --model Qwen/Qwen3-0.6B --delta-modules sql=./sql-delta math=./math-delta\n"
    "  DELTAFOLD_API_KEY=secret deltafold serve --model ./base --lora-modules tone=./adapter --host 0.0.0.0\n"
    "Every flag can come from DELTAFOLD_ and its name in capitals (DELTAFOLD_MAX_MODEL_LEN); lists are separated by\n"
    "commas there. The routes and fields are in docs/api.md.";

void AddModelOptions(const Command& command, ServeOptions& options) {
  command.Option("--model", options.model, "Base model: a directory, or a hub id in the local Hugging Face cache")
      .Env("DELTAFOLD_MODEL")
      .Required();
  command
      .Option("--served-model-name", options.served_model_name,
              "Name of the base in requests (default: the hub id or the directory's name)")
      .Env("DELTAFOLD_SERVED_MODEL_NAME");
  command
      .Option("--delta-modules", options.delta_modules,
              "Variants: delta directories, several or repeated; an adapter's directory is taken as well")
      .TypeName("NAME=PATH");
  command
      .Option("--lora-modules", options.lora_modules,
              "Variants: PEFT LoRA directories, several or repeated; also as vLLM's JSON {\"name\", "
              "\"path\",\n\"base_model_name\"}, where the last may name a delta that the adapter sits on")
      .TypeName("NAME=PATH");
  command.Switch("--enable-lora", options.enable_lora, "Accepted for vLLM's sake: always on")
      .Env("DELTAFOLD_ENABLE_LORA");
  command
      .Option("--chat-template", options.chat_template,
              "Jinja file for the base and all variants without a template of their own (default: the model's)")
      .Env("DELTAFOLD_CHAT_TEMPLATE");
}

void AddStoreOptions(const Command& command, ServeOptions& options) {
  command
      .Bytes(
          "--variant-bytes", options.variant_bytes,
          "Memory for variants' weights, for example 2GB; those that do not fit are loaded when they are asked for.\n"
          "0 = half of what is free beside the base, more if the variants given need it")
      .Env("DELTAFOLD_VARIANT_BYTES")
      .TypeName("BYTES")
      .ShowDefault();
  command.Option("--pin", options.pinned, "Variants that stay resident and are waited for by /ready, repeatable")
      .TypeName("NAME");
  command.Option("--auto-pin", options.auto_pin, "The most requested variants that go last and never for idleness")
      .Env("DELTAFOLD_AUTO_PIN")
      .ShowDefault();
  command
      .Option("--variant-idle-timeout", options.variant_idle_timeout_s,
              "Seconds without a request after which a variant leaves the memory; 0 = never")
      .Env("DELTAFOLD_VARIANT_IDLE_TIMEOUT")
      .Range(0, 31'536'000)
      .ShowDefault();
  command
      .Option("--variant-wait-timeout", options.variant_wait_timeout_s,
              "Seconds that a request waits for its variant's weights before it is answered 503; the load goes on;\n"
              "0 = as long as it takes")
      .Env("DELTAFOLD_VARIANT_WAIT_TIMEOUT")
      .Range(0, 31'536'000)
      .ShowDefault();
  command.Option("--variant-load-threads", options.variant_load_threads, "Variants that are loaded at once")
      .Env("DELTAFOLD_VARIANT_LOAD_THREADS")
      .Range(1, 64)
      .ShowDefault();
  command
      .Bytes("--variant-load-rate", options.variant_load_rate,
             "Bytes a second that loads may pack while answers are generated; 0 = as fast as it goes")
      .Env("DELTAFOLD_VARIANT_LOAD_RATE")
      .TypeName("BYTES")
      .ShowDefault();
  command
      .Option("--variant-dir", options.variant_dir,
              "Directory whose sub-directories are variants; they come and go with them. Links may not lead out of it")
      .Env("DELTAFOLD_VARIANT_DIR");
  command
      .Option("--state-file", options.state_file,
              "File that keeps variants registered at run time over restarts (default: they are forgotten)")
      .Env("DELTAFOLD_STATE_FILE");
}

void AddPoolOptions(const Command& command, ServeOptions& options) {
  command
      .Bytes("--adapter-pool-bytes", options.adapter_pool_bytes,
             "Adapters loaded at run time share slots of so many bytes on disk: beyond, one is merged into the most\n"
             "similar slot and every name goes on being answered (docs/merging.md). 0 = each is itself")
      .Env("DELTAFOLD_ADAPTER_POOL_BYTES")
      .TypeName("BYTES")
      .ShowDefault();
  command
      .Choice<PoolPolicy>(
          "--adapter-pool-policy",
          {{"kmerge", PoolPolicy::kKMerge}, {"kmerge++", PoolPolicy::kKMergePlus}, {"bounded", PoolPolicy::kBounded}},
          options.adapter_pool.policy, "kmerge, kmerge++ or bounded [kmerge]")
      .Env("DELTAFOLD_ADAPTER_POOL_POLICY")
      .Value("NAME");
  command
      .Option("--adapter-pool-dir", options.adapter_pool_dir,
              "Directory of the pool, kept over restarts (default: the state file's name and .pool; without a state "
              "file\na temporary one, forgotten at the end)")
      .Env("DELTAFOLD_ADAPTER_POOL_DIR");
  command
      .Option("--adapter-pool-max-error", options.adapter_pool.max_error,
              "bounded: the most that an adapter's delta-W may be off, relative to its length [0.9]")
      .Env("DELTAFOLD_ADAPTER_POOL_MAX_ERROR")
      .Value("E");
  command
      .Option("--adapter-pool-threshold", options.adapter_pool_threshold,
              "kmerge++: a free slot is taken only where no slot is as similar as this [0.5]")
      .Env("DELTAFOLD_ADAPTER_POOL_THRESHOLD")
      .Value("S");
  command
      .Option("--adapter-pool-rank", options.adapter_pool_rank,
              "Of merged modules, at most [the larger of the two]; a larger one keeps more and takes more bytes")
      .Env("DELTAFOLD_ADAPTER_POOL_RANK")
      .Range(1, 65536)
      .Value("N");
  command
      .Option("--adapter-pool-dtype", options.adapter_pool_dtype,
              "Of merged slots: auto, f32, bf16 or f16 [auto: as their parts]")
      .Env("DELTAFOLD_ADAPTER_POOL_DTYPE")
      .OneOf(kPoolDTypes)
      .Value("DTYPE");
  command
      .Option("--adapter-pool-on-refusal", options.adapter_pool_on_refusal,
              "bounded: reject the new adapter, or evict the least used slot, whose names are then unknown [reject]")
      .Env("DELTAFOLD_ADAPTER_POOL_ON_REFUSAL")
      .OneOf({"reject", "evict"})
      .Value("WHAT");
}

void AddNetworkOptions(const Command& command, ServeOptions& options) {
  command.Option("--host", options.host, "Address to listen on; 0.0.0.0 for all").Env("DELTAFOLD_HOST").ShowDefault();
  command.Option("--port", options.port, "Port to listen on; 0 = any free one").Env("DELTAFOLD_PORT").ShowDefault();
  command.Option("--port-file", options.port_file, "File that gets the port once the server listens")
      .Env("DELTAFOLD_PORT_FILE");
  command
      .Option("--api-key", options.api_keys,
              "Key that /v1 asks for, repeatable (default: none). Other users see it in the list of processes:\n"
              "prefer DELTAFOLD_API_KEY")
      .TypeName("KEY");
  command
      .Option(
          "--admin-api-key", options.admin_api_keys,
          "Key for what changes the served variants, repeatable; it opens all of /v1 (default: the API key; without\n"
          "either this machine alone may). Prefer DELTAFOLD_ADMIN_API_KEY")
      .TypeName("KEY");
  command
      .Option("--variant-root", options.variant_root,
              "Directory that variants may be loaded from while the server runs (default: none, that is off)")
      .Env("DELTAFOLD_VARIANT_ROOT");
  command
      .Option("--allowed-hosts", options.allowed_hosts,
              "Names that clients may call this server by to change variants, besides addresses and localhost")
      .TypeName("HOST");
  command
      .Option("--shutdown-timeout", options.shutdown_timeout_s,
              "Seconds that running answers have after SIGTERM or Ctrl-C; a second signal ends at once")
      .Env("DELTAFOLD_SHUTDOWN_TIMEOUT")
      .Range(0, 86400)
      .ShowDefault();
  command.Option("--log-level", options.log_level, "debug (probes too), info (a line a request), warning or error")
      .Env("DELTAFOLD_LOG_LEVEL")
      .OneOf({"debug", "info", "warning", "error"})
      .ShowDefault();
}

void AddEngineOptions(const Command& command, ServeOptions& options) {
  command.Option("--max-model-len", options.max_model_len, "Tokens of prompt and answer together; 0 = the model's own")
      .Env("DELTAFOLD_MAX_MODEL_LEN")
      .ShowDefault();
  command.Option("--max-num-seqs", options.max_num_seqs, "Sequences that run at once")
      .Env("DELTAFOLD_MAX_NUM_SEQS")
      .ShowDefault();
  command.Option("--max-num-batched-tokens", options.max_num_batched_tokens, "Tokens a step")
      .Env("DELTAFOLD_MAX_NUM_BATCHED_TOKENS")
      .ShowDefault();
  command
      .Option("--max-queued-requests", options.max_queued_requests,
              "Requests that wait for one variant, the base being one; beyond: 429")
      .Env("DELTAFOLD_MAX_QUEUED_REQUESTS")
      .ShowDefault();
  command
      .Option("--max-logprobs", options.max_logprobs,
              "Likeliest tokens that a request may ask for beside each of its own (logprobs, top_logprobs)")
      .Env("DELTAFOLD_MAX_LOGPROBS")
      .Range(0, 1000)
      .ShowDefault();
  command.Option("--kv-cache-dtype", options.kv_cache_dtype, "auto (bf16 for bf16 checkpoints, else f32), bf16 or f32")
      .Env("DELTAFOLD_KV_CACHE_DTYPE")
      .ShowDefault();
  command
      .Bytes("--kv-cache-bytes", options.kv_cache_bytes,
             "Memory of the KV cache, for example 4GB; 0 = a share of what is free")
      .Env("DELTAFOLD_KV_CACHE_BYTES")
      .TypeName("BYTES")
      .ShowDefault();
  command
      .Switch("--enable-prefix-caching,!--no-enable-prefix-caching", options.enable_prefix_caching,
              "Prompts that begin like an earlier one of the same variant and cache_salt are computed from where they\n"
              "differ (default: on)")
      .Env("DELTAFOLD_ENABLE_PREFIX_CACHING");
  command.Option("--threads", options.n_threads, "Threads for kernels; 0 = all usable CPUs")
      .Env("DELTAFOLD_THREADS")
      .ShowDefault();
  AddKernelOptions(command, options.kernels);
  AddWeightsOption(command, options.weights);
}

}  // namespace

void AddServeOptions(const Command& command, ServeOptions& options) {
  AddModelOptions(command, options);
  AddStoreOptions(command, options);
  AddPoolOptions(command, options);
  AddNetworkOptions(command, options);
  AddEngineOptions(command, options);
  command.Footer(kExamples);
}

std::vector<std::string> SplitAtCommas(std::string_view list) {
  std::vector<std::string> parts(1);
  size_t depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    const bool is_outside = depth == 0 && !is_quoted;
    if (is_outside && c == ',') {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
    if (depth > 0 && c == '"') is_quoted = !is_quoted;
    if (is_quoted && c == '\\' && i + 1 < list.size()) parts.back() += list[++i];
    if (!is_quoted && c == '{' && (depth > 0 || parts.back().size() == 1)) ++depth;
    if (!is_quoted && c == '}' && depth > 0) --depth;
  }
  std::erase(parts, "");
  return parts;
}

Result<ModuleArgument> ParseModule(const std::string& argument) {
  if (argument.starts_with("{")) {
    DF_ASSIGN_OR_RETURN(const Json json, ParseJson(argument));
    ModuleArgument module;
    for (const auto& [key, value] : json.items()) {
      if (key == "name" || key == "path" || key == "base_model_name") continue;
      return InvalidArgument("unknown key \"" + key + "\": \"name\", \"path\" and \"base_model_name\" are known");
    }
    DF_ASSIGN_OR_RETURN(module.name, JsonString(json, "name"));
    DF_ASSIGN_OR_RETURN(module.path, JsonString(json, "path"));
    DF_ASSIGN_OR_RETURN(module.base, JsonStringOr(json, "base_model_name", ""));
    return module;
  }
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == argument.size()) {
    return InvalidArgument("a variant is given as NAME=PATH or as {\"name\": NAME, \"path\": PATH}, each by itself");
  }
  return ModuleArgument{argument.substr(0, equals), argument.substr(equals + 1)};
}

bool IsLoopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace df::cli
