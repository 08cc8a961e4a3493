#include "merge/pool_sketches.h"

#include "format/safetensors.h"

namespace df {
namespace {

constexpr char kFileName[] = "/pool_sketches.safetensors";

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

}  // namespace

Status WriteSketches(const PoolSketches& sketches, const std::string& directory) {
  DF_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(directory + kFileName,
                                {{"mean", DType::kF32, Shape{1, kSketchElements}},
                                 {"members", DType::kF32, Shape{sketches.members.size(), kSketchElements}}},
                                {{"format", "deltafold_pool_sketches"}}));
  DF_RETURN_IF_ERROR(WriteSketch(sketches.mean, writer));
  for (const AdapterSketch& member : sketches.members) DF_RETURN_IF_ERROR(WriteSketch(member, writer));
  return writer.Commit();
}

Result<PoolSketches> ReadSketches(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(directory + kFileName));
  PoolSketches sketches;
  DF_ASSIGN_OR_RETURN(sketches.members, ReadRows(*file, "members"));
  DF_ASSIGN_OR_RETURN(const std::vector<AdapterSketch> mean, ReadRows(*file, "mean"));
  if (mean.size() != 1) return Corrupt(directory + kFileName + ": \"mean\" must have one row");
  sketches.mean = mean.front();
  DF_RETURN_IF_ERROR(file->file().CheckIntact());
  return sketches;
}

}  // namespace df
