#include "format/torch_pickle.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "format/message.h"
#include "format/stored_zip.h"

namespace df {
namespace {

// Opcodes of pickle protocol 2, by the names of Python's pickletools.
enum Opcode : uint8_t {
  kProto = 0x80,
  kStop = '.',
  kMark = '(',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8A,
  kBinUnicode = 'X',
  kGlobal = 'c',
  kBinPersId = 'Q',
  kReduce = 'R',
  kSetItem = 's',
  kSetItems = 'u',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
};

enum class Kind { kMark, kNone, kBool, kInt, kText, kBuilder, kStorageType, kTuple, kDict, kStorage, kTensor };

enum class Builder { kTensor, kParameter, kOrderedDict };

// `number` is a truth, an integer, a Builder, a DType, or a place in the machine's list of this kind.
struct Value {
  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string_view text = {};
};

struct GlobalName {
  std::string_view name;  // "module name"
  Value value;
};
constexpr Value TypeOf(DType dtype) { return {Kind::kStorageType, static_cast<int64_t>(dtype)}; }
constexpr Value BuilderOf(Builder builder) { return {Kind::kBuilder, static_cast<int64_t>(builder)}; }
constexpr std::array<GlobalName, 13> kGlobals = {{{"torch._utils _rebuild_tensor_v2", BuilderOf(Builder::kTensor)},
                                                  {"torch._utils _rebuild_parameter", BuilderOf(Builder::kParameter)},
                                                  {"collections OrderedDict", BuilderOf(Builder::kOrderedDict)},
                                                  {"torch FloatStorage", TypeOf(DType::kF32)},
                                                  {"torch HalfStorage", TypeOf(DType::kF16)},
                                                  {"torch BFloat16Storage", TypeOf(DType::kBf16)},
                                                  {"torch DoubleStorage", TypeOf(DType::kF64)},
                                                  {"torch LongStorage", TypeOf(DType::kI64)},
                                                  {"torch IntStorage", TypeOf(DType::kI32)},
                                                  {"torch ShortStorage", TypeOf(DType::kI16)},
                                                  {"torch CharStorage", TypeOf(DType::kI8)},
                                                  {"torch ByteStorage", TypeOf(DType::kU8)},
                                                  {"torch BoolStorage", TypeOf(DType::kBool)}}};

struct Storage {
  DType dtype = DType::kF32;
  Bytes bytes;
};

// Entry of a dictionary: key, place of its value among the values.
using Entry = std::pair<std::string_view, uint32_t>;

// A pickle machine without anything that could run: values are numbers, texts and the builders' results.
class Machine {
 public:
  Machine(Bytes pickle, const TorchStorages& storages) : rest_(pickle), storages_(storages) {}

  Result<std::vector<StridedTensor>> Run() {
    for (;;) {
      if (rest_.empty()) return Corrupt("the pickle ends before its STOP");
      const uint8_t opcode = rest_.front();
      rest_ = rest_.subspan(1);
      if (opcode == kStop) return Finish();
      if (values_.size() >= kMaxPickleValues) {
        return ResourceExhausted("the pickle makes more than " + std::to_string(kMaxPickleValues) + " values");
      }
      DF_RETURN_IF_ERROR(Step(opcode));
    }
  }

 private:
  Status Step(uint8_t opcode) {
    switch (opcode) {
      case kProto: return CheckProtocol();
      case kMark: return Push({Kind::kMark});
      case kNone: return Push({Kind::kNone});
      case kNewTrue: return Push({Kind::kBool, 1});
      case kNewFalse: return Push({Kind::kBool, 0});
      case kEmptyDict: return PushDict();
      case kEmptyTuple: return PushTuple(0);
      case kTuple1: return PushTuple(1);
      case kTuple2: return PushTuple(2);
      case kTuple3: return PushTuple(3);
      case kTuple: return PushMarkedTuple();
      case kBinInt1: return PushInt(1);
      case kBinInt2: return PushInt(2);
      case kBinInt: return PushInt(4);
      case kLong1: return PushLong();
      case kBinUnicode: return PushText();
      case kGlobal: return PushGlobal();
      case kBinPersId: return PushStorage();
      case kReduce: return Reduce();
      case kSetItem: return SetItems(stack_.size() < 2 ? 0 : stack_.size() - 2);
      case kSetItems: return SetMarkedItems();
      case kBinPut: return Put(1);
      case kLongBinPut: return Put(4);
      case kBinGet: return Get(1);
      case kLongBinGet: return Get(4);
      default: break;
    }
    return Unsupported("the pickle has opcode " + std::to_string(opcode) +
                       ", which no dictionary of tensors needs; nothing of it was run");
  }

  // ---- Reading.

  std::optional<Bytes> Take(size_t n_bytes) {
    if (rest_.size() < n_bytes) return std::nullopt;
    const Bytes taken = rest_.first(n_bytes);
    rest_ = rest_.subspan(n_bytes);
    return taken;
  }
  std::optional<uint64_t> TakeNumber(size_t n_bytes) {
    const std::optional<Bytes> bytes = Take(n_bytes);
    if (!bytes) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < n_bytes; ++i) value |= uint64_t{(*bytes)[i]} << (8 * i);
    return value;
  }
  std::optional<std::string_view> TakeLine() {
    const std::string_view text = AsText(rest_);
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    rest_ = rest_.subspan(end + 1);
    return text.substr(0, end);
  }

  // ---- The stack: places of values.

  static Status CutShort() { return Corrupt("the pickle is cut short"); }
  static Status Underflow() { return Corrupt("the pickle takes more from its stack than is there"); }
  static Status Misshapen(std::string_view what) { return Corrupt("the pickle's " + std::string(what)); }

  Status Push(Value value) {
    stack_.push_back(static_cast<uint32_t>(values_.size()));
    values_.push_back(value);
    return Status::Ok();
  }
  const Value& At(size_t place_in_stack) const { return values_[stack_[place_in_stack]]; }
  std::optional<Value> Pop() {
    if (stack_.empty()) return std::nullopt;
    const Value value = values_[stack_.back()];
    stack_.pop_back();
    return value;
  }
  // Where the last mark stands.
  std::optional<size_t> FindMark() const {
    for (size_t i = stack_.size(); i-- > 0;) {
      if (At(i).kind == Kind::kMark) return i;
    }
    return std::nullopt;
  }

  // ---- Opcodes.

  Status CheckProtocol() {
    const std::optional<uint64_t> version = TakeNumber(1);
    if (!version) return CutShort();
    if (*version == 2) return Status::Ok();
    return Unsupported("the pickle is of protocol " + std::to_string(*version) + ", torch.save writes 2");
  }

  Status PushInt(size_t n_bytes) {
    const std::optional<uint64_t> value = TakeNumber(n_bytes);
    if (!value) return CutShort();
    const bool is_signed = n_bytes == 4;
    return Push({Kind::kInt, is_signed ? static_cast<int32_t>(*value) : static_cast<int64_t>(*value)});
  }

  // Two's complement of as many bytes as it takes; torch writes sizes of 2^31 and more so.
  Status PushLong() {
    const std::optional<uint64_t> n_bytes = TakeNumber(1);
    if (!n_bytes) return CutShort();
    if (*n_bytes > 8) return Unsupported("the pickle has an integer of more than 64 bits");
    const std::optional<uint64_t> value = TakeNumber(*n_bytes);
    if (!value) return CutShort();
    const bool is_negative = *n_bytes > 0 && (*value >> (8 * *n_bytes - 1)) != 0;
    const uint64_t high = is_negative && *n_bytes < 8 ? ~uint64_t{0} << (8 * *n_bytes) : 0;
    return Push({Kind::kInt, static_cast<int64_t>(*value | high)});
  }

  Status PushText() {
    const std::optional<uint64_t> n_bytes = TakeNumber(4);
    const std::optional<Bytes> bytes = n_bytes ? Take(*n_bytes) : std::nullopt;
    if (!bytes) return CutShort();
    return Push({Kind::kText, 0, AsText(*bytes)});
  }

  Status PushGlobal() {
    const std::optional<std::string_view> module = TakeLine();
    const std::optional<std::string_view> name = module ? TakeLine() : std::nullopt;
    if (!name) return CutShort();
    const std::string full = std::string(*module) + " " + std::string(*name);
    for (const GlobalName& global : kGlobals) {
      if (global.name == full) return Push(global.value);
    }
    return Unsupported("the pickle asks for " + Quoted(std::string(*module) + "." + std::string(*name)) +
                       ", which is no builder of plain tensors; nothing of it was run");
  }

  Status PushDict() {
    dicts_.emplace_back();
    return Push({Kind::kDict, static_cast<int64_t>(dicts_.size() - 1)});
  }

  // Of all that stands from `first` on.
  Status PushTupleFrom(size_t first) {
    tuples_.emplace_back(stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
    return Push({Kind::kTuple, static_cast<int64_t>(tuples_.size() - 1)});
  }
  Status PushTuple(size_t size) { return stack_.size() < size ? Underflow() : PushTupleFrom(stack_.size() - size); }
  Status PushMarkedTuple() {
    const std::optional<size_t> mark = FindMark();
    if (!mark) return Underflow();
    stack_.erase(stack_.begin() + static_cast<ptrdiff_t>(*mark));
    return PushTupleFrom(*mark);
  }

  Status SetMarkedItems() {
    const std::optional<size_t> mark = FindMark();
    if (!mark) return Underflow();
    stack_.erase(stack_.begin() + static_cast<ptrdiff_t>(*mark));
    return SetItems(*mark);
  }
  // Keys and values stand from `first` on, the dictionary below.
  Status SetItems(size_t first) {
    if (first == 0 || first > stack_.size()) return Underflow();
    if (At(first - 1).kind != Kind::kDict || (stack_.size() - first) % 2 != 0) {
      return Misshapen("items are of no dictionary");
    }
    std::vector<Entry>& dict = dicts_[static_cast<size_t>(At(first - 1).number)];
    for (size_t i = first; i < stack_.size(); i += 2) {
      if (At(i).kind != Kind::kText) return Unsupported("the pickle has a key that is no text");
      dict.emplace_back(At(i).text, stack_[i + 1]);
    }
    stack_.resize(first);
    return Status::Ok();
  }

  Status Put(size_t n_bytes) {
    const std::optional<uint64_t> place = TakeNumber(n_bytes);
    if (!place) return CutShort();
    if (stack_.empty()) return Underflow();
    memo_[*place] = stack_.back();
    return Status::Ok();
  }
  Status Get(size_t n_bytes) {
    const std::optional<uint64_t> place = TakeNumber(n_bytes);
    if (!place) return CutShort();
    const auto found = memo_.find(*place);
    if (found == memo_.end()) return Misshapen("memo has no " + std::to_string(*place));
    return Push(values_[found->second]);
  }

  // ---- Builders.

  // The members of a tuple, or nothing.
  std::optional<std::vector<Value>> Members(const Value& tuple) const {
    if (tuple.kind != Kind::kTuple) return std::nullopt;
    std::vector<Value> members;
    for (const uint32_t place : tuples_[static_cast<size_t>(tuple.number)]) members.push_back(values_[place]);
    return members;
  }

  // ("storage", type, key, device, number of elements)
  Status PushStorage() {
    const std::optional<Value> id = Pop();
    const auto parts = id ? Members(*id) : std::nullopt;
    if (!parts || parts->size() != 5 || (*parts)[0].kind != Kind::kText || (*parts)[0].text != "storage" ||
        (*parts)[1].kind != Kind::kStorageType || (*parts)[2].kind != Kind::kText || (*parts)[4].kind != Kind::kInt ||
        (*parts)[4].number < 0) {
      return Misshapen("persistent id names no storage");
    }
    const Bytes* const bytes = storages_.FindOrNull((*parts)[2].text);
    if (bytes == nullptr) return Misshapen("storage " + Quoted((*parts)[2].text) + " is not in the archive");
    const auto dtype = static_cast<DType>((*parts)[1].number);
    const auto n_elements = static_cast<uint64_t>((*parts)[4].number);
    if (bytes->size() % DTypeBytes(dtype) != 0 || bytes->size() / DTypeBytes(dtype) != n_elements) {
      return Misshapen("storage " + Quoted((*parts)[2].text) + " of " + std::to_string(n_elements) + " " +
                       std::string(DTypeName(dtype)) + " has " + std::to_string(bytes->size()) + " bytes");
    }
    known_storages_.push_back({dtype, *bytes});
    return Push({Kind::kStorage, static_cast<int64_t>(known_storages_.size() - 1)});
  }

  Status Reduce() {
    const std::optional<Value> arguments = Pop(), callee = Pop();
    if (!arguments || !callee) return Underflow();
    if (callee->kind != Kind::kBuilder) return Unsupported("the pickle calls what is no builder of tensors");
    const auto values = Members(*arguments);
    if (!values) return Misshapen("builder is called without a tuple");
    switch (static_cast<Builder>(callee->number)) {
      case Builder::kTensor: return PushTensor(*values);
      case Builder::kParameter: return PushParameter(*values);
      case Builder::kOrderedDict: break;
    }
    return values->empty() ? PushDict() : Unsupported("the pickle fills an OrderedDict by its constructor");
  }

  // Sizes or strides.
  std::optional<std::vector<size_t>> Numbers(const Value& tuple) const {
    const auto members = Members(tuple);
    if (!members || members->size() > Shape::kMaxRank) return std::nullopt;
    std::vector<size_t> numbers;
    for (const Value& member : *members) {
      if (member.kind != Kind::kInt || member.number < 0) return std::nullopt;
      numbers.push_back(static_cast<size_t>(member.number));
    }
    return numbers;
  }

  // (storage, offset, size, stride, requires_grad, backward_hooks)
  Status PushTensor(const std::vector<Value>& values) {
    if (values.size() != 6 || values[0].kind != Kind::kStorage || values[1].kind != Kind::kInt ||
        values[1].number < 0) {
      return Misshapen("tensor has other parts than storage, offset, size, stride, requires_grad and hooks");
    }
    const auto sizes = Numbers(values[2]), strides = Numbers(values[3]);
    if (!sizes || !strides || sizes->size() != strides->size()) {
      return Misshapen("tensor has a shape or strides that are none of up to 8 dimensions");
    }
    const Storage& storage = known_storages_[static_cast<size_t>(values[0].number)];
    StridedTensor tensor{.name = {}, .dtype = storage.dtype, .shape = *Shape::FromSpan(*sizes), .data = {}};
    std::ranges::copy(*strides, tensor.strides.begin());
    const auto offset = static_cast<uint64_t>(values[1].number);
    const uint64_t stored = storage.bytes.size() / DTypeBytes(storage.dtype);
    if (offset > stored || !Fits(tensor, stored - offset)) {
      return Misshapen("tensor of shape " + ToString(tensor.shape) + " reaches out of its storage of " +
                       std::to_string(stored) + " elements");
    }
    tensor.data = storage.bytes.subspan(offset * DTypeBytes(storage.dtype));
    tensors_.push_back(std::move(tensor));
    return Push({Kind::kTensor, static_cast<int64_t>(tensors_.size() - 1)});
  }

  // The last element's place is below `n_elements`, and there are no more elements than that: a stride of 0 would let a
  // few bytes stand for any number.
  static bool Fits(const StridedTensor& tensor, uint64_t n_elements) {
    const std::optional<size_t> size = tensor.shape.TryElements();
    if (!size || *size > n_elements) return false;
    if (*size == 0) return true;
    uint64_t last = 0;
    for (size_t i = 0; i < tensor.shape.rank(); ++i) {
      uint64_t step = 0;
      if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) ||
          __builtin_add_overflow(last, step, &last)) {
        return false;
      }
    }
    return last < n_elements;
  }

  // (tensor, requires_grad, backward_hooks)
  Status PushParameter(const std::vector<Value>& values) {
    if (values.size() != 3 || values[0].kind != Kind::kTensor) return Misshapen("parameter is of no tensor");
    return Push(values[0]);
  }

  Result<std::vector<StridedTensor>> Finish() {
    if (!rest_.empty()) return Corrupt("the pickle goes on after its STOP");
    if (stack_.size() != 1 || At(0).kind != Kind::kDict) return Corrupt("the pickle is no dictionary of tensors");
    std::vector<StridedTensor> tensors;
    std::unordered_set<std::string_view> names;
    for (const auto& [name, place] : dicts_[static_cast<size_t>(At(0).number)]) {
      const Value& value = values_[place];
      if (value.kind != Kind::kTensor) return Unsupported("entry " + Quoted(name) + " of the pickle is no tensor");
      if (!names.insert(name).second) return Corrupt("the pickle has two entries " + Quoted(name));
      tensors.push_back(tensors_[static_cast<size_t>(value.number)]);
      tensors.back().name = name;
    }
    return tensors;
  }

  Bytes rest_;
  const TorchStorages& storages_;
  std::vector<Value> values_;
  std::vector<uint32_t> stack_;
  std::unordered_map<uint64_t, uint32_t> memo_;
  std::vector<std::vector<uint32_t>> tuples_;
  std::vector<std::vector<Entry>> dicts_;
  std::vector<Storage> known_storages_;
  std::vector<StridedTensor> tensors_;
};

// Storages are checked against their CRC-32 when they are asked for.
class ZipStorages final : public TorchStorages {
 public:
  ZipStorages(const std::vector<ZipEntry>& entries, const std::string& root) {
    for (const ZipEntry& entry : entries) {
      if (entry.name.starts_with(root + "data/")) entries_.emplace(entry.name.substr(root.size() + 5), &entry);
    }
  }
  const Bytes* FindOrNull(std::string_view key) const override {
    const auto found = entries_.find(std::string(key));
    if (found == entries_.end()) return nullptr;
    used_.insert(found->second);
    return &found->second->data;
  }
  Status CheckUsed() const {
    for (const ZipEntry* entry : used_) DF_RETURN_IF_ERROR(CheckZipEntry(*entry));
    return Status::Ok();
  }

 private:
  std::unordered_map<std::string, const ZipEntry*> entries_;
  mutable std::unordered_set<const ZipEntry*> used_;
};

const ZipEntry* FindEntry(const std::vector<ZipEntry>& entries, const std::string& name) {
  const auto found = std::ranges::find(entries, name, &ZipEntry::name);
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

bool StridedTensor::IsContiguous() const {
  uint64_t step = 1;
  for (size_t i = shape.rank(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

namespace {

// Squares of this many elements a side: the lines of both stay in the inner cache.
constexpr size_t kGatherTile = 16;

template <size_t kBytes>
void GatherMatrix(const StridedTensor& from, uint8_t* to) {
  const size_t rows = from.shape[0], cols = from.shape[1];
  for (size_t r0 = 0; r0 < rows; r0 += kGatherTile) {
    for (size_t c0 = 0; c0 < cols; c0 += kGatherTile) {
      for (size_t r = r0; r < std::min(r0 + kGatherTile, rows); ++r) {
        for (size_t c = c0; c < std::min(c0 + kGatherTile, cols); ++c) {
          std::memcpy(to + (r * cols + c) * kBytes,
                      from.data.data() + (r * from.strides[0] + c * from.strides[1]) * kBytes, kBytes);
        }
      }
    }
  }
}

void Gather(const StridedTensor& from, size_t n_elements, size_t element_bytes, uint8_t* to) {
  if (from.shape.rank() == 2 && element_bytes == 4) return GatherMatrix<4>(from, to);
  if (from.shape.rank() == 2 && element_bytes == 2) return GatherMatrix<2>(from, to);
  std::array<size_t, Shape::kMaxRank> index = {};
  uint64_t at = 0;
  for (size_t done = 0; done < n_elements; ++done) {
    std::memcpy(to + done * element_bytes, from.data.data() + at * element_bytes, element_bytes);
    for (size_t i = from.shape.rank(); i-- > 0;) {
      at += from.strides[i];
      if (++index[i] < from.shape[i]) break;
      at -= from.strides[i] * from.shape[i];
      index[i] = 0;
    }
  }
}

}  // namespace

TensorView StridedTensor::View(MutableBytes memory) const {
  const size_t n_elements = *shape.TryElements(), element_bytes = DTypeBytes(dtype);
  if (n_elements == 0 || IsContiguous()) return {dtype, shape, data.first(n_elements * element_bytes)};
  DF_CHECK(memory.size() >= n_elements * element_bytes);
  Gather(*this, n_elements, element_bytes, memory.data());
  return {dtype, shape, memory.first(n_elements * element_bytes)};
}

Result<std::vector<StridedTensor>> ReadTorchPickle(Bytes pickle, const TorchStorages& storages) {
  if (pickle.size() > kMaxPickleBytes) {
    return ResourceExhausted("the pickle has " + std::to_string(pickle.size()) + " bytes, at most " +
                             std::to_string(kMaxPickleBytes) + " are read");
  }
  return Machine(pickle, storages).Run();
}

Result<std::vector<StridedTensor>> ParseTorchFile(Bytes file) {
  DF_ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries, ParseStoredZip(file));
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : entries) {
    const bool is_pickle = entry.name.ends_with("/data.pkl") && entry.name.find('/') == entry.name.size() - 9;
    if (is_pickle && pickle != nullptr) return Corrupt("the zip archive has two pickles data.pkl");
    if (is_pickle) pickle = &entry;
  }
  if (pickle == nullptr) return Corrupt("the zip archive has no data.pkl: torch.save did not write it");
  const std::string root = pickle->name.substr(0, pickle->name.size() - 8);
  DF_RETURN_IF_ERROR(CheckZipEntry(*pickle));
  const ZipEntry* const order = FindEntry(entries, root + "byteorder");
  if (order != nullptr && AsText(order->data) != "little") return Unsupported("the tensors are not little-endian");
  const ZipStorages storages(entries, root);
  DF_ASSIGN_OR_RETURN(std::vector<StridedTensor> tensors, ReadTorchPickle(pickle->data, storages));
  DF_RETURN_IF_ERROR(storages.CheckUsed());
  return tensors;
}

}  // namespace df
