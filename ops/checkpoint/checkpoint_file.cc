// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_file.h: checks all that it reads.
#include "ops/checkpoint/checkpoint_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/core/base/crc32c.h"
#include "ops/core/math/narrow_floats.h"
#include "ops/core/math/quantized_floats.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/versions.h"
#include "tensorflow/core/lib/core/coding.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/lib/io/table_options.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace rec_estimator {

using ::absl::Status;
using ::absl::StrAppend;
using ::absl::StrCat;
using ::tensorflow::BundleEntryProto;
using ::tensorflow::BundleHeaderProto;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeSize;
using ::tensorflow::DataTypeString;
using ::tensorflow::DT_BFLOAT16;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_HALF;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;
using ::tensorflow::DT_STRING;
using ::tensorflow::DT_UINT8;
using ::tensorflow::Env;
using ::tensorflow::RandomAccessFile;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

namespace {

// Numbers of 16 bits that are read before they are widened.
constexpr int64_t kWidenedAtOnce = int64_t{1} << 17;

// Reads n bytes at an offset. `what` is what they hold, for messages. They were
// inside the file when it was opened.
Status ReadBytes(const RandomAccessFile& file, const std::string& file_name,
                 const std::string& what, uint64_t offset, size_t n,
                 char* bytes) {
  absl::string_view read;
  const Status status = file.Read(offset, n, &read, bytes);
  if (read.size() != n) {
    if (!status.ok() && !absl::IsOutOfRange(status)) {
      return status;
    }
    return DataLoss(what, " must be in bytes [", offset, ", ", offset + n,
                    ") of ", file_name, ", got ", read.size(),
                    " bytes; the file is damaged");
  }
  if (read.data() != bytes) std::copy_n(read.data(), n, bytes);
  return Status();
}

// DataLoss unless all bytes of the entry are inside the file.
Status CheckInside(const std::string& tensor, const DataFile& file,
                   const BundleEntryProto& entry) {
  const uint64_t offset = entry.offset();
  const uint64_t size = entry.size();
  if (offset <= file.bytes && size <= file.bytes - offset) return Status();
  return DataLoss("tensor ", tensor, " must be in bytes [", offset, ", ",
                  offset + size, ") of ", file.name, ", got a file of ",
                  file.bytes, " bytes; the file is damaged");
}

Status CompareChecksum(const std::string& tensor, const DataFile& file,
                       uint32_t stored, uint32_t computed) {
  const uint32_t masked = tensorflow::crc32c::Mask(computed);
  if (masked == stored) return Status();
  return DataLoss("tensor ", tensor, " in ", file.name,
                  " must have the checksum ", stored, ", got ", masked,
                  "; the file is damaged");
}

// The name of the scales and offsets of a tensor of values; '' if the name is
// that of another tensor.
std::string ScalesOf(absl::string_view name) {
  return absl::ConsumeSuffix(&name, kValues) ? StrCat(name, kScaleOffset) : "";
}

}  // namespace

Status CheckRegular(absl::string_view name) {
  absl::string_view path = name;
  absl::ConsumePrefix(&path, "file://");
  struct stat status;
  if (stat(std::string(path).c_str(), &status) != 0 ||
      S_ISREG(status.st_mode)) {
    return Status();
  }
  return DataLoss(name, " must be a regular file, got another kind; restore ",
                  "another checkpoint");
}

Status CheckpointFile::Open() {
  const std::string name = tensorflow::MetaFilename(prefix_);
  const auto damaged = [&](const Status& status) {
    return DataLoss("checkpoint ", prefix_, " must have an index in ", name,
                    ", got ", status.message(), "; the file is damaged");
  };
  Env* env = Env::Default();
  uint64_t bytes;
  TF_RETURN_IF_ERROR(CheckRegular(name));
  TF_RETURN_IF_ERROR(env->GetFileSize(name, &bytes));
  TF_RETURN_IF_ERROR(env->NewRandomAccessFile(name, &index_file_));
  TF_RETURN_IF_ERROR(ReadIdentity(bytes));
  tensorflow::table::Table* index = nullptr;
  Status status = tensorflow::table::Table::Open(
      tensorflow::table::Options(), index_file_.get(), bytes, &index);
  if (!status.ok()) return damaged(status);
  index_.reset(index);
  entries_.reset(index_->NewIterator());

  entries_->Seek(tensorflow::kHeaderEntryKey);
  BundleHeaderProto header;
  if (!entries_->Valid() || entries_->key() != tensorflow::kHeaderEntryKey ||
      !header.ParseFromArray(entries_->value().data(),
                             static_cast<int>(entries_->value().size())) ||
      header.num_shards() < 1) {
    return damaged(DataLoss("no header"));
  }
  num_data_files_ = header.num_shards();
  TF_RETURN_IF_ERROR(tensorflow::CheckVersions(
      header.version(), tensorflow::kTensorBundleVersion,
      tensorflow::kTensorBundleMinProducer, "Checkpoint", "checkpoint"));
  if (header.endianness() != BundleHeaderProto::LITTLE) {
    return InvalidArgument("checkpoint ", prefix_,
                           " must be written on a little-endian machine, got a "
                           "big-endian one's");
  }
  for (; entries_->Valid(); entries_->Next()) {
  }
  status = entries_->status();
  return status.ok() ? status : damaged(status);
}

Status CheckpointFile::ReadIdentity(uint64_t bytes) {
  constexpr uint64_t kChunk = uint64_t{1} << 20;
  const std::string name = tensorflow::MetaFilename(prefix_);
  std::string chunk(std::min(bytes, kChunk), '\0');
  uint32_t checksum = 0;
  for (uint64_t at = 0; at < bytes; at += chunk.size()) {
    const size_t n = std::min<uint64_t>(chunk.size(), bytes - at);
    TF_RETURN_IF_ERROR(
        ReadBytes(*index_file_, name, "index", at, n, chunk.data()));
    checksum = ExtendCrc32c(checksum, chunk.data(), n);
  }
  identity_ = absl::StrFormat("%d-%08x", bytes, checksum);
  return Status();
}

bool CheckpointFile::Has(const std::string& name) const {
  if (name.empty()) return false;  // The empty key is the header.
  entries_->Seek(name);
  return entries_->Valid() && entries_->key() == name;
}

bool CheckpointFile::HasSuffix(const std::string& suffix) const {
  for (entries_->Seek(""); entries_->Valid(); entries_->Next()) {
    if (absl::EndsWith(std::string(entries_->key()), suffix)) return true;
  }
  return false;
}

Status CheckpointFile::Damaged(const std::string& name,
                               const std::string& rule) const {
  return DataLoss("tensor ", name, " of ", prefix_, " must ", rule,
                  "; the file is damaged");
}

Status CheckpointFile::FindEntry(const std::string& key,
                                 const std::string& name,
                                 BundleEntryProto* entry) const {
  if (Has(key) &&
      entry->ParseFromArray(entries_->value().data(),
                            static_cast<int>(entries_->value().size()))) {
    return Status();
  }
  return Damaged(name,
                 "have a valid entry in the index, got one that cannot "
                 "be read");
}

Status CheckpointFile::Find(const std::string& name,
                            const std::vector<DataType>& dtypes, int rank,
                            StoredTensor* tensor) {
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(FindEntry(name, name, &entry));
  TensorShape shape;
  if (entry.shape().unknown_rank() ||
      !TensorShape::BuildTensorShape(entry.shape(), &shape).ok()) {
    return Damaged(name, "have a valid entry in the index, got a bad shape");
  }
  if (std::find(dtypes.begin(), dtypes.end(), entry.dtype()) == dtypes.end()) {
    return InvalidArgument("tensor ", name, " of ", prefix_, " must be ",
                           DataTypeString(dtypes[0]), ", got ",
                           DataTypeString(entry.dtype()));
  }
  if (shape.dims() != rank) {
    return InvalidArgument("tensor ", name, " of ", prefix_,
                           " must be of rank ", rank, ", got shape ",
                           shape.DebugString());
  }
  tensor->name = name;
  tensor->dtype = entry.dtype();
  tensor->rows = shape.dim_size(0);
  tensor->width = rank == 2 ? shape.dim_size(1) : 1;
  tensor->row_bytes = 0;
  tensor->ranges.clear();
  tensor->scale_offset.reset();
  const uint64_t element_bytes = DataTypeSize(tensor->dtype);
  if (shape.num_elements() == 0) return Status();
  // No file has 2^63 bytes. After this check the product cannot overflow.
  if (static_cast<uint64_t>(shape.num_elements()) >
      std::numeric_limits<int64_t>::max() / element_bytes) {
    return Damaged(name,
                   StrCat("fit into a file, got shape ", shape.DebugString()));
  }
  tensor->row_bytes = tensor->width * element_bytes;
  if (entry.slices_size() > 0) return AddSlices(entry, rank, tensor);
  return AddRange(entry, 0, tensor->rows, tensor);
}

Status CheckpointFile::FindMatrix(const std::string& name, int64_t width,
                                  const char* what, StoredTensor* tensor) {
  std::vector<DataType> dtypes = {DT_FLOAT, DT_BFLOAT16, DT_HALF};
  if (Has(ScalesOf(name))) dtypes.push_back(DT_UINT8);
  TF_RETURN_IF_ERROR(Find(name, dtypes, 2, tensor));
  if (tensor->dtype == DT_UINT8) TF_RETURN_IF_ERROR(FindScales(tensor));
  if (tensor->width == width) return Status();
  return InvalidArgument("tensor ", name, " of ", prefix_, " must have ", width,
                         " columns, the ", what, ", got ", tensor->width);
}

Status CheckpointFile::FindScales(StoredTensor* tensor) {
  const auto found = std::make_shared<StoredTensor>();
  TF_RETURN_IF_ERROR(Find(ScalesOf(tensor->name), {DT_FLOAT}, 2, found.get()));
  if (found->rows != tensor->rows || found->width != 2) {
    return Damaged(found->name, StrCat("be a scale and an offset for each of ",
                                       tensor->rows, " rows, got shape [",
                                       found->rows, ",", found->width, "]"));
  }
  tensor->scale_offset = found;
  return Status();
}

Status CheckpointFile::FindVariable(const std::string& name, DataType dtype,
                                    const TensorShape& shape,
                                    StoredTensor* tensor) {
  if (!Has(name)) {
    return NotFound("checkpoint ", prefix_, " has no variable ", name,
                    "; restore a checkpoint of this model");
  }
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(FindEntry(name, name, &entry));
  TensorShape stored;
  if (entry.shape().unknown_rank() ||
      !TensorShape::BuildTensorShape(entry.shape(), &stored).ok()) {
    return Damaged(name, "have a valid entry in the index, got a bad shape");
  }
  if (entry.dtype() != dtype || stored != shape || entry.slices_size() > 0) {
    return InvalidArgument(
        "variable ", name, " of ", prefix_, " must be ", DataTypeString(dtype),
        " of shape ", shape.DebugString(), ", got ",
        DataTypeString(entry.dtype()), " of shape ", stored.DebugString(),
        entry.slices_size() > 0 ? " in slices" : "",
        "; restore a checkpoint of this model");
  }
  tensor->name = name;
  tensor->dtype = dtype;
  tensor->rows = shape.num_elements();
  tensor->width = 1;
  tensor->row_bytes = DataTypeSize(dtype);
  tensor->ranges.clear();
  if (tensor->rows == 0) return Status();
  return AddRange(entry, 0, tensor->rows, tensor);
}

Status CheckpointFile::AddRange(const BundleEntryProto& entry, int64_t begin,
                                int64_t end, StoredTensor* tensor) {
  const DataFile* file;
  TF_RETURN_IF_ERROR(OpenData(tensor->name, entry.shard_id(), &file));
  const uint64_t size = (end - begin) * tensor->row_bytes;
  if (static_cast<uint64_t>(entry.size()) != size) {
    return Damaged(tensor->name,
                   StrCat("take ", size, " bytes for its rows ", begin, " to ",
                          end, ", got ", entry.size()));
  }
  TF_RETURN_IF_ERROR(CheckInside(tensor->name, *file, entry));
  tensor->ranges.push_back({begin, end, file,
                            static_cast<uint64_t>(entry.offset()),
                            entry.crc32c()});
  return Status();
}

Status CheckpointFile::AddSlices(const BundleEntryProto& entry, int rank,
                                 StoredTensor* tensor) {
  const std::string& name = tensor->name;
  for (const tensorflow::TensorSliceProto& proto : entry.slices()) {
    TensorSlice slice;
    if (!TensorSlice::BuildTensorSlice(proto, &slice).ok() ||
        slice.dims() != rank) {
      return Damaged(name, "have valid slices, got one that cannot be read");
    }
    if (rank == 2 && !slice.IsFullAt(1) &&
        (slice.start(1) != 0 || slice.length(1) != tensor->width)) {
      return InvalidArgument("tensor ", name, " of ", prefix_,
                             " must be cut between rows only, got a slice ",
                             slice.DebugString());
    }
    const int64_t begin = slice.start(0);
    const int64_t length = slice.IsFullAt(0) ? tensor->rows : slice.length(0);
    if (begin < 0 || length < 0 || begin > tensor->rows ||
        length > tensor->rows - begin) {
      return Damaged(name, StrCat("have slices of its ", tensor->rows,
                                  " rows, got ", slice.DebugString()));
    }
    if (length == 0) continue;
    BundleEntryProto part;
    TF_RETURN_IF_ERROR(
        FindEntry(tensorflow::checkpoint::EncodeTensorNameSlice(name, slice),
                  name, &part));
    TF_RETURN_IF_ERROR(AddRange(part, begin, begin + length, tensor));
  }
  std::vector<StoredTensor::ByteRange>& ranges = tensor->ranges;
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  int64_t end = 0;
  size_t good = 0;
  for (; good < ranges.size() && ranges[good].begin == end; ++good) {
    end = ranges[good].end;
  }
  if (good == ranges.size() && end == tensor->rows) return Status();
  return Damaged(name, StrCat("have each of its ", tensor->rows,
                              " rows in one slice, got a gap or an overlap at "
                              "row ",
                              end));
}

Status CheckpointFile::OpenData(const std::string& tensor, int32_t number,
                                const DataFile** file) {
  if (number < 0 || number >= num_data_files_) {
    return Damaged(tensor, StrCat("be in one of ", num_data_files_,
                                  " data files, got number ", number));
  }
  auto it = data_files_.find(number);
  if (it == data_files_.end()) {
    DataFile opened;
    opened.name = tensorflow::DataFilename(prefix_, number, num_data_files_);
    Env* env = Env::Default();
    uint64_t bytes;
    TF_RETURN_IF_ERROR(CheckRegular(opened.name));
    TF_RETURN_IF_ERROR(env->GetFileSize(opened.name, &bytes));
    opened.bytes = bytes;
    TF_RETURN_IF_ERROR(env->NewRandomAccessFile(opened.name, &opened.file));
    it = data_files_.emplace(number, std::move(opened)).first;
  }
  *file = &it->second;
  return Status();
}

// The file holds: length (varint), masked CRC-32C of the length (fixed 32), and
// the bytes. The checksum of the entry covers the length as fixed 32, the
// masked checksum and the bytes. Source: WriteStringTensor in TensorFlow's
// tensor_bundle.cc.
Status CheckpointFile::ReadString(const std::string& name, std::string* value) {
  constexpr int64_t kMaxBytes = 4096;
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(FindEntry(name, name, &entry));
  if (entry.dtype() != DT_STRING || entry.shape().dim_size() != 0 ||
      entry.slices_size() != 0 || entry.size() > kMaxBytes ||
      entry.size() < 5) {
    return Damaged(name, StrCat("be a string of shape [] and at most ",
                                kMaxBytes, " bytes, got another tensor"));
  }
  const DataFile* file;
  TF_RETURN_IF_ERROR(OpenData(name, entry.shard_id(), &file));
  TF_RETURN_IF_ERROR(CheckInside(name, *file, entry));
  std::string bytes(entry.size(), '\0');
  TF_RETURN_IF_ERROR(ReadBytes(*file->file, file->name, "tensor " + name,
                               entry.offset(), bytes.size(), bytes.data()));
  absl::string_view rest = bytes;
  uint32_t length, length_checksum;
  if (!tensorflow::core::GetVarint32(&rest, &length) ||
      rest.size() != sizeof(length_checksum) + length) {
    return Damaged(name, "have the length that is stored with it");
  }
  std::copy_n(rest.data(), sizeof(length_checksum),
              reinterpret_cast<char*>(&length_checksum));
  uint32_t checksum = ExtendCrc32c(0, &length, sizeof(length));
  TF_RETURN_IF_ERROR(CompareChecksum(name, *file, length_checksum, checksum));
  checksum = ExtendCrc32c(checksum, rest.data(), rest.size());
  TF_RETURN_IF_ERROR(CompareChecksum(name, *file, entry.crc32c(), checksum));
  value->assign(rest.data() + sizeof(length_checksum), length);
  return Status();
}

Status CheckpointFile::ReadInteger(const std::string& name, int64_t* value) {
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(FindEntry(name, name, &entry));
  if (entry.dtype() != DT_INT64 || entry.shape().dim_size() != 0 ||
      entry.slices_size() != 0 || entry.size() != sizeof(*value)) {
    return InvalidArgument("tensor ", name, " of ", prefix_,
                           " must be an int64 of shape [], got another tensor; "
                           "restore a checkpoint of this model");
  }
  const DataFile* file;
  TF_RETURN_IF_ERROR(OpenData(name, entry.shard_id(), &file));
  TF_RETURN_IF_ERROR(CheckInside(name, *file, entry));
  char bytes[sizeof(*value)];
  TF_RETURN_IF_ERROR(ReadBytes(*file->file, file->name, "tensor " + name,
                               entry.offset(), sizeof(bytes), bytes));
  TF_RETURN_IF_ERROR(CompareChecksum(name, *file, entry.crc32c(),
                                     ExtendCrc32c(0, bytes, sizeof(bytes))));
  std::copy_n(bytes, sizeof(bytes), reinterpret_cast<char*>(value));
  return Status();
}

std::string CheckpointFile::TableNames() const {
  const std::string suffix = "-keys";
  std::set<std::string> names;
  for (entries_->Seek(""); entries_->Valid(); entries_->Next()) {
    std::string name(entries_->key());
    if (name.size() <= suffix.size() || !absl::EndsWith(name, suffix)) continue;
    name.resize(name.size() - suffix.size());
    names.insert(name.substr(0, name.find("/part_")));
  }
  std::string list;
  int listed = 0;
  for (const std::string& name : names) {
    // A slot, <table>/<slot>, has keys too but is not a table.
    const size_t slash = name.rfind('/');
    if (slash != std::string::npos && names.count(name.substr(0, slash))) {
      continue;
    }
    if (++listed > 8) return list + ", ...";
    StrAppend(&list, list.empty() ? "" : ", ", name);
  }
  return list.empty() ? "none" : list;
}

Status RowStream::Read(int64_t n, void* rows) {
  char* out = static_cast<char*>(rows);
  while (n > 0) {
    const StoredTensor::ByteRange& range = tensor_.ranges[range_];
    const int64_t rows_read = std::min(n, range.end - next_row_);
    const size_t bytes = rows_read * tensor_.row_bytes;
    TF_RETURN_IF_ERROR(
        ReadBytes(*range.file->file, range.file->name, "tensor " + tensor_.name,
                  range.offset + (next_row_ - range.begin) * tensor_.row_bytes,
                  bytes, out));
    checksum_ = ExtendCrc32c(checksum_, out, bytes);
    next_row_ += rows_read;
    out += bytes;
    n -= rows_read;
    if (next_row_ < range.end) continue;
    TF_RETURN_IF_ERROR(
        CompareChecksum(tensor_.name, *range.file, range.checksum, checksum_));
    checksum_ = 0;
    ++range_;
  }
  return Status();
}

Status RowStream::ReadFloats(int64_t n, float* rows) {
  if (tensor_.dtype == DT_FLOAT) return Read(n, rows);
  const NarrowType type =
      tensor_.dtype == DT_HALF ? NarrowType::kHalf : NarrowType::kBFloat16;
  // In parts, so that the numbers of a part are read, checked and widened while
  // they are in the cache.
  const int64_t most = std::max<int64_t>(1, kWidenedAtOnce / tensor_.width);
  for (int64_t at = 0; at < n; at += most) {
    const int64_t size = std::min(most, n - at);
    if (tensor_.dtype == DT_UINT8) {
      TF_RETURN_IF_ERROR(ReadBytesAsFloats(size, rows + at * tensor_.width));
      continue;
    }
    narrow_floats_.resize(size * tensor_.width);
    TF_RETURN_IF_ERROR(Read(size, narrow_floats_.data()));
    WidenFloats(type, narrow_floats_.data(),
                static_cast<int>(narrow_floats_.size()),
                rows + at * tensor_.width);
  }
  return Status();
}

Status RowStream::ReadBytesAsFloats(int64_t n, float* rows) {
  const int64_t width = tensor_.width;
  bytes_.resize(n * width);
  scales_.resize(n * 2);
  TF_RETURN_IF_ERROR(Read(n, bytes_.data()));
  TF_RETURN_IF_ERROR(scale_offset_->Read(n, scales_.data()));
  for (int64_t i = 0; i < n; ++i) {
    DequantizeFloats(bytes_.data() + i * width,
                     {scales_[2 * i], scales_[2 * i + 1]},
                     static_cast<int>(width), rows + i * width);
  }
  return Status();
}

Status RowStream::ReadIntegers(int64_t n, int64_t* integers) {
  if (tensor_.dtype != DT_INT32) return Read(n, integers);
  narrow_.resize(n);
  TF_RETURN_IF_ERROR(Read(n, narrow_.data()));
  std::copy(narrow_.begin(), narrow_.end(), integers);
  return Status();
}

}  // namespace rec_estimator
