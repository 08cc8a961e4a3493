#include "merge/pool_sketches.h"

#include <cmath>

#include "format/safetensors.h"

namespace df {
namespace {

constexpr char kFileName[] = "/pool_sketches.safetensors";
constexpr char kNormsName[] = "squared_norms";

Status WriteSketch(const AdapterSketch& sketch, SafetensorsWriter& writer) {
  return writer.Write({reinterpret_cast<const uint8_t*>(sketch.data()), sketch.size() * sizeof(float)});
}

Result<std::vector<AdapterSketch>> ReadRows(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.FindOrNull(name);
  if (view == nullptr || view->dtype != DType::kF32 || view->shape.rank() != 2 || view->shape[1] != kSketchElements) {
    return Corrupt(file.file().path() + ": \"" + name + "\" must be F32 [rows, " + std::to_string(kSketchElements) +
                   "]");
  }
  std::vector<AdapterSketch> rows(view->shape[0], AdapterSketch(kSketchElements));
  for (size_t row = 0; row < rows.size(); ++row) ReadFloats(*view, row * kSketchElements, rows[row]);
  return rows;
}

Result<std::vector<double>> ReadNorms(const SafetensorsFile& file) {
  const TensorView* view = file.FindOrNull(kNormsName);
  if (view == nullptr) return std::vector<double>();
  const auto corrupt = [&](const std::string& what) {
    return Corrupt(file.file().path() + ": \"" + kNormsName + "\" must be " + what);
  };
  if (view->dtype != DType::kF64 || view->shape.rank() != 1) return corrupt("F64 [modules]");
  std::vector<double> norms(view->shape[0]);
  for (size_t i = 0; i < norms.size(); ++i) {
    norms[i] = LoadUnaligned<double>(view->bytes.data() + i * sizeof(double));
    if (!std::isfinite(norms[i]) || norms[i] < 0) return corrupt("squares of lengths");
  }
  return norms;
}

}  // namespace

Status WriteSketches(const PoolSketches& sketches, const std::string& directory) {
  DF_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(directory + kFileName,
                                {{"mean", DType::kF32, Shape{1, kSketchElements}},
                                 {"members", DType::kF32, Shape{sketches.members.size(), kSketchElements}},
                                 {kNormsName, DType::kF64, Shape{sketches.squared_norms.size()}}},
                                {{"format", "deltafold_pool_sketches"}}));
  DF_RETURN_IF_ERROR(WriteSketch(sketches.mean, writer));
  for (const AdapterSketch& member : sketches.members) DF_RETURN_IF_ERROR(WriteSketch(member, writer));
  DF_RETURN_IF_ERROR(writer.Write(AsBytes(std::span<const double>(sketches.squared_norms))));
  return writer.Commit();
}

Result<PoolSketches> ReadSketches(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(directory + kFileName));
  PoolSketches sketches;
  DF_ASSIGN_OR_RETURN(sketches.members, ReadRows(*file, "members"));
  DF_ASSIGN_OR_RETURN(const std::vector<AdapterSketch> mean, ReadRows(*file, "mean"));
  if (mean.size() != 1) return Corrupt(directory + kFileName + ": \"mean\" must have one row");
  sketches.mean = mean.front();
  DF_ASSIGN_OR_RETURN(sketches.squared_norms, ReadNorms(*file));
  DF_RETURN_IF_ERROR(file->file().CheckIntact());
  return sketches;
}

}  // namespace df
