#include <signal.h>
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include "base/atomic_file.h"
#include "base/heap.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/model_argument.h"
#include "cli/serve_options.h"
#include "cli/table.h"
#include "engine/engine.h"
#include "engine/sizing.h"
#include "kernels/attention.h"
#include "metrics/metrics.h"
#include "server/server.h"
#include "store/live_store.h"
#include "text/chat_template.h"

namespace df::cli {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

struct ServedFamily {
  LoadedBase base;
  std::unique_ptr<LiveStore> store;
};

sigset_t BlockEndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Whether one of the signals has come; it is taken.
bool EndWanted(const sigset_t& signals) {
  constexpr timespec kNow = {};
  return sigtimedwait(&signals, nullptr, &kNow) > 0;
}

// Whatever a line repeats of requests and files, a terminal does not obey it.
class EscapingSink final : public spdlog::sinks::stderr_color_sink_mt {
 public:
  void log(const spdlog::details::log_msg& line) override {
    const std::string text = Escaped({line.payload.data(), line.payload.size()});
    spdlog::details::log_msg escaped = line;
    escaped.payload = text;
    spdlog::sinks::stderr_color_sink_mt::log(escaped);
  }
};

// The I/O thread must not wait for a slow terminal: a thread writes, and the oldest lines go when it cannot keep up.
struct Log {
  explicit Log(const std::string& level)
      : writer(std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1, [] { BlockEndingSignals(); })),
        logger(std::make_shared<spdlog::async_logger>("deltafold", std::make_shared<EscapingSink>(), writer,
                                                      spdlog::async_overflow_policy::overrun_oldest)) {
    logger->set_level(spdlog::level::from_str(level));
    logger->flush_on(spdlog::level::info);
  }
  static constexpr size_t kQueuedLines = 8192;
  std::shared_ptr<spdlog::details::thread_pool> writer;  // writes what is queued before it goes
  std::shared_ptr<spdlog::async_logger> logger;
};

// What the environment gives where the command line is silent; CLI11's own variables know no lists.
// Whether it was.
bool TakeListFromEnvironment(const char* variable, std::vector<std::string>& list) {
  const char* value = std::getenv(variable);
  if (value == nullptr || !list.empty()) return false;
  list = SplitAtCommas(value);
  return true;
}

void TakeModulesFromEnvironment(const char* variable, std::vector<std::string>& modules, std::string& from) {
  if (TakeListFromEnvironment(variable, modules)) from = variable;
}

// Before anything is loaded, which may take minutes.
Result<std::vector<ModuleArgument>> ParseModules(const ServeOptions& options) {
  std::vector<ModuleArgument> parsed;
  for (const auto& [from, modules] : {std::pair(&options.delta_modules_from, &options.delta_modules),
                                      std::pair(&options.lora_modules_from, &options.lora_modules)}) {
    for (const std::string& argument : *modules) {
      Result<ModuleArgument> module = ParseModule(argument);
      if (!module.ok())
        return InvalidArgument(*from + " " + Printable(argument.substr(0, 200)) + ": " + module.status().message());
      parsed.push_back(*std::move(module));
    }
  }
  return parsed;
}

// The base with another chat template; variants without their own take it over when they are loaded.
Status ReplaceTemplate(const std::string& path, LoadedBase& base) {
  auto variant = std::make_shared<Variant>(*base.variant);
  auto text = std::make_shared<ModelText>(*variant->text);
  DF_ASSIGN_OR_RETURN(std::string source, ReadFileBounded(path, kMaxTemplateBytes));
  Json special = Json::object();
  const auto name = [&](const char* key, const std::optional<int32_t>& id) {
    if (!id) return;
    const Result<std::string> token = text->tokenizer->TokenText(*id);
    if (token.ok()) special[key] = *token;
  };
  name("bos_token", text->bos_id);
  name("eos_token", text->eos_id);
  name("pad_token", text->pad_id);
  auto compiled =
      ChatTemplate::Compile({.templates = {{"default", std::move(source)}}, .special_tokens = std::move(special)});
  if (!compiled.ok()) return compiled.status().Annotate(path);
  text->chat_template = std::move(*compiled);
  variant->text = std::move(text);
  base.variant = std::move(variant);
  return Status::Ok();
}

// Half of what is free for variants, up to four fifths where those given need it: the KV cache takes half of the rest.
// Unknown (0) free memory bounds nothing.
LiveStoreOptions StoreOptionsFor(const ServeOptions& options, uint64_t free_bytes) {
  LiveStoreOptions store = {.budget_bytes = options.variant_bytes,
                            .n_load_threads = options.variant_load_threads,
                            .load_bytes_per_second = options.variant_load_rate,
                            .auto_pin = options.auto_pin,
                            .idle_timeout_s = options.variant_idle_timeout_s,
                            .state_file = options.state_file,
                            .variant_dir = options.variant_dir};
  if (options.adapter_pool_bytes > 0) {
    store.pool = PoolSettingsOf(options);
    store.pool_directory = PoolDirectoryOf(options);
  }
  if (options.variant_bytes != 0) return store;
  store.budget_bytes = free_bytes == 0 ? UINT64_MAX : free_bytes / 2;
  store.raised_bytes = free_bytes / 5 * 4;
  return store;
}

// Names that only the command line could give, and does not.
Status CheckPins(const ServeOptions& options, const std::vector<GivenVariant>& given, const std::string& base_name) {
  if (!options.state_file.empty() || !options.variant_dir.empty()) return Status::Ok();
  for (const std::string& name : options.pinned) {
    const bool is_given = std::ranges::any_of(given, [&](const GivenVariant& one) { return one.name == name; });
    if (is_given || name == base_name) continue;
    return InvalidArgument("--pin " + Printable(name) + ": no variant of that name is given, nor a --state-file or " +
                           "--variant-dir that it may come from");
  }
  return Status::Ok();
}

Result<ServedFamily> LoadServedFamily(const ServeOptions& options, const std::vector<ModuleArgument>& modules,
                                      const Log& log) {
  KernelContext context(options.n_threads == 0 ? UsableCpus() : options.n_threads);
  ServedFamily family;
  DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(options.model));
  const std::string name = options.served_model_name.empty() ? model.name : options.served_model_name;
  DF_ASSIGN_OR_RETURN(family.base,
                      FromFiles(LoadBaseVariant(context, name, options.model, {.memory = options.weights})));
  if (!options.chat_template.empty()) {
    DF_RETURN_IF_ERROR(FromFiles(ReplaceTemplate(options.chat_template, family.base)));
  }
  LiveStoreOptions store_options = StoreOptionsFor(options, AvailableMemoryBytes());
  store_options.readers = context.readers;  // the engine has as many threads
  store_options.warn = [logger = log.logger](const std::string& line) { logger->warn("{}", line); };
  DF_ASSIGN_OR_RETURN(family.store, FromFiles(LiveStore::Create(family.base, std::move(store_options))));
  std::vector<GivenVariant> given;
  for (const ModuleArgument& module : modules) {
    const bool is_on_base = module.base == name || module.base == options.model;
    given.push_back(
        {.name = module.name, .directory = module.path, .parent = is_on_base ? std::string() : module.base});
  }
  DF_RETURN_IF_ERROR(CheckPins(options, given, name));
  DF_RETURN_IF_ERROR(FromFiles(family.store->AddGiven(given, options.pinned)));
  return family;
}

Result<std::unique_ptr<Engine>> StartServedEngine(const ServeOptions& options, const ServedFamily& family) {
  DF_ASSIGN_OR_RETURN(const DType kv_dtype, ParseKvDtype(options.kv_cache_dtype, *family.base.weights));
  const StoreStats store = family.store->Stats();
  const bool is_bounded = store.budget_bytes != UINT64_MAX;
  return Engine::Create(family.base.weights,
                        {.n_threads = options.n_threads,
                         .max_num_seqs = options.max_num_seqs,
                         .max_num_batched_tokens = options.max_num_batched_tokens,
                         .max_model_len = options.max_model_len,
                         .max_queued_requests = options.max_queued_requests,
                         .longest_weights_wait_us = options.variant_wait_timeout_s * 1'000'000,
                         .kv_dtype = kv_dtype,
                         .kernels = options.kernels,
                         .max_logprobs = options.max_logprobs,
                         .enable_prefix_caching = options.enable_prefix_caching,
                         .kv_cache_bytes = options.kv_cache_bytes,
                         .promised_bytes = is_bounded ? store.budget_bytes - store.reserved_bytes : 0});
}

void PrintSummary(const ServedFamily& family, const Engine& engine, const std::string& address) {
  const auto variants = family.store->List();
  const StoreStats store = family.store->Stats();
  const uint64_t copy_bytes = variants.front()->resident_bytes;
  Table table({{"served as"}, {"kind"}, {"bytes", Align::kRight}, {"share of a copy", Align::kRight}});
  for (const auto& variant : variants) {
    const double share = static_cast<double>(variant->resident_bytes) / static_cast<double>(copy_bytes);
    table.AddRow({variant->name, std::string(variant->KindName()), FormatBytes(variant->resident_bytes),
                  variant->IsBase() ? "" : FormatPercent(share)});
  }
  const EngineStats stats = engine.Stats();
  const uint64_t mapped_bytes = engine.base().mapped_bytes;
  std::cout << table.Render() << "weights    " << FormatBytes(copy_bytes + store.resident_bytes)
            << " for all, separate copies would take " << FormatBytes(copy_bytes * variants.size())
            << (mapped_bytes == 0 ? "" : "; " + FormatBytes(mapped_bytes) + " of them are mapped files") << "\n"
            << "variants   " << FormatBytes(store.resident_bytes) << " resident of "
            << (store.budget_bytes == UINT64_MAX ? "any number of bytes" : FormatBytes(store.budget_bytes)) << "\n"
            << "KV cache   " << FormatBytes(stats.kv_bytes) << " for "
            << stats.kv_blocks_total * kernels::kKvBlockTokens << " tokens, context " << engine.options().max_model_len
            << ", " << engine.options().max_num_seqs << " sequences at once, " << engine.options().n_threads
            << " threads\n"
            << "listening  " << address << std::endl;
}

std::string LogLine(const server::RequestLog& log) {
  std::string line = log.request_id + " " + log.method + " " + log.path + " " + std::to_string(log.status);
  if (!log.subject.empty()) line += " variant=" + log.subject;
  if (!log.variant.empty()) {
    line += " model=" + log.variant + " prompt=" + std::to_string(log.prompt_tokens) +
            " completion=" + std::to_string(log.completion_tokens) + " finish=" + log.finish;
  }
  line += " " + FormatFixed(log.seconds * 1e3, 1) + " ms";
  if (!log.cause.empty()) line += " cause: " + log.cause;
  return line;
}

// Every connection is a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Until the server has ended. The first signal starts the draining, the second ends the process where it stands.
void WaitForEnd(server::Server& server, const sigset_t& signals, const ServeOptions& options, spdlog::logger& logger) {
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 100'000'000};
  bool draining = false;
  while (!server.WaitEnded(0)) {
    const int signal_number = sigtimedwait(&signals, nullptr, &kPause);
    if (signal_number < 0) continue;
    if (draining) std::_Exit(128 + signal_number);
    draining = true;
    logger.info("shutting down: running answers have {} s, a second signal ends at once", options.shutdown_timeout_s);
    server.Shutdown(options.shutdown_timeout_s * 1000);
  }
}

Status CheckKeys(const std::vector<std::string>& keys, const char* variable) {
  // A secret that was not filled in must not leave the server open.
  if (std::getenv(variable) != nullptr && keys.empty()) {
    return InvalidArgument(std::string(variable) + " is set and holds no key: unset it or put one in");
  }
  for (const std::string& key : keys) {
    if (key.empty()) return InvalidArgument("an API key must not be empty");
    for (const char c : key) {
      if (static_cast<unsigned char>(c) <= ' ' || c == 0x7F) {
        return InvalidArgument("an API key must not hold spaces or control characters: no client can send them");
      }
    }
  }
  return Status::Ok();
}

Status CheckOptions(const ServeOptions& options) {
  DF_RETURN_IF_ERROR(CheckKernelOptions(options.kernels));
  DF_RETURN_IF_ERROR(CheckPoolOptions(options));
  DF_RETURN_IF_ERROR(CheckKeys(options.api_keys, "DELTAFOLD_API_KEY"));
  DF_RETURN_IF_ERROR(CheckKeys(options.admin_api_keys, "DELTAFOLD_ADMIN_API_KEY"));
  if (options.host.empty()) return InvalidArgument("host must not be empty: 127.0.0.1, or 0.0.0.0 for all addresses");
  if (options.served_model_name.empty()) return Status::Ok();  // the model's
  const Status name = CheckServedName(options.served_model_name);
  return name.ok() ? name : name.Annotate("served-model-name");
}

server::ServerOptions ToServerOptions(const ServeOptions& options, spdlog::logger& logger) {
  server::ServerOptions result;
  result.keys = {.api = options.api_keys, .admin = options.admin_api_keys};
  result.allowed_hosts = options.allowed_hosts;
  result.version = DELTAFOLD_VERSION;
  result.log = [&logger](const server::RequestLog& log) {
    logger.log(log.probe ? spdlog::level::debug : spdlog::level::info, LogLine(log));
  };
  return result;
}

Result<std::optional<server::VariantRoot>> OpenRoot(const std::string& directory) {
  if (directory.empty()) return std::optional<server::VariantRoot>();
  DF_ASSIGN_OR_RETURN(server::VariantRoot root, server::VariantRoot::Open(directory));
  return std::optional(std::move(root));
}

// The store tells the engine of news and asks it whether it is busy, as long as both are there.
class StoreLink {
 public:
  StoreLink(LiveStore& store, Engine& engine) : store_(store) {
    store_.SetBusyProbe([&engine] { return engine.Stats().n_running > 0; });
    store_.SetWaker([&engine] { engine.Wake(); });
  }
  ~StoreLink() {
    store_.SetWaker({});
    store_.SetBusyProbe({});
  }
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;

 private:
  LiveStore& store_;
};

void WarnOfOpenDoors(const ServeOptions& options, spdlog::logger& logger) {
  if (!IsLoopback(options.host) && options.api_keys.empty()) {
    logger.warn("ANYONE who reaches {} can use this server: set --api-key or listen on 127.0.0.1", options.host);
  }
  if (!options.variant_root.empty() && options.api_keys.empty() && options.admin_api_keys.empty()) {
    logger.warn(
        "every program of this machine can load and unload variants, and everybody behind a proxy here that does not "
        "say so: set --admin-api-key");
  }
}

Status Serve(ServeOptions options) {
  TakeModulesFromEnvironment("DELTAFOLD_DELTA_MODULES", options.delta_modules, options.delta_modules_from);
  TakeModulesFromEnvironment("DELTAFOLD_LORA_MODULES", options.lora_modules, options.lora_modules_from);
  TakeListFromEnvironment("DELTAFOLD_PIN", options.pinned);
  TakeListFromEnvironment("DELTAFOLD_API_KEY", options.api_keys);
  TakeListFromEnvironment("DELTAFOLD_ADMIN_API_KEY", options.admin_api_keys);
  TakeListFromEnvironment("DELTAFOLD_ALLOWED_HOSTS", options.allowed_hosts);
  DF_RETURN_IF_ERROR(CheckOptions(options));
  DF_ASSIGN_OR_RETURN(const std::vector<ModuleArgument> modules, ParseModules(options));
  KeepLittleFreeMemory();
  DF_ASSIGN_OR_RETURN(std::optional<server::VariantRoot> root, OpenRoot(options.variant_root));
  // Before anything is loaded: loading may take minutes, a taken port is known at once.
  DF_ASSIGN_OR_RETURN(server::BoundSocket socket, server::BoundSocket::Bind(options.host, options.port));
  RaiseDescriptorLimit();
  const Log log(options.log_level);
  spdlog::logger& logger = *log.logger;
  DF_ASSIGN_OR_RETURN(const ServedFamily family, LoadServedFamily(options, modules, log));

  const sigset_t signals = BlockEndingSignals();  // from here on: every thread started below inherits it
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, StartServedEngine(options, family));
  const StoreLink link(*family.store, *engine);
  RestoreHooks hooks = {.gives_up = [&signals] { return EndWanted(signals); }};
  if (root) hooks.resolve = [&root](const std::string& directory) { return root->Resolve(directory); };
  if (!family.store->RestoreAndWatch(hooks)) {
    logger.info("stopped while the variants of before were restored");
    return Status::Ok();
  }
  ServerMetrics metrics(family.store->base_name());
  const auto service = server::MakeTextService(*engine, *family.store);
  server::ServerOptions server_options = ToServerOptions(options, logger);
  server_options.variant_root = std::move(root);
  DF_ASSIGN_OR_RETURN(const auto server, server::Server::Start(std::move(socket), std::move(server_options),
                                                               {.service = *service, .metrics = metrics}));
  const bool v6 = options.host.find(':') != std::string::npos;
  PrintSummary(family, *engine,
               "http://" + (v6 ? "[" + options.host + "]" : options.host) + ":" + std::to_string(server->port()));
  WarnOfOpenDoors(options, logger);
  if (const std::string unused = WhatAnUnusedPoolHolds(options); !unused.empty()) logger.warn("{}", unused);
  // Last: whoever waits for the file finds everything said.
  if (!options.port_file.empty()) {
    DF_RETURN_IF_ERROR(WriteFileAtomically(options.port_file, std::to_string(server->port()) + "\n"));
  }
  WaitForEnd(*server, signals, options, logger);
  logger.info("stopped");
  return Status::Ok();
}

}  // namespace

void AddServe(const Command& app) {
  const Command command = app.Sub("serve", "Serve a base and its variants over OpenAI's HTTP interface");
  const auto options = std::make_shared<ServeOptions>();
  AddServeOptions(command, *options);
  command.OnRun([options] { return Report("serve", Serve(*options)); });
}

}  // namespace df::cli
