// A TensorFlow V2 checkpoint as TableRestore reads it.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_FILE_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace rec_estimator {

// Reads whole tensors of one checkpoint and believes nothing it finds there: a
// damaged file is DataLoss, one with other tensors than ours InvalidArgument,
// each naming tensor and file. Used by one thread.
class CheckpointFile {
 public:
  // Memory comes from `context`, which outlives this.
  CheckpointFile(tensorflow::OpKernelContext* context,
                 const std::string& prefix);

  // Whether the file can be read at all; the other methods need it to be OK.
  tensorflow::Status status() const { return reader_.status(); }
  const std::string& prefix() const { return prefix_; }

  bool Has(const std::string& name) { return reader_.Contains(name); }

  // The tensors of the methods below are ones that the file Has().

  // int64 [n], int32 widened.
  tensorflow::Status ReadKeys(const std::string& name,
                              std::vector<int64_t>* keys);

  // float [rows, width]. `what` says in messages what the width is.
  tensorflow::Status ReadMatrix(const std::string& name, int64_t width,
                                const char* what, tensorflow::Tensor* tensor);

  // The same with one row for each of n keys.
  tensorflow::Status ReadRows(const std::string& name, int64_t n, int64_t width,
                              const char* what, tensorflow::Tensor* tensor);

  // int64 [n]; left empty if the file does not have it, or has it as [0].
  tensorflow::Status ReadPerKey(const std::string& name, int64_t n,
                                std::vector<int64_t>* numbers);

  // DataLoss if the file has it and it is not the bucket offsets of n keys.
  tensorflow::Status CheckOffsets(const std::string& name, int64_t n);

  // Names of what looks like a table, "a, b"; at most eight, or "none".
  std::string TableNames();

 private:
  // Reads a tensor of one of the types and of this rank, all of it.
  tensorflow::Status Read(const std::string& name,
                          const std::vector<tensorflow::DataType>& dtypes,
                          int rank, tensorflow::Tensor* tensor);
  tensorflow::Status Describe(const std::string& name,
                              tensorflow::DataType* dtype,
                              tensorflow::TensorShape* shape);
  tensorflow::Status WrongLength(const std::string& name, int64_t n,
                                 const tensorflow::Tensor& tensor);

  tensorflow::OpKernelContext* const context_;
  const std::string prefix_;
  tensorflow::BundleReader reader_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_FILE_H_
