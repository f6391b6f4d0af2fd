// What a restore believes of a checkpoint: nothing it has not checked.
#include "checkpoint_file.h"

#include <algorithm>
#include <set>

#include "table_resource.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/strcat.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"

namespace rec_estimator {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::errors::DataLoss;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::strings::StrAppend;
using ::tensorflow::strings::StrCat;

CheckpointFile::CheckpointFile(OpKernelContext* context,
                               const std::string& prefix)
    : context_(context),
      prefix_(prefix),
      reader_(tensorflow::Env::Default(), prefix) {}

Status CheckpointFile::ReadKeys(const std::string& name,
                                std::vector<int64_t>* keys) {
  Tensor tensor;
  TF_RETURN_IF_ERROR(Read(name, {DT_INT64, DT_INT32}, 1, &tensor));
  keys->resize(tensor.NumElements());
  if (tensor.dtype() == DT_INT32) {
    const int32_t* data = tensor.flat<int32_t>().data();
    std::copy_n(data, keys->size(), keys->data());
  } else {
    const int64_t* data = tensor.flat<int64_t>().data();
    std::copy_n(data, keys->size(), keys->data());
  }
  return Status();
}

Status CheckpointFile::ReadMatrix(const std::string& name, int64_t width,
                                  const char* what, Tensor* tensor) {
  TF_RETURN_IF_ERROR(Read(name, {DT_FLOAT}, 2, tensor));
  if (tensor->dim_size(1) == width) return Status();
  return InvalidArgument("tensor ", name, " of ", prefix_, " must have ", width,
                         " columns, the ", what, ", got ", tensor->dim_size(1));
}

Status CheckpointFile::ReadRows(const std::string& name, int64_t n,
                                int64_t width, const char* what,
                                Tensor* tensor) {
  TF_RETURN_IF_ERROR(ReadMatrix(name, width, what, tensor));
  return tensor->dim_size(0) == n ? Status() : WrongLength(name, n, *tensor);
}

Status CheckpointFile::ReadPerKey(const std::string& name, int64_t n,
                                  std::vector<int64_t>* numbers) {
  if (!Has(name)) return Status();
  Tensor tensor;
  TF_RETURN_IF_ERROR(Read(name, {DT_INT64}, 1, &tensor));
  const int64_t size = tensor.NumElements();
  if (size != n && size != 0) return WrongLength(name, n, tensor);
  const int64_t* data = tensor.flat<int64_t>().data();
  numbers->assign(data, data + size);
  return Status();
}

Status CheckpointFile::CheckOffsets(const std::string& name, int64_t n) {
  if (!Has(name)) return Status();
  Tensor tensor;
  TF_RETURN_IF_ERROR(Read(name, {DT_INT32}, 1, &tensor));
  const int64_t size = tensor.NumElements();
  const int32_t* offsets = tensor.flat<int32_t>().data();
  if (size == kBuckets + 1 && offsets[0] == 0 && offsets[kBuckets] == n &&
      std::is_sorted(offsets, offsets + size)) {
    return Status();
  }
  return DataLoss("tensor ", name, " of ", prefix_, " must be ", kBuckets + 1,
                  " offsets from 0 to ", n, ", got ", size,
                  size > 0 ? StrCat(" up to ", offsets[size - 1]) : "",
                  "; the file is damaged");
}

std::string CheckpointFile::TableNames() {
  const std::string suffix = "-keys";
  std::set<std::string> names;
  for (reader_.Seek(""); reader_.Valid(); reader_.Next()) {
    std::string name(reader_.key());
    if (name.size() <= suffix.size() ||
        name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
      continue;
    }
    name.resize(name.size() - suffix.size());
    names.insert(name.substr(0, name.find("/part_")));
  }
  std::string list;
  int listed = 0;
  for (const std::string& name : names) {
    // table/slot has keys as well, and is no table.
    const size_t slash = name.rfind('/');
    if (slash != std::string::npos && names.count(name.substr(0, slash))) {
      continue;
    }
    if (++listed > 8) return list + ", ...";
    StrAppend(&list, list.empty() ? "" : ", ", name);
  }
  return list.empty() ? "none" : list;
}

Status CheckpointFile::Read(const std::string& name,
                            const std::vector<DataType>& dtypes, int rank,
                            Tensor* tensor) {
  DataType dtype = dtypes[0];
  TensorShape shape;
  TF_RETURN_IF_ERROR(Describe(name, &dtype, &shape));
  if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
    return InvalidArgument("tensor ", name, " of ", prefix_, " must be ",
                           DataTypeString(dtypes[0]), ", got ",
                           DataTypeString(dtype));
  }
  if (shape.dims() != rank) {
    return InvalidArgument("tensor ", name, " of ", prefix_,
                           " must be of rank ", rank, ", got shape ",
                           shape.DebugString());
  }
  // Refuses what no memory can hold, where Tensor's constructor would crash.
  TF_RETURN_IF_ERROR(context_->allocate_temp(dtype, shape, tensor));
  return reader_.Lookup(name, tensor);
}

// Type and shape of a tensor. Not LookupDtypeAndShape(), which crashes the
// process on an invalid shape.
Status CheckpointFile::Describe(const std::string& name, DataType* dtype,
                                TensorShape* shape) {
  tensorflow::BundleEntryProto entry;
  reader_.Seek(name);
  if (!reader_.Valid() || reader_.key() != name ||
      !entry.ParseFromArray(reader_.value().data(),
                            static_cast<int>(reader_.value().size())) ||
      !TensorShape::BuildTensorShape(entry.shape(), shape).ok()) {
    return DataLoss("tensor ", name, " must have a valid entry in ", prefix_,
                    ", got one that cannot be read; the file is damaged");
  }
  *dtype = entry.dtype();
  return Status();
}

Status CheckpointFile::WrongLength(const std::string& name, int64_t n,
                                   const Tensor& tensor) {
  return DataLoss("tensor ", name, " of ", prefix_, " must have ", n,
                  " rows, one per key, got ", tensor.dim_size(0),
                  "; the file is damaged");
}

}  // namespace rec_estimator
