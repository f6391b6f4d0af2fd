// SPDX-License-Identifier: Apache-2.0
// Kernels of table_ops.cc but those that read and write checkpoints, and what
// table_resource.h declares.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/core/base/parallel.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/strcat.h"

namespace rec_estimator {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::errors::FailedPrecondition;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::errors::ResourceExhausted;
using ::tensorflow::strings::StrCat;

std::string TableResource::DebugString() const {
  return StrCat("table ", name_, ": dim ", table_.dim(), ", ", table_.size(),
                " rows, ", table_.memory_bytes(), " bytes");
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

Status CheckInitialized(TableResource& table, const char* use) {
  if (table.table().bank_rows() > 0) return Status();
  return FailedPrecondition(
      "table ", table.name(), " must be initialized before ", use,
      ", got a table without initial vectors; run "
      "tf.compat.v1.global_variables_initializer() or restore a checkpoint");
}

Status CheckDim(TableResource& table, int64_t dim) {
  if (dim == table.table().dim()) return Status();
  return InvalidArgument("dim must be that of table ", table.name(), ", ",
                         table.table().dim(), ", got ", dim);
}

Status ReadSlots(OpKernelConstruction* context, std::vector<SlotSpec>* slots) {
  std::vector<std::string> names;
  std::vector<int64_t> widths;
  std::vector<float> initials;
  TF_RETURN_IF_ERROR(context->GetAttr("slot_names", &names));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_widths", &widths));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_initials", &initials));
  if (widths.size() != names.size() || initials.size() != names.size()) {
    return InvalidArgument(
        "slot_names, slot_widths and slot_initials must be of one length, got ",
        names.size(), ", ", widths.size(), " and ", initials.size());
  }
  std::set<std::string> seen;
  int64_t floats = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty() || !seen.insert(names[i]).second) {
      return InvalidArgument("slot_names must be distinct and not empty, got '",
                             names[i], "' at ", i);
    }
    // Bounds each width before the sum, which therefore cannot overflow.
    if (widths[i] < 1 || widths[i] > kMaxRowFloats ||
        (floats += widths[i]) > kMaxRowFloats) {
      return InvalidArgument("slot_widths must be >= 1 and at most ",
                             kMaxRowFloats, " in sum, got ", widths[i],
                             " for slot ", names[i]);
    }
    slots->push_back({names[i], static_cast<int>(widths[i]), initials[i]});
  }
  return Status();
}

Status TooManyRows(TableResource& table, int64_t too_many,
                   const char* what_is_left) {
  const int64_t most = table.table().rules().max_rows;
  return ResourceExhausted(
      "table ", table.name(), " must have at most ", most, " rows, got ",
      most + too_many, what_is_left,
      "; make device_vocabulary_size or host_vocabulary_size of create_table "
      "larger, or call init(use_dynamic_expansion=True)");
}

namespace {

// Largest filter_freq and max_element_size, as in options.py.
constexpr int64_t kMaxFilterFreq = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxElementSize = int64_t{1} << 40;

// The handle's attributes that say which keys own rows.
Status ReadFilter(OpKernelConstruction* context, FilterSpec* filter) {
  int64_t freq, coefficient, size;
  float probability;
  TF_RETURN_IF_ERROR(context->GetAttr("filter_freq", &freq));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_coefficient", &coefficient));
  TF_RETURN_IF_ERROR(context->GetAttr("max_element_size", &size));
  TF_RETURN_IF_ERROR(
      context->GetAttr("false_positive_probability", &probability));
  if (freq < 0 || freq > kMaxFilterFreq) {
    return InvalidArgument("filter_freq must be in [0, ", kMaxFilterFreq,
                           "], got ", freq);
  }
  if (coefficient < 1 || coefficient > kMaxFilterFreq) {
    return InvalidArgument("filter_coefficient must be in [1, ", kMaxFilterFreq,
                           "], got ", coefficient);
  }
  if (size < 0 || size > kMaxElementSize) {
    return InvalidArgument("max_element_size must be in [0, ", kMaxElementSize,
                           "], got ", size);
  }
  if (size == 0 ? probability != 0 : !(probability > 0 && probability < 1)) {
    return InvalidArgument(
        "false_positive_probability must be in (0, 1) with a max_element_size "
        "above 0, and 0 without, got ",
        probability, " with ", size);
  }
  if (size > 0 && freq == 0) {
    return InvalidArgument(
        "filter_freq must be >= 1 with a max_element_size, got 0 with ", size,
        "; where every key is admitted nothing is counted");
  }
  filter->threshold = static_cast<uint32_t>(freq);
  filter->coefficient = static_cast<uint32_t>(coefficient);
  filter->max_elements = size;
  filter->false_positive_rate = probability;
  return Status();
}

std::string Listed(const std::vector<int64_t>& keys) {
  return StrCat("[", absl::StrJoin(keys, ", "), "]");
}

// The handle's attributes that RowRules has.
Status ReadRules(OpKernelConstruction* context, RowRules* rules) {
  TF_RETURN_IF_ERROR(context->GetAttr("max_rows", &rules->max_rows));
  TF_RETURN_IF_ERROR(context->GetAttr("has_padding_key", &rules->has_padding));
  TF_RETURN_IF_ERROR(context->GetAttr("frozen_keys", &rules->frozen_keys));
  if (rules->max_rows < 0) {
    return InvalidArgument("max_rows must be >= 0, got ", rules->max_rows);
  }
  std::set<int64_t> seen;
  for (const int64_t key : rules->frozen_keys) {
    if (!seen.insert(key).second) {
      return InvalidArgument("frozen_keys must be distinct, got ", key,
                             " twice");
    }
  }
  return Status();
}

class TableHandleOp : public tensorflow::ResourceOpKernel<TableResource> {
 public:
  explicit TableHandleOp(OpKernelConstruction* context)
      : ResourceOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, context->GetAttr("default_value", &default_value_));
    OP_REQUIRES(
        context, dim_ >= 1 && dim_ <= kMaxRowFloats,
        InvalidArgument("dim must be in [1, ", kMaxRowFloats, "], got ", dim_));
    OP_REQUIRES_OK(context, ReadFilter(context, &filter_));
    OP_REQUIRES_OK(context, ReadRules(context, &rules_));
  }

 private:
  Status CreateResource(TableResource** resource) override
      TF_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return OrResourceExhausted(cinfo_.name(), [&] {
      *resource = new TableResource(cinfo_.name(), static_cast<int>(dim_),
                                    default_value_, filter_, rules_);
      return Status();
    });
  }

  Status VerifyResource(TableResource* resource) override {
    const EmbeddingTable& table = resource->table();
    const auto must_be = [&](const char* attr, auto present, auto given) {
      return InvalidArgument(attr, " of table ", resource->name(), " must be ",
                             present, ", as it was made with, got ", given);
    };
    if (table.dim() != dim_) return must_be("dim", table.dim(), dim_);
    // Bits, not ==: a NaN equals itself here.
    const float present = resource->default_value();
    if (std::memcmp(&present, &default_value_, sizeof(float)) != 0) {
      return must_be("default_value", present, default_value_);
    }
    const FilterSpec& filter = table.filter();
    if (filter.threshold != filter_.threshold) {
      return must_be("filter_freq", filter.threshold, filter_.threshold);
    }
    if (filter.coefficient != filter_.coefficient) {
      return must_be("filter_coefficient", filter.coefficient,
                     filter_.coefficient);
    }
    if (filter.max_elements != filter_.max_elements) {
      return must_be("max_element_size", filter.max_elements,
                     filter_.max_elements);
    }
    if (filter.false_positive_rate != filter_.false_positive_rate) {
      return must_be("false_positive_probability",
                     static_cast<float>(filter.false_positive_rate),
                     static_cast<float>(filter_.false_positive_rate));
    }
    const RowRules& rules = table.rules();
    if (rules.max_rows != rules_.max_rows) {
      return must_be("max_rows", rules.max_rows, rules_.max_rows);
    }
    if (rules.has_padding != rules_.has_padding) {
      return must_be("has_padding_key", rules.has_padding, rules_.has_padding);
    }
    if (rules.frozen_keys != rules_.frozen_keys) {
      return must_be("frozen_keys", Listed(rules.frozen_keys),
                     Listed(rules_.frozen_keys));
    }
    return Status();
  }

  int64_t dim_ = 0;
  float default_value_ = 0.0f;
  FilterSpec filter_;
  RowRules rules_;
};

class TableInitializeOp : public OpKernel {
 public:
  explicit TableInitializeOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("only_new", &only_new_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* bank;
    OP_REQUIRES_OK(context, context->input("bank", &bank));

    OP_REQUIRES(context,
                TensorShapeUtils::IsMatrix(bank->shape()) &&
                    bank->dim_size(0) >= 1 &&
                    bank->dim_size(1) == table->table().dim(),
                InvalidArgument(
                    "bank of table ", table->name(),
                    " must be [b, dim], b >= 1, dim = ", table->table().dim(),
                    ", got shape ", bank->shape().DebugString()));

    OP_REQUIRES_OK(
        context, OrResourceExhausted(table->name(), [&] {
          std::lock_guard<std::shared_mutex> lock(table->replace_mutex());
          if (only_new_ && table->table().bank_rows() > 0) return Status();
          table->table().SetBank(bank->flat<float>().data(), bank->dim_size(0));
          table->table().Clear();
          return Status();
        }));
  }

 private:
  bool only_new_ = false;
};

class TableIsInitializedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));

    Tensor* is_initialized;
    OP_REQUIRES_OK(context,
                   context->allocate_output("is_initialized", TensorShape({}),
                                            &is_initialized));

    is_initialized->scalar<bool>()() = table->table().bank_rows() > 0;
  }
};

class TableStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));

    Tensor *size, *total_count, *capacity, *memory_bytes;
    OP_REQUIRES_OK(context,
                   context->allocate_output("size", TensorShape({}), &size));
    OP_REQUIRES_OK(context, context->allocate_output(
                                "total_count", TensorShape({}), &total_count));
    OP_REQUIRES_OK(context, context->allocate_output(
                                "capacity", TensorShape({}), &capacity));
    OP_REQUIRES_OK(context,
                   context->allocate_output("memory_bytes", TensorShape({}),
                                            &memory_bytes));

    size->scalar<int64_t>()() = table->table().size();
    total_count->scalar<int64_t>()() = table->table().total_count();
    capacity->scalar<int64_t>()() = table->table().capacity();
    memory_bytes->scalar<int64_t>()() = table->table().memory_bytes();
  }
};

// Something of the table per key.
template <typename T>
class PerKeyOp : public OpKernel {
 public:
  PerKeyOp(OpKernelConstruction* context, const char* output)
      : OpKernel(context), output_(output) {}

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* keys;
    OP_REQUIRES_OK(context, context->input("keys", &keys));

    Tensor* out;
    OP_REQUIRES_OK(context,
                   context->allocate_output(output_, keys->shape(), &out));

    OP_REQUIRES_OK(context, Read(*table, keys->flat<int64_t>().data(),
                                 keys->NumElements(), out->flat<T>().data()));
  }

 private:
  virtual Status Read(TableResource& table,
                      const int64_t* keys,  // (n)
                      size_t n,
                      T* out) const = 0;  // (n)

  const char* const output_;
};

class TableFrequenciesOp : public PerKeyOp<int64_t> {
 public:
  explicit TableFrequenciesOp(OpKernelConstruction* context)
      : PerKeyOp(context, "frequencies") {}

 private:
  Status Read(TableResource& table, const int64_t* keys, size_t n,
              int64_t* frequencies) const override {
    table.table().Frequencies(keys, n, frequencies);
    return Status();
  }
};

class TableVersionsOp : public PerKeyOp<int64_t> {
 public:
  explicit TableVersionsOp(OpKernelConstruction* context)
      : PerKeyOp(context, "versions") {}

 private:
  Status Read(TableResource& table, const int64_t* keys, size_t n,
              int64_t* versions) const override {
    table.table().Versions(keys, n, versions);
    return Status();
  }
};

class TableAdmitsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor *keys, *counted_keys;
    OP_REQUIRES_OK(context, context->input("keys", &keys));
    OP_REQUIRES_OK(context, context->input("counted_keys", &counted_keys));

    Tensor* admits;
    OP_REQUIRES_OK(context,
                   context->allocate_output("admits", keys->shape(), &admits));

    const int64_t n = keys->NumElements(), m = counted_keys->NumElements();
    const int64_t* all_keys = keys->flat<int64_t>().data();
    bool* all_admits = admits->flat<bool>().data();
    Tensor keys_and_counted, admits_and_counted;
    if (m > 0) {
      const TensorShape all({n + m});
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_INT64, all,
                                                     &keys_and_counted));
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_BOOL, all,
                                                     &admits_and_counted));
      int64_t* copy = keys_and_counted.flat<int64_t>().data();
      std::copy_n(all_keys, n, copy);
      std::copy_n(counted_keys->flat<int64_t>().data(), m, copy + n);
      all_keys = copy;
      all_admits = admits_and_counted.flat<bool>().data();
    }
    OP_REQUIRES(context, table->table().Admits(all_keys, n + m, all_admits),
                ResourceExhausted("keys of table ", table->name(),
                                  " must be few enough to be counted, got no "
                                  "memory for ",
                                  n + m));
    if (m > 0) std::copy_n(all_admits, n, admits->flat<bool>().data());
  }
};

class TableContainsOp : public PerKeyOp<bool> {
 public:
  explicit TableContainsOp(OpKernelConstruction* context)
      : PerKeyOp(context, "owns_row") {}

 private:
  Status Read(TableResource& table, const int64_t* keys, size_t n,
              bool* owns_row) const override {
    table.table().Contains(keys, n, owns_row);
    return Status();
  }
};

class TableEvictOp : public OpKernel {
 public:
  explicit TableEvictOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("steps_to_live", &steps_to_live_));
    OP_REQUIRES_OK(context,
                   context->GetAttr("l2_weight_threshold", &threshold_));
    const bool by_steps = steps_to_live_ != -1, by_values = threshold_ != -1;
    OP_REQUIRES(context, by_steps != by_values,
                InvalidArgument("steps_to_live or l2_weight_threshold must be "
                                "given, and not both, got ",
                                steps_to_live_, " and ", threshold_));
    OP_REQUIRES(
        context, !by_steps || steps_to_live_ >= 0,
        InvalidArgument("steps_to_live must be >= 0, got ", steps_to_live_));
    OP_REQUIRES(context,
                !by_values || (threshold_ > 0 && std::isfinite(threshold_)),
                InvalidArgument("l2_weight_threshold must be finite and above "
                                "0, got ",
                                threshold_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* global_step;
    OP_REQUIRES_OK(context, context->input("global_step", &global_step));

    OP_REQUIRES(context, TensorShapeUtils::IsScalar(global_step->shape()),
                InvalidArgument("global_step must be [], got shape ",
                                global_step->shape().DebugString()));
    const int64_t step = global_step->scalar<int64_t>()();
    OP_REQUIRES(
        context, steps_to_live_ == -1 || step >= 0,
        InvalidArgument("global_step must be >= 0 to evict by it, got ", step));

    Tensor* evicted;
    OP_REQUIRES_OK(context, context->allocate_output("evicted", TensorShape({}),
                                                     &evicted));

    OP_REQUIRES_OK(
        context, OrResourceExhausted(table->name(), [&] {
          std::shared_lock<std::shared_mutex> lock(table->replace_mutex());
          // Both are >= 0, so that their difference does not overflow. Versions
          // below it are more than steps_to_live steps old.
          evicted->scalar<int64_t>()() =
              steps_to_live_ == -1
                  ? table->table().EvictSmaller(threshold_)
                  : table->table().EvictOlder(step - steps_to_live_, step);
          return Status();
        }));
  }

 private:
  int64_t steps_to_live_ = -1;
  float threshold_ = -1.0f;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableAdmits").Device(DEVICE_CPU),
                        TableAdmitsOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableContains").Device(DEVICE_CPU),
                        TableContainsOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableEvict").Device(DEVICE_CPU),
                        TableEvictOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableHandle").Device(DEVICE_CPU),
                        TableHandleOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableInitialize").Device(DEVICE_CPU),
                        TableInitializeOp);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableIsInitialized").Device(DEVICE_CPU),
    TableIsInitializedOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableStats").Device(DEVICE_CPU),
                        TableStatsOp);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableFrequencies").Device(DEVICE_CPU),
    TableFrequenciesOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableVersions").Device(DEVICE_CPU),
                        TableVersionsOp);

}  // namespace
}  // namespace rec_estimator
