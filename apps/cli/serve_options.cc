#include "cli/serve_options.h"

#include "base/json.h"
#include "cli/number.h"

namespace df::cli {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold serve --model Qwen/Qwen3-0.6B --delta-modules sql=./sql-delta math=./math-delta\n"
    "  DELTAFOLD_API_KEY=secret deltafold serve --model ./base --lora-modules tone=./adapter --host 0.0.0.0\n"
    "Every flag can come from DELTAFOLD_ and its name in capitals (DELTAFOLD_MAX_MODEL_LEN); lists are separated by\n"
    "commas there. The routes and fields are in docs/api.md.";

void AddModelOptions(CLI::App& command, ServeOptions& options) {
  command.add_option("--model", options.model, "Base model: a directory, or a hub id in the local Hugging Face cache")
      ->envname("DELTAFOLD_MODEL")
      ->required();
  command
      .add_option("--served-model-name", options.served_model_name,
                  "Name of the base in requests (default: the hub id or the directory's name)")
      ->envname("DELTAFOLD_SERVED_MODEL_NAME");
  command
      .add_option("--delta-modules", options.delta_modules,
                  "Variants: delta directories, several or repeated; an adapter's directory is taken as well")
      ->type_name("NAME=PATH");
  command
      .add_option("--lora-modules", options.lora_modules,
                  "Variants: PEFT LoRA directories, several or repeated; also as vLLM's JSON {\"name\", \"path\"}")
      ->type_name("NAME=PATH");
  command.add_flag("--enable-lora", options.enable_lora, "Accepted for vLLM's sake: always on");
  command
      .add_option("--chat-template", options.chat_template,
                  "Jinja file for the base and all variants without a template of their own (default: the model's)")
      ->envname("DELTAFOLD_CHAT_TEMPLATE");
}

void AddNetworkOptions(CLI::App& command, ServeOptions& options) {
  command.add_option("--host", options.host, "Address to listen on; 0.0.0.0 for all")
      ->envname("DELTAFOLD_HOST")
      ->capture_default_str();
  AddCount(command, "--port", options.port, "Port to listen on; 0 = any free one")
      ->envname("DELTAFOLD_PORT")
      ->capture_default_str();
  command.add_option("--port-file", options.port_file, "File that gets the port once the server listens")
      ->envname("DELTAFOLD_PORT_FILE");
  command
      .add_option("--api-key", options.api_keys,
                  "Key that /v1 asks for, repeatable (default: none). Other users see it in the list of processes:\n"
                  "prefer DELTAFOLD_API_KEY")
      ->type_name("KEY");
  command
      .add_option("--shutdown-timeout", options.shutdown_timeout_s,
                  "Seconds that running answers have after SIGTERM or Ctrl-C; a second signal ends at once")
      ->envname("DELTAFOLD_SHUTDOWN_TIMEOUT")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command.add_option("--log-level", options.log_level, "debug (probes too), info (a line a request), warning or error")
      ->envname("DELTAFOLD_LOG_LEVEL")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

void AddEngineOptions(CLI::App& command, ServeOptions& options) {
  AddCount(command, "--max-model-len", options.max_model_len,
           "Tokens of prompt and answer together; 0 = the model's own")
      ->envname("DELTAFOLD_MAX_MODEL_LEN")
      ->capture_default_str();
  AddCount(command, "--max-num-seqs", options.max_num_seqs, "Sequences that run at once")
      ->envname("DELTAFOLD_MAX_NUM_SEQS")
      ->capture_default_str();
  AddCount(command, "--max-num-batched-tokens", options.max_num_batched_tokens, "Tokens a step")
      ->envname("DELTAFOLD_MAX_NUM_BATCHED_TOKENS")
      ->capture_default_str();
  AddCount(command, "--max-queued-requests", options.max_queued_requests, "Waiting requests; beyond: 429")
      ->envname("DELTAFOLD_MAX_QUEUED_REQUESTS")
      ->capture_default_str();
  command
      .add_option("--kv-cache-dtype", options.kv_cache_dtype, "auto (bf16 for bf16 checkpoints, else f32), bf16 or f32")
      ->envname("DELTAFOLD_KV_CACHE_DTYPE")
      ->capture_default_str();
  AddByteSize(command, "--kv-cache-bytes", options.kv_cache_bytes,
              "Memory of the KV cache, for example 4GB; 0 = a share of what is free")
      ->envname("DELTAFOLD_KV_CACHE_BYTES")
      ->type_name("BYTES")
      ->capture_default_str();
  AddCount(command, "--threads", options.n_threads, "Threads for kernels; 0 = all usable CPUs")
      ->envname("DELTAFOLD_THREADS")
      ->capture_default_str();
  command.add_flag("--batch-invariant", options.batch_invariant,
                   "Answers do not depend on what else runs. Accepted for its name: always on in this version");
}

}  // namespace

void AddServeOptions(CLI::App& command, ServeOptions& options) {
  AddModelOptions(command, options);
  AddNetworkOptions(command, options);
  AddEngineOptions(command, options);
  command.footer(kExamples);
}

Result<ModuleArgument> ParseModule(const std::string& argument) {
  if (argument.starts_with("{")) {
    DF_ASSIGN_OR_RETURN(const Json json, ParseJson(argument));
    ModuleArgument module;
    DF_ASSIGN_OR_RETURN(module.name, JsonString(json, "name"));
    DF_ASSIGN_OR_RETURN(module.path, JsonString(json, "path"));
    return module;
  }
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == argument.size()) {
    return InvalidArgument("a variant is given as NAME=PATH, got \"" + argument + "\"");
  }
  return ModuleArgument{argument.substr(0, equals), argument.substr(equals + 1)};
}

bool IsLoopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace df::cli
