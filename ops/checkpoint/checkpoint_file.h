// SPDX-License-Identifier: Apache-2.0
// Restore, step 2: a validating reader for untrusted TensorFlow V2 checkpoints.
// Finds tensors in the index and reads their rows in bounded memory.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FILE_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/io/iterator.h"
#include "tensorflow/core/lib/io/table.h"
#include "tensorflow/core/platform/file_system.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"

namespace rec_estimator {

// DataLoss unless a file is a regular one: to open a FIFO, for example, may
// wait for ever. A file that does not exist passes, as do those of TensorFlow's
// other file systems.
absl::Status CheckRegular(absl::string_view name);

// A file <prefix>.data-00000-of-00002, which holds the bytes of tensors.
struct DataFile {
  std::string name;
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  uint64_t bytes;
};

// Where the rows of a tensor are stored. A vector is a matrix of width 1. A
// tensor that was written at once is one byte range, and one that was written
// in slices is several. Each range has its own checksum.
struct StoredTensor {
  struct ByteRange {
    int64_t begin, end;  // Rows in the range.
    const DataFile* file;
    uint64_t offset;    // Position of row `begin` in the file.
    uint32_t checksum;  // Masked CRC-32C of the whole range.
  };

  std::string name;
  tensorflow::DataType dtype;
  int64_t rows;
  int64_t width;  // Elements per row.
  uint64_t row_bytes;
  std::vector<ByteRange> ranges;  // Ordered, without gaps, none empty.
  // Only for rows of uint8: float [rows, 2], the scale and offset of each.
  std::shared_ptr<const StoredTensor> scale_offset;
};

// The index of one checkpoint. A damaged file is a DataLoss error, and a tensor
// of unexpected type or shape is InvalidArgument. Messages name the tensor and
// the file. For use by one thread; any thread may read the DataFiles.
class CheckpointFile {
 public:
  explicit CheckpointFile(const std::string& prefix) : prefix_(prefix) {}

  // Opens the index and reads all of it once; otherwise damage could look like
  // missing tensors. The other methods require that Open() returned OK.
  absl::Status Open();

  const std::string& prefix() const { return prefix_; }

  // Identifies the index by its size in bytes and CRC-32C, for example
  // "1234-9a8b7c6d". The index holds the checksums of all tensors, so the
  // identity covers the whole checkpoint. A copy has the same identity.
  const std::string& identity() const { return identity_; }

  bool Has(const std::string& name) const;
  // Whether it has a tensor whose name ends so. Reads the whole index.
  bool HasSuffix(const std::string& suffix) const;

  // Finds a tensor of one of the types and of the rank, 1 or 2. Checks that its
  // bytes are inside the data files. Does not read them.
  absl::Status Find(const std::string& name,
                    const std::vector<tensorflow::DataType>& dtypes, int rank,
                    StoredTensor* tensor);

  // Find() of a tensor [rows, width] that RowStream::ReadFloats reads, which
  // may have 8 bits if it is of values. `what` describes the width in messages.
  absl::Status FindMatrix(const std::string& name, int64_t width,
                          const char* what, StoredTensor* tensor);

  // Finds a variable of numbers that was written as a whole, of this type and
  // shape, as rows of one element.
  absl::Status FindVariable(const std::string& name, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape,
                            StoredTensor* tensor);

  // Reads a scalar string of at most 4 KiB.
  absl::Status ReadString(const std::string& name, std::string* value);

  // Reads an int64 of shape [].
  absl::Status ReadInteger(const std::string& name, int64_t* value);

  // Names of the tables in the file for messages: "a, b", at most eight, or
  // "none".
  std::string TableNames() const;

 private:
  absl::Status OpenData(const std::string& tensor, int32_t number,
                        const DataFile** file);
  // Finds the entry of the index under `key`. `name` is the tensor, for
  // messages.
  absl::Status FindEntry(const std::string& key, const std::string& name,
                         tensorflow::BundleEntryProto* entry) const;
  absl::Status AddRange(const tensorflow::BundleEntryProto& entry,
                        int64_t begin, int64_t end, StoredTensor* tensor);
  absl::Status AddSlices(const tensorflow::BundleEntryProto& entry, int rank,
                         StoredTensor* tensor);
  // Finds the scales and offsets of a tensor of bytes.
  absl::Status FindScales(StoredTensor* tensor);
  // DataLoss: "tensor <name> of <prefix> must <rule>; the file is damaged".
  absl::Status Damaged(const std::string& name, const std::string& rule) const;

  // Computes identity_ of the index file. `bytes` is its size.
  absl::Status ReadIdentity(uint64_t bytes);

  const std::string prefix_;
  std::string identity_;
  int32_t num_data_files_ = 0;
  std::unique_ptr<tensorflow::RandomAccessFile> index_file_;
  std::unique_ptr<tensorflow::table::Table> index_;
  std::unique_ptr<tensorflow::table::Iterator> entries_;
  std::map<int32_t, DataFile> data_files_;
};

// Reads a tensor's rows from first to last. Compares the checksum of a byte
// range when its last row is read. For use by one thread at a time, during the
// lifetime of the CheckpointFile.
class RowStream {
 public:
  explicit RowStream(StoredTensor tensor) : tensor_(std::move(tensor)) {
    if (tensor_.scale_offset == nullptr) return;
    scale_offset_ = std::make_unique<RowStream>(*tensor_.scale_offset);
  }

  const StoredTensor& tensor() const { return tensor_; }

  // Reads the next n rows as they are stored. Requires n rows to be left.
  absl::Status Read(int64_t n, void* rows);

  // Reads the next n rows of float, bfloat16, half or uint8 as floats.
  absl::Status ReadFloats(int64_t n, float* rows);

  // Reads the next n elements of a vector of int32 or int64 as int64.
  absl::Status ReadIntegers(int64_t n, int64_t* integers);

 private:
  // ReadFloats of rows of uint8, so few that they stay in the cache.
  absl::Status ReadBytesAsFloats(int64_t n, float* rows);

  StoredTensor tensor_;
  std::unique_ptr<RowStream> scale_offset_;
  size_t range_ = 0;       // The byte range that holds the next row.
  int64_t next_row_ = 0;   // The first row that has not been read.
  uint32_t checksum_ = 0;  // Unmasked CRC-32C of the range before next_row_.
  std::vector<int32_t> narrow_;
  std::vector<uint16_t> narrow_floats_;
  std::vector<uint8_t> bytes_;
  std::vector<float> scales_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FILE_H_
