#include "cli/merge_variant.h"

#include <filesystem>

#include "codec/compressor.h"
#include "codec/export_peft.h"
#include "merge/scratch.h"
#include "tensor/kernel_context.h"

namespace df::cli {
namespace {

// A low rank for the matrices, all else exactly.
CompressOptions LoraCodes(size_t rank) {
  const Code exact{.kind = CodeKind::kExact};
  return {.matrices = Code{.kind = CodeKind::kLowRank, .rank = rank}, .embeddings = exact, .head = exact};
}

Status CheckTarget(const VariantOptions& options) {
  std::error_code ignored;  // an unreadable path fails later with its own message
  if (options.merger.replace || !std::filesystem::exists(options.out, ignored)) return Status::Ok();
  return FailedPrecondition(options.out + " exists already; choose another --out or replace it with --force");
}

Result<CompressReport> CompressMerged(const merge::Recipe& recipe, const merge::MergeSources& sources,
                                      const VariantOptions& options, const std::string& target,
                                      CompressOptions& compress) {
  KernelContext context(options.n_threads);
  DF_ASSIGN_OR_RETURN(const auto merged, Checkpoint::Open(merge::ScratchOf(options.out)));
  compress.base_name = sources.base->name;
  compress.model_name = "merge by " + recipe.method;
  compress.origin = merge::RecipeSection(merge::NamedRecipe(recipe, sources));
  compress.replace = options.merger.replace;
  compress.resume = options.merger.resume;
  compress.on_progress = options.on_compress;
  if (!compress.matrices || TakesInputs(*compress.matrices)) {
    DF_ASSIGN_OR_RETURN(
        compress.calibration,
        MakeCalibration(options.calibration, {sources.base->checkpoint_directory(), merged}, context, options.go_on));
    if (!options.as_lora) FitToCalibration(options.codes, compress);
  }
  return Compress(context.pool, *sources.base->checkpoint, *merged, target, compress);
}

Status ExportAdapter(const merge::Recipe& recipe, const merge::MergeSources& sources, const VariantOptions& options,
                     const std::string& delta, VariantReport& report) {
  ThreadPool pool(options.n_threads);
  DF_ASSIGN_OR_RETURN(const ExportReport exported,
                      ExportPeft(pool, *sources.base->checkpoint, delta, options.out,
                                 {.base_name = sources.base->name,
                                  .rank = options.lora_rank,
                                  .replace = options.merger.replace,
                                  .origin = merge::RecipeSection(merge::NamedRecipe(recipe, sources))}));
  report.bytes = exported.bytes;
  report.adapter = {{"factors", exported.n_factors},
                    {"saved", exported.n_saved},
                    {"largest_rank", exported.largest_rank},
                    {"bytes", exported.bytes}};
  std::error_code error;
  std::filesystem::remove_all(delta, error);
  return error ? IoError("cannot remove " + delta, error.value()) : Status::Ok();
}

}  // namespace

Result<VariantReport> MergeToVariant(const merge::Recipe& recipe, const merge::MergeSources& sources,
                                     const VariantOptions& options) {
  if (!sources.base || sources.base->variant) {
    return FailedPrecondition("--as delta and --as lora need a full model as base_model: what they are a variant of");
  }
  DF_RETURN_IF_ERROR(CheckTarget(options));
  CompressOptions compress = LoraCodes(options.lora_rank);
  if (!options.as_lora) DF_RETURN_IF_ERROR(ReadCodes(options.codes, compress));
  VariantReport report;
  {
    ThreadPool pool(options.n_threads);
    DF_ASSIGN_OR_RETURN(report.merge, merge::MergeToScratch(pool, recipe, sources, options.out, options.merger));
  }
  const std::string delta = options.as_lora ? options.out + ".delta" : options.out;
  if (!options.as_lora || !options.merger.resume || !std::filesystem::exists(delta)) {
    DF_ASSIGN_OR_RETURN(const CompressReport compressed, CompressMerged(recipe, sources, options, delta, compress));
    report.compress = ToJson(compressed, compress);
    report.bytes = compressed.delta_bytes;
    report.full_bytes = compressed.full_bytes;
    report.mean_relative_frobenius = compressed.mean_relative_frobenius;
  }
  if (options.as_lora) DF_RETURN_IF_ERROR(ExportAdapter(recipe, sources, options, delta, report));
  DF_RETURN_IF_ERROR(merge::RemoveScratch(options.out));
  return report;
}

}  // namespace df::cli
