// SPDX-License-Identifier: Apache-2.0
// Implements table_resource.h.
#include "ops/table/table_resource.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/core/rows/row_format.h"
#include "ops/core/step/past_rows.h"
#include "ops/kernel/errors.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShapeUtils;

std::string TableResource::DebugString() const {
  return StrCat("table ", name_, ": dim ", table_.dim(), ", ", table_.size(),
                " rows, ", table_.memory_bytes(), " bytes");
}

SavedRows TableResource::saved_rows() const {
  const std::lock_guard<std::mutex> lock(saved_rows_mutex_);
  return saved_rows_;
}

void TableResource::set_saved_rows(SavedRows rows) {
  const std::lock_guard<std::mutex> lock(saved_rows_mutex_);
  saved_rows_ = std::move(rows);
}

Status FindTable(OpKernelContext* context, const Tensor& handle,
                 TablePtr* table) {
  if (handle.dtype() != tensorflow::DT_RESOURCE ||
      !TensorShapeUtils::IsScalar(handle.shape())) {
    return InvalidArgument("table must be a handle of shape [], got shape ",
                           handle.shape().DebugString());
  }
  return tensorflow::LookupResource(
      context, handle.scalar<tensorflow::ResourceHandle>()(), table);
}

Status FindTable(OpKernelContext* context, TablePtr* table) {
  const Tensor* handle;
  TF_RETURN_IF_ERROR(context->input("table", &handle));
  return FindTable(context, *handle, table);
}

void TableResource::BeginReplacement() {
  // First, so that new readers refuse and the lock is soon free.
  replacements_.fetch_add(1);
  refreshed_to_.reset();
  ready_.store(false);
  const std::lock_guard<SharedMutex> lock(read_mutex_);
  kept_.clear();
}

void TableResource::LetWriterIn() const {
  // Longer than lookups take, in case the writer waits for a thread that reads
  // another table and waits here.
  constexpr std::chrono::milliseconds kLongest{20};
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (is_closing_.load(std::memory_order_relaxed) &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
}

size_t TableResource::MostKept() const {
  // So a step that does not end adds a quarter to the memory of a large table.
  constexpr size_t kFew = size_t{1} << 16;
  return std::max(kFew, static_cast<size_t>(table_.size()) / 4);
}

void TableResource::EndKept(int64_t oldest, size_t most,
                            std::list<KeptRows>* ended) {
  size_t rows = 0;
  auto needed = kept_.end();
  while (needed != kept_.begin()) {
    const auto before = std::prev(needed);
    rows += before->rows->size();
    // The last ones are in memory anyway.
    const bool are_too_many = rows > most && needed != kept_.end();
    if (before->until <= oldest || are_too_many) break;
    needed = before;
  }
  if (needed == kept_.begin()) return;
  readable_from_ = std::prev(needed)->until;
  ended->splice(ended->end(), kept_, kept_.begin(), needed);
}

Status CheckInitialized(TableResource& table, const char* use) {
  if (table.ready()) return Status();
  if (table.replacements() > 0) {
    return Aborted("table ", table.name(), " must have all its rows before ",
                   use,
                   ", got one that is being restored or failed to restore"
                   "; try again, or restore a checkpoint that is whole");
  }
  return FailedPrecondition(
      "table ", table.name(), " must be initialized before ", use,
      ", got one that is new; run "
      "tf.compat.v1.global_variables_initializer() or restore a checkpoint; a "
      "frozen graph has no rows, export with portable=True instead");
}

Status TableReader::Open(TableResource* table, const StepTime* time) {
  if (table->is_closing_.load(std::memory_order_relaxed)) {
    table->LetWriterIn();
  }
  lock_ = std::shared_lock<SharedMutex>(table->read_mutex_);
  TF_RETURN_IF_ERROR(CheckInitialized(*table, "it is read"));
  if (time == nullptr) return Status();
  if (time->time() < table->readable_from_) {
    return Aborted("table ", table->name(),
                   " must keep what a step reads until the step ends, got one "
                   "during which refreshes have replaced too many rows; run it "
                   "again");
  }
  for (auto kept = table->kept_.rbegin();
       kept != table->kept_.rend() && kept->until > time->time(); ++kept) {
    past_.push_back(kept->rows.get());
  }
  return Status();
}

void TableReader::Correct(const int64_t* keys, size_t n, UnknownKey unknown,
                          float* out) const {
  for (const PastRows* past : past_) past->Correct(keys, n, unknown, out);
}

void TableReader::Correct(const int64_t* keys, size_t n, bool* owns_row) const {
  for (const PastRows* past : past_) past->Correct(keys, n, owns_row);
}

Status CheckDim(TableResource& table, int64_t dim) {
  if (dim == table.table().dim()) return Status();
  return InvalidArgument("dim must be that of table ", table.name(), ", ",
                         table.table().dim(), ", got ", dim);
}

Status CheckValueDtype(TableResource& table, tensorflow::DataType value_dtype) {
  const tensorflow::DataType stored =
      DataTypeOf(table.table().rules().value.type);
  if (value_dtype == stored || value_dtype == tensorflow::DT_FLOAT) {
    return Status();
  }
  return InvalidArgument("value_dtype must be float or that of table ",
                         table.name(), ", ", DataTypeString(stored), ", got ",
                         DataTypeString(value_dtype));
}

Status CheckBank(TableResource& table, const Tensor& bank) {
  const int64_t dim = table.table().dim();
  if (TensorShapeUtils::IsMatrix(bank.shape()) && bank.dim_size(0) >= 1 &&
      bank.dim_size(1) == dim) {
    return CheckInitialVectors(table, bank.flat<float>().data(),
                               bank.dim_size(0));
  }
  return InvalidArgument("bank of table ", table.name(),
                         " must be [b, dim], b >= 1, dim = ", dim,
                         ", got shape ", bank.shape().DebugString());
}

Status CheckInitialVectors(TableResource& table, const float* bank,
                           int64_t rows) {
  const int dim = table.table().dim();
  const ValueSpec& value = table.table().rules().value;
  ValueRounding rounding(RowFormat(dim, value));
  for (int64_t r = 0; r < rows; ++r) {
    const int lost = rounding.FirstLost(bank + r * dim);
    if (lost < 0) continue;
    return InvalidArgument(
        "initial vectors of table ", table.name(), " must be finite in ",
        NameOf(value.type), ", got ", bank[r * dim + lost],
        "; choose float32, or bfloat16 in place of float16 and int8, for "
        "larger numbers, or another initializer");
  }
  return Status();
}

Status TooManyRows(TableResource& table, int64_t excess, const char* suffix) {
  const int64_t limit = table.table().rules().max_rows;
  return TooManyRows(table.name(), limit, limit + excess, suffix);
}

Status TooManyRows(const std::string& table, int64_t limit, int64_t rows,
                   const char* suffix) {
  return ResourceExhausted(
      "table ", table, " must have at most ", limit, " rows, got ", rows,
      suffix,
      "; make device_vocabulary_size, host_vocabulary_size or "
      "ssd_vocabulary_size of create_table larger, or call "
      "init(use_dynamic_expansion=True)");
}

Status NoMemoryToCount(TableResource& table, int64_t n) {
  return ResourceExhausted("keys of table ", table.name(),
                           " must fit into memory to be counted, got no memory "
                           "for ",
                           n, " keys; make the batch smaller");
}

Status NoMemoryForRows(TableResource& table, int64_t n) {
  return ResourceExhausted("table ", table.name(),
                           " must fit into memory, got no memory for ", n,
                           " rows of the checkpoint");
}

}  // namespace rec_estimator
