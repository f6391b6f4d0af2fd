// SPDX-License-Identifier: Apache-2.0
// A TensorFlow V2 checkpoint as TableRestore reads it: piece by piece, in
// bounded memory, and believing nothing.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FILE_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/io/iterator.h"
#include "tensorflow/core/lib/io/table.h"
#include "tensorflow/core/platform/file_system.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"

namespace rec_estimator {

// One of the files prefix.data-00000-of-00002 that hold the bytes of tensors.
struct DataFile {
  std::string name;
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  uint64_t bytes;
};

// Where the rows of a tensor are, a vector being a matrix of width 1. Rows lie
// in one piece if the tensor was written at once, or in many if it was written
// in slices; each piece has its own checksum.
struct StoredTensor {
  struct Piece {
    int64_t begin, end;  // Rows.
    const DataFile* file;
    uint64_t offset;    // Of row `begin`.
    uint32_t checksum;  // Masked CRC-32C of the whole piece.
  };

  std::string name;
  tensorflow::DataType dtype;
  int64_t rows;
  int64_t width;  // Elements in a row.
  uint64_t row_bytes;
  std::vector<Piece> pieces;  // In order, without gaps, none empty.
};

// The index of one checkpoint. A damaged file is DataLoss, one with other
// tensors than ours InvalidArgument, each naming tensor and file. Used by one
// thread; the DataFiles by any.
class CheckpointFile {
 public:
  explicit CheckpointFile(const std::string& prefix) : prefix_(prefix) {}

  // Opens the index and reads all of it once, so that a damaged one is not
  // taken for one with fewer tensors. The other methods need it to be OK.
  tensorflow::Status Open();

  const std::string& prefix() const { return prefix_; }

  // What tells the index from any other one: its bytes and their CRC-32C, as
  // "1234-9a8b7c6d". As the index has the checksums of all tensors, this goes
  // for all that the checkpoint holds, and it is the same in a copy.
  const std::string& identity() const { return identity_; }

  bool Has(const std::string& name) const;

  // Where the tensor is. It must be of one of the types, of rank 1 or 2, and
  // its bytes inside the data files; they are not read yet.
  tensorflow::Status Find(const std::string& name,
                          const std::vector<tensorflow::DataType>& dtypes,
                          int rank, StoredTensor* tensor);

  // Find() of float [rows, width]. `what` says in messages what width is.
  tensorflow::Status FindMatrix(const std::string& name, int64_t width,
                                const char* what, StoredTensor* tensor);

  // The value of a string [], 4 KiB at most.
  tensorflow::Status ReadString(const std::string& name, std::string* value);

  // Names of what looks like a table, "a, b"; at most eight, or "none".
  std::string TableNames() const;

 private:
  tensorflow::Status OpenData(const std::string& tensor, int32_t number,
                              const DataFile** file);
  // The entry of the index under `key`; `name`: the tensor, for messages.
  tensorflow::Status FindEntry(const std::string& key, const std::string& name,
                               tensorflow::BundleEntryProto* entry) const;
  tensorflow::Status AddPiece(const tensorflow::BundleEntryProto& entry,
                              int64_t begin, int64_t end, StoredTensor* tensor);
  tensorflow::Status AddSlices(const tensorflow::BundleEntryProto& entry,
                               int rank, StoredTensor* tensor);
  // DataLoss: "tensor <name> of <prefix> must <rule>; the file is damaged".
  tensorflow::Status Damaged(const std::string& name,
                             const std::string& rule) const;

  // Computes identity_ of the index file, which has so many bytes.
  tensorflow::Status ReadIdentity(uint64_t bytes);

  const std::string prefix_;
  std::string identity_;
  int32_t num_data_files_ = 0;
  std::unique_ptr<tensorflow::RandomAccessFile> index_file_;
  std::unique_ptr<tensorflow::table::Table> index_;
  std::unique_ptr<tensorflow::table::Iterator> entries_;
  std::map<int32_t, DataFile> data_files_;
};

// Reads a tensor's rows from first to last. The checksum of each piece is
// compared when its last row is read. Used by one thread at a time, while the
// CheckpointFile lives.
class RowStream {
 public:
  explicit RowStream(StoredTensor tensor) : tensor_(std::move(tensor)) {}

  const StoredTensor& tensor() const { return tensor_; }

  // The next n rows, which must be there, as they are stored.
  tensorflow::Status Read(int64_t n, void* rows);

  // The same of a vector of int32 or int64, widened.
  tensorflow::Status ReadIntegers(int64_t n, int64_t* integers);

 private:
  StoredTensor tensor_;
  size_t piece_ = 0;
  int64_t at_ = 0;         // First row that has not been read.
  uint32_t checksum_ = 0;  // Of the rows of the piece before it, not masked.
  std::vector<int32_t> narrow_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FILE_H_
