// torch.save files put together byte by byte, so that broken ones can be made as well.
#ifndef DELTAFOLD_TESTING_TORCH_ARCHIVE_H_
#define DELTAFOLD_TESTING_TORCH_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "format/stored_zip.h"

namespace df::testing {

inline std::string LittleEndian(uint64_t value, size_t n_bytes) {
  std::string bytes;
  for (size_t i = 0; i < n_bytes; ++i) bytes += static_cast<char>((value >> (8 * i)) & 255);
  return bytes;
}

struct MadeZipEntry {
  std::string name = {}, data = {};
  uint64_t flags = 0, method = 0;
  bool is_zip64 = false;
};

// A zip archive; with `is_zip64` its end is written so too.
inline std::string MakeZip(const std::vector<MadeZipEntry>& entries, bool is_zip64 = false) {
  std::string archive, directory;
  for (const MadeZipEntry& entry : entries) {
    const uint64_t at = archive.size(), size = entry.data.size(), crc = Crc32(AsBytes(entry.data));
    const uint64_t short_size = entry.is_zip64 ? 0xFFFFFFFF : size, short_at = entry.is_zip64 ? 0xFFFFFFFF : at;
    const std::string wide = LittleEndian(size, 8) + LittleEndian(size, 8) + LittleEndian(at, 8);
    const std::string extra = entry.is_zip64 ? LittleEndian(1, 2) + LittleEndian(wide.size(), 2) + wide : "";
    const std::string shared = LittleEndian(entry.flags, 2) + LittleEndian(entry.method, 2) + LittleEndian(0, 4) +
                               LittleEndian(crc, 4) + LittleEndian(short_size, 4) + LittleEndian(short_size, 4) +
                               LittleEndian(entry.name.size(), 2);
    archive +=
        LittleEndian(0x04034B50, 4) + LittleEndian(45, 2) + shared + LittleEndian(0, 2) + entry.name + entry.data;
    directory += LittleEndian(0x02014B50, 4) + LittleEndian(45, 2) + LittleEndian(45, 2) + shared +
                 LittleEndian(extra.size(), 2) + LittleEndian(0, 2) + LittleEndian(0, 2) + LittleEndian(0, 6) +
                 LittleEndian(short_at, 4) + entry.name + extra;
  }
  const uint64_t begin = archive.size(), n = entries.size();
  archive += directory;
  if (is_zip64) {
    const uint64_t end64 = archive.size();
    archive += LittleEndian(0x06064B50, 4) + LittleEndian(44, 8) + LittleEndian(45, 2) + LittleEndian(45, 2) +
               LittleEndian(0, 8) + LittleEndian(n, 8) + LittleEndian(n, 8) + LittleEndian(directory.size(), 8) +
               LittleEndian(begin, 8);
    archive += LittleEndian(0x07064B50, 4) + LittleEndian(0, 4) + LittleEndian(end64, 8) + LittleEndian(1, 4);
  }
  const uint64_t short_n = is_zip64 ? 0xFFFF : n, short_begin = is_zip64 ? 0xFFFFFFFF : begin;
  return archive + LittleEndian(0x06054B50, 4) + LittleEndian(0, 4) + LittleEndian(short_n, 2) +
         LittleEndian(short_n, 2) + LittleEndian(is_zip64 ? 0xFFFFFFFF : directory.size(), 4) +
         LittleEndian(short_begin, 4) + LittleEndian(0, 2);
}

// Opcodes of pickle protocol 2.
inline std::string PickledText(const std::string& text) { return "X" + LittleEndian(text.size(), 4) + text; }
inline std::string PickledInt(uint64_t value) {
  return value < 256 ? "K" + LittleEndian(value, 1) : std::string("\x8A\x08") + LittleEndian(value, 8);
}
inline std::string PickledTuple(const std::vector<uint64_t>& values) {
  std::string text = "(";
  for (const uint64_t value : values) text += PickledInt(value);
  return text + "t";
}
inline std::string PickledGlobal(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

struct PickledTensor {
  std::string storage_type = "FloatStorage", key = {};
  uint64_t n_elements = 0, offset = 0;
  std::vector<uint64_t> shape = {}, strides = {};
  bool is_parameter = false;
};
inline std::string Pickled(const PickledTensor& tensor) {
  const std::string hooks = PickledGlobal("collections", "OrderedDict") + ")R";
  const std::string plain = PickledGlobal("torch._utils", "_rebuild_tensor_v2") + "((" + PickledText("storage") +
                            PickledGlobal("torch", tensor.storage_type) + PickledText(tensor.key) + PickledText("cpu") +
                            PickledInt(tensor.n_elements) + "tQ" + PickledInt(tensor.offset) +
                            PickledTuple(tensor.shape) + PickledTuple(tensor.strides) + "\x89" + hooks + "tR";
  if (!tensor.is_parameter) return plain;
  return PickledGlobal("torch._utils", "_rebuild_parameter") + plain + "\x88" + hooks + "\x87R";
}
// {name: value, ...}, the values already pickled.
inline std::string PickledDictionary(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = "\x80\x02}(";
  for (const auto& [name, value] : entries) text += PickledText(name) + value;
  return text + "u.";
}

// Storages are key and bytes.
inline std::string TorchArchive(const std::string& pickle,
                                const std::vector<std::pair<std::string, std::string>>& storages) {
  std::vector<MadeZipEntry> entries = {{.name = "diff/data.pkl", .data = pickle},
                                       {.name = "diff/byteorder", .data = "little"}};
  for (const auto& [key, data] : storages) entries.push_back({.name = "diff/data/" + key, .data = data});
  entries.push_back({.name = "diff/version", .data = "3\n"});
  return MakeZip(entries);
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_TORCH_ARCHIVE_H_
