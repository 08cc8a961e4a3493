#include "tools/plan.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "base/json.h"
#include "cli/command.h"
#include "cli/model_argument.h"
#include "cli/table.h"
#include "format/model_config.h"
#include "tools/synthetic_shape.h"

namespace df::cli {
namespace {

// A model given by its sizes; 0 = not given.
struct Sizes {
  uint64_t d_model = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, d_ff = 0, vocab = 0;
  bool tied = false;
};

struct Arguments {
  std::string model;
  Sizes sizes;
  std::vector<std::string> codes, media;
  std::string kv_cache_dtype = "bf16", calibrate = "self";
  tools::PlanOptions options;
  bool json = false;
};

std::string KnownShapes() {
  std::string known;
  for (const std::string& name : tools::SyntheticShapeNames()) known += (known.empty() ? "" : ", ") + name;
  return known;
}

constexpr char kExamples[] =
    "Codes are those of compress: scalar, row, column, rank1, planes2 to planes8, lowrank:R, SIGNS+lowrank:R, int8, "
    "raw,\n"
    "  and lora:R (an adapter), Xbpw (X bits a weight, everything stored counted), auto (1.35bpw).\n"
    "Examples:\n"
    "  deltafold plan Qwen/Qwen3-0.6B --variants 14 --memory 8GB\n"
    "  deltafold plan llama-2-70b --variants 14 --code scalar,rank1 --memory 320GB --context 8192 --sequences 16\n"
    "  deltafold plan ./my-model/config.json --embeddings same --medium nfs=0.4 --json\n"
    "  deltafold plan --d-model 4096 --layers 32 --heads 32 --kv-heads 8 --d-ff 14336 --vocab 128256\n"
    "Nothing is loaded: a plan needs the shape alone. Every figure has its formula: below the tables for the first "
    "code,\n"
    "with --json for each. GB are 10^9 bytes in what is printed; GB of --memory and --reserve are 1024^3.";

// A Llama of these sizes.
Result<ModelConfig> ConfigOf(const Sizes& sizes) {
  const std::pair<const char*, uint64_t> needed[] = {{"--d-model", sizes.d_model},
                                                     {"--layers", sizes.n_layers},
                                                     {"--heads", sizes.n_heads},
                                                     {"--d-ff", sizes.d_ff},
                                                     {"--vocab", sizes.vocab}};
  for (const auto& [flag, value] : needed) {
    if (value == 0) {
      return InvalidArgument("give a model, or --d-model, --layers, --heads, --d-ff and --vocab: " + std::string(flag) +
                             " is missing");
    }
  }
  Json json = {{"model_type", "llama"},
               {"hidden_size", sizes.d_model},
               {"num_hidden_layers", sizes.n_layers},
               {"num_attention_heads", sizes.n_heads},
               {"num_key_value_heads", sizes.n_kv_heads == 0 ? sizes.n_heads : sizes.n_kv_heads},
               {"intermediate_size", sizes.d_ff},
               {"vocab_size", sizes.vocab},
               {"tie_word_embeddings", sizes.tied}};
  if (sizes.head_dim != 0) json["head_dim"] = sizes.head_dim;
  return ParseModelConfig(json);
}

Result<ModelConfig> ConfigOf(const Arguments& arguments) {
  if (arguments.model.empty()) return ConfigOf(arguments.sizes);
  if (arguments.sizes.d_model != 0) return InvalidArgument("a model and --d-model exclude each other");
  if (const auto shape = tools::SyntheticConfig(arguments.model); shape.ok()) return ParseModelConfig(*shape);
  std::error_code ignored;  // a name that cannot be a path
  if (std::filesystem::is_regular_file(arguments.model, ignored)) {
    DF_ASSIGN_OR_RETURN(const Json json, FromFiles(ReadJsonFile(arguments.model)));
    Result<ModelConfig> config = ParseModelConfig(json);
    if (!config.ok()) return FromFiles(config.status()).Annotate(arguments.model);
    return config;
  }
  const auto model = ResolveModel(arguments.model);
  if (!model.ok()) return FromFiles(model.status()).Annotate("neither a shape (" + KnownShapes() + ") nor a model");
  return FromFiles(LoadModelConfig(model->directory));
}

// NAME=GB/s.
Result<tools::Medium> MediumOf(const std::string& text) {
  const size_t equals = text.find('=');
  double speed = 0;
  if (equals != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + equals + 1, end, speed, std::chars_format::fixed);
    if (error != std::errc() || rest != end) speed = 0;
  }
  if (!(speed > 0)) return InvalidArgument("--medium must be NAME=GB/s, as in nfs=0.4, got \"" + text + "\"");
  return tools::Medium{text.substr(0, equals), speed * 1e9, "given"};
}

std::string Shown(const tools::Figure& figure) {
  switch (figure.unit) {
    case tools::PlanUnit::kBytes: return FormatBytes(static_cast<uint64_t>(figure.value));
    case tools::PlanUnit::kTokens:
    case tools::PlanUnit::kCount: return FormatFixed(figure.value, 0);
    case tools::PlanUnit::kSeconds: return FormatFixed(figure.value, figure.value < 1 ? 3 : 1) + " s";
    case tools::PlanUnit::kBits: return FormatFixed(figure.value, 3);
    case tools::PlanUnit::kRatio: break;
  }
  if (figure.name == "saved_share") return FormatPercent(figure.value);
  return figure.name == "times_smaller" ? FormatRatio(figure.value) : FormatFixed(figure.value, 4);
}

struct FigureColumn {
  std::string figure, title;
};

// A line a row; "-" where a row has no such figure.
void PrintRows(const std::string& title, const std::string& first, const std::vector<tools::PlanRow>& rows,
               const std::vector<FigureColumn>& columns) {
  std::vector<Column> heads = {{first}};
  for (const FigureColumn& column : columns) heads.push_back({column.title, Align::kRight});
  Table table(heads);
  for (const tools::PlanRow& row : rows) {
    std::vector<std::string> cells = {row.name};
    for (const FigureColumn& column : columns) {
      const tools::Figure* figure = row.FindOrNull(column.figure);
      cells.push_back(figure == nullptr ? "-" : Shown(*figure));
    }
    table.AddRow(std::move(cells));
  }
  std::cout << "\n" << title << "\n" << table.Render();
}

void PrintFormulas(const tools::PlanRow& row, const std::string& title) {
  Table table({{title}, {"value", Align::kRight}, {"formula"}});
  for (const tools::Figure& figure : row.figures) table.AddRow({figure.name, Shown(figure), figure.formula});
  std::cout << "\n" << table.Render();
}

std::vector<FigureColumn> LoadColumns(const tools::PlanOptions& options) {
  std::vector<FigureColumn> columns;
  columns.reserve(options.media.size());
  for (const tools::Medium& medium : options.media) {
    columns.push_back(
        {"load_seconds_" + medium.name, medium.name + " " + FormatFixed(medium.bytes_per_second * 1e-9, 2) + " GB/s"});
  }
  return columns;
}

void Print(const tools::Plan& plan, const tools::PlanOptions& options) {
  const std::string n = std::to_string(options.n_variants);
  Table model({{"model"}, {"value", Align::kRight}, {"formula"}});
  for (const tools::Figure& figure : plan.model.figures) {
    model.AddRow({figure.name, Shown(figure), figure.formula});
  }
  std::cout << model.Render();
  std::vector<FigureColumn> deltas = {
      {"delta_bytes", "a delta"},           {"bits_per_weight", "bits/weight"},
      {"times_smaller", "smaller"},         {"family_bytes", "base + " + n + " on disk"},
      {"family_memory_bytes", "in memory"}, {"saved_share", "saved"}};
  std::vector<FigureColumn> copies = {{"copy_bytes", "a copy"}, {"family_bytes", n + " copies"}};
  if (options.memory_bytes != 0) {
    const double gibibytes = static_cast<double>(options.memory_bytes) * 0x1p-30;
    const std::string room = FormatFixed(gibibytes, gibibytes == std::floor(gibibytes) ? 0 : 2) + " GiB";
    for (auto* columns : {&deltas, &copies}) {
      columns->push_back({"fit_variants", "fit in " + room});
      columns->push_back({"kv_left_tokens", "KV tokens left beside " + n});
    }
  }
  PrintRows("One base and " + n + " variants", "code", plan.codes, deltas);
  PrintRows(n + " full copies", "format", plan.copies, copies);
  std::vector<tools::PlanRow> all = plan.codes;
  for (const tools::PlanRow& copy : plan.copies) all.push_back({copy.name + " copy", copy.figures});
  PrintRows("Loading one variant", "code", all, LoadColumns(options));
  PrintRows(
      "Weights read by a decoded token, and by one token of each of " + n + " variants (copies: in " + n + " engines)",
      "code", all,
      {{"token_bytes", "one variant"},
       {"token_ratio", "of the base's"},
       {"step_bytes", "all " + n},
       {"step_ratio", "of the base's"}});
  if (!plan.codes.empty()) PrintFormulas(plan.codes.front(), plan.codes.front().name);
  PrintFormulas(plan.copies.front(), plan.copies.front().name + " copy");
}

void PrintJson(const tools::Plan& plan, const Arguments& arguments) {
  const tools::PlanOptions& options = arguments.options;
  Json json = {{"parameters",
                {{"model", arguments.model},
                 {"variants", options.n_variants},
                 {"embeddings", options.embeddings},
                 {"memory_bytes", options.memory_bytes},
                 {"reserve_bytes", options.reserve_bytes},
                 {"context_tokens", options.context_tokens},
                 {"sequences", options.n_sequences},
                 {"kv_cache_dtype", arguments.kv_cache_dtype},
                 {"calibrate", arguments.calibrate},
                 {"media", Json::array()}}}};
  for (const tools::Medium& medium : options.media) {
    json["parameters"]["media"].push_back(
        {{"name", medium.name}, {"bytes_per_second", medium.bytes_per_second}, {"source", medium.source}});
  }
  json.update(ToJson(plan));
  std::cout << DumpJson(json, 1) << "\n";
}

Status Run(Arguments& arguments) {
  tools::PlanOptions& options = arguments.options;
  if (!arguments.codes.empty()) options.codes = arguments.codes;
  if (!arguments.media.empty()) options.media.clear();
  for (const std::string& text : arguments.media) {
    DF_ASSIGN_OR_RETURN(options.media.emplace_back(), MediumOf(text));
  }
  options.kv_dtype = arguments.kv_cache_dtype == "f32" ? DType::kF32 : DType::kBf16;
  options.is_fitted = arguments.calibrate != "none";
  DF_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(arguments));
  DF_ASSIGN_OR_RETURN(const tools::Plan plan, tools::MakePlan(config, options));
  if (arguments.json) {
    PrintJson(plan, arguments);
  } else {
    Print(plan, options);
  }
  return Status::Ok();
}

void AddSizes(const Command& command, Sizes& sizes) {
  command.Option("--d-model", sizes.d_model, "Without MODEL: hidden size of a Llama").Value("N");
  command.Option("--layers", sizes.n_layers, "Layers").Value("N");
  command.Option("--heads", sizes.n_heads, "Attention heads").Value("N");
  command.Option("--kv-heads", sizes.n_kv_heads, "Heads of keys and values [--heads]").Value("N");
  command.Option("--head-dim", sizes.head_dim, "Size of a head [--d-model / --heads]").Value("N");
  command.Option("--d-ff", sizes.d_ff, "Size of the feed-forward layer").Value("N");
  command.Option("--vocab", sizes.vocab, "Vocabulary").Value("N");
  command.Switch("--tied", sizes.tied, "The head is the embedding");
}

}  // namespace

void AddPlan(const Command& app) {
  const Command command = app.Sub("plan", "Memory, load times and bytes a token for a base and its variants");
  auto arguments = std::make_shared<Arguments>();
  tools::PlanOptions& options = arguments->options;
  command
      .Option("model,--model", arguments->model,
              "Model directory, hub id in the local cache, config.json, or one of " + KnownShapes())
      .Value("MODEL");
  AddSizes(command, arguments->sizes);
  command.Option("--variants", options.n_variants, "Variants beside the base [14]").Value("N");
  command.Option("--code", arguments->codes, "Codes to compare [scalar,row,rank1,planes2,lowrank:16,auto]")
      .SplitAtCommas()
      .Value("CODE,...");
  command
      .Option("--embeddings", options.embeddings,
              "Code of embedding and head [raw: the fine-tune changed every row; same: it left them]")
      .Value("CODE");
  command
      .Option("--calibrate", arguments->calibrate,
              "As for compress: self (row and column scales take two bytes) or none (four) [self]")
      .OneOf({"self", "none"})
      .Value("SOURCE");
  command.Bytes("--memory", options.memory_bytes, "Memory that all must fit into, as in 24GB: says what does")
      .Value("BYTES");
  command.Bytes("--reserve", options.reserve_bytes, "Of it, for program, tokenizers and activations [512 MB]")
      .Value("BYTES");
  command.Option("--context", options.context_tokens, "Tokens of a sequence [4096]").Value("N");
  command.Option("--sequences", options.n_sequences, "Sequences at once, whose KV cache must fit [1]").Value("N");
  command.Option("--kv-cache-dtype", arguments->kv_cache_dtype, "Of keys and values: bf16 or f32 [bf16]")
      .OneOf({"bf16", "f32"})
      .Value("DTYPE");
  command
      .Option("--medium", arguments->media,
              "Where deltas are loaded from, and its speed in 10^9 bytes a second; repeatable, in place of\n"
              "page_cache=1 (measured, packing included), sata_ssd=0.55, nvme_gen4=7, nvme_gen5=14, ethernet_10g=1.25")
      .OneValueEach()
      .Value("NAME=GB/s");
  command.Switch("--json", arguments->json, "Print as JSON, each figure with its formula");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Report("plan", Run(*arguments)); });
}

}  // namespace df::cli
