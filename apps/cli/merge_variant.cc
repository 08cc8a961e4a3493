#include "cli/merge_variant.h"

#include <filesystem>

#include "cli/command.h"
#include "codec/compressor.h"
#include "codec/export_peft.h"
#include "merge/scratch.h"
#include "tensor/kernel_context.h"

namespace df::cli {
namespace {

// Where the delta stands that an adapter is made of: within the merge's own place, which is ours.
std::string DeltaOf(const VariantOptions& options) {
  return options.as_lora ? merge::ScratchOf(options.out) + "/delta" : options.out;
}

Status Remove(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? IoError("cannot remove " + path, error.value()) : Status::Ok();
}

// A low rank for the matrices, all else exactly.
CompressOptions LoraCodes(size_t rank) {
  const Code exact{.kind = CodeKind::kExact};
  return {.matrices = Code{.kind = CodeKind::kLowRank, .rank = rank}, .embeddings = exact, .head = exact};
}

Result<CompressReport> CompressMerged(const merge::Recipe& recipe, const merge::MergeSources& sources,
                                      const VariantOptions& options, CompressOptions& compress) {
  if (options.as_lora) DF_RETURN_IF_ERROR(Remove(DeltaOf(options)));  // finished, and killed before its export
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
  return Compress(context.pool, *sources.base->checkpoint, *merged, DeltaOf(options), compress);
}

Status ExportAdapter(const merge::Recipe& recipe, const merge::MergeSources& sources, const VariantOptions& options,
                     VariantReport& report) {
  ThreadPool pool(options.n_threads);
  DF_ASSIGN_OR_RETURN(const ExportReport exported,
                      ExportPeft(pool, *sources.base->checkpoint, DeltaOf(options), options.out,
                                 {.base_name = sources.base->name,
                                  .rank = options.lora_rank,
                                  .replace = options.merger.replace,
                                  .origin = merge::RecipeSection(merge::NamedRecipe(recipe, sources))}));
  report.bytes = exported.bytes;
  report.adapter = {{"factors", exported.n_factors},
                    {"saved", exported.n_saved},
                    {"largest_rank", exported.largest_rank},
                    {"bytes", exported.bytes}};
  return Status::Ok();
}

// What was merged is not lost with what comes after it.
Status WithScratch(const Status& failure, const VariantOptions& options) {
  if (failure.ok() || failure.code() == StatusCode::kCancelled) return failure;
  return Status(failure.code(), failure.message() + "; the merge itself is kept in " + merge::ScratchOf(options.out) +
                                    ": go on with --resume, or discard it with --force");
}

Status CodeMerged(const merge::Recipe& recipe, const merge::MergeSources& sources, const VariantOptions& options,
                  CompressOptions& compress, VariantReport& report) {
  DF_ASSIGN_OR_RETURN(const CompressReport compressed, CompressMerged(recipe, sources, options, compress));
  report.compress = ToJson(compressed, compress);
  report.bytes = compressed.delta_bytes;
  report.full_bytes = compressed.full_bytes;
  report.mean_relative_frobenius = compressed.mean_relative_frobenius;
  return options.as_lora ? ExportAdapter(recipe, sources, options, report) : Status::Ok();
}

}  // namespace

Result<VariantReport> MergeToVariant(const merge::Recipe& recipe, const merge::MergeSources& sources,
                                     const VariantOptions& options) {
  if (!sources.base || sources.base->variant) {
    return FailedPrecondition("--as delta and --as lora need a full model as base_model: what they are a variant of");
  }
  DF_RETURN_IF_ERROR(CheckOutFree(options.out, options.merger.replace));
  DF_RETURN_IF_ERROR(CheckSource(options.calibration));
  CompressOptions compress = LoraCodes(options.lora_rank);
  if (!options.as_lora) DF_RETURN_IF_ERROR(ReadCodes(options.codes, compress));
  VariantReport report;
  {
    ThreadPool pool(options.n_threads);
    DF_ASSIGN_OR_RETURN(report.merge, merge::MergeToScratch(pool, recipe, sources, options.out, options.merger));
  }
  DF_RETURN_IF_ERROR(WithScratch(CodeMerged(recipe, sources, options, compress, report), options));
  DF_RETURN_IF_ERROR(merge::RemoveScratch(options.out));
  return report;
}

}  // namespace df::cli
