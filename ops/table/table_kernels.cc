// SPDX-License-Identifier: Apache-2.0
// Kernels of table_ops.cc: create, initialize and inspect a table.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/keys/key_copy.h"
#include "ops/core/rows/row_format.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/table/refresh_clock.h"
#include "ops/table/slot_attributes.h"
#include "ops/table/table_resource.h"
#include "ops/table/table_storage.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DataTypeString;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Largest filter_freq. options.py has the same limit.
constexpr int64_t kMaxFilterFreq = (int64_t{1} << 31) - 1;

// Reads and checks the handle's sketch, which graphs of older releases give as
// two attributes of a Bloom filter.
Status ReadSketch(OpKernelConstruction* context, SketchSpec* sketch) {
  std::string text;
  int64_t size;
  float probability;
  TF_RETURN_IF_ERROR(context->GetAttr("sketch", &text));
  TF_RETURN_IF_ERROR(context->GetAttr("max_element_size", &size));
  TF_RETURN_IF_ERROR(
      context->GetAttr("false_positive_probability", &probability));
  const bool has_attributes = size != 0 || probability != 0;
  if (!text.empty() && has_attributes) {
    return InvalidArgument(
        "max_element_size and false_positive_probability must be 0 with a "
        "sketch, got ",
        size, " and ", probability, " with ", text);
  }
  if (has_attributes) {
    *sketch = {"counting_bloom_filter",
               {{"max_element_size", static_cast<double>(size)},
                {"false_positive_probability", probability}}};
  } else if (!text.empty() && !ParseSketch(text, sketch)) {
    return InvalidArgument(
        "sketch must be a name and numbers, such as 'name a=1 b=0.5', got '",
        text, "'");
  }
  if (sketch->name.empty()) return Status();
  const std::string broken = CheckSketch(*sketch);
  return broken.empty() ? Status() : InvalidArgument(broken);
}

// Reads and checks the handle's attributes of the filter.
Status ReadFilter(OpKernelConstruction* context, FilterSpec* filter) {
  int64_t freq, coefficient;
  TF_RETURN_IF_ERROR(context->GetAttr("filter_freq", &freq));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_coefficient", &coefficient));
  if (freq < 0 || freq > kMaxFilterFreq) {
    return InvalidArgument("filter_freq must be in [0, ", kMaxFilterFreq,
                           "], got ", freq);
  }
  if (coefficient < 1 || coefficient > kMaxFilterFreq) {
    return InvalidArgument("filter_coefficient must be in [1, ", kMaxFilterFreq,
                           "], got ", coefficient);
  }
  TF_RETURN_IF_ERROR(ReadSketch(context, &filter->sketch));
  if (!filter->sketch.name.empty() && freq == 0) {
    return InvalidArgument(
        "filter_freq must be >= 1 with a sketch, got 0 with ",
        SketchText(filter->sketch),
        "; without a threshold there is nothing to count");
  }
  filter->threshold = static_cast<uint32_t>(freq);
  filter->coefficient = static_cast<uint32_t>(coefficient);
  return Status();
}

std::string Listed(const std::vector<int64_t>& keys) {
  return StrCat("[", absl::StrJoin(keys, ", "), "]");
}

constexpr const char* kPolicies[] = {"lfu", "lru", "lfu_decay"};

Status ReadCapacity(OpKernelConstruction* context, CapacitySpec* capacity) {
  std::string policy;
  TF_RETURN_IF_ERROR(context->GetAttr("capacity_rows", &capacity->max_rows));
  TF_RETURN_IF_ERROR(context->GetAttr("capacity_policy", &policy));
  TF_RETURN_IF_ERROR(
      context->GetAttr("capacity_half_life", &capacity->half_life));
  const auto known =
      std::find(std::begin(kPolicies), std::end(kPolicies), policy);
  if (known == std::end(kPolicies)) {
    return InvalidArgument("capacity_policy must be one of ",
                           absl::StrJoin(kPolicies, ", "), ", got ", policy);
  }
  capacity->policy =
      static_cast<CapacitySpec::Policy>(known - std::begin(kPolicies));
  if (capacity->max_rows < 0 || capacity->half_life < 1) {
    return InvalidArgument(
        "capacity_rows must be >= 0 and capacity_half_life >= 1, got ",
        capacity->max_rows, " and ", capacity->half_life);
  }
  return Status();
}

std::string CapacityText(const CapacitySpec& capacity) {
  return StrCat(capacity.max_rows, " rows by ", kPolicies[capacity.policy],
                " with half-life ", capacity.half_life);
}

// Reads and checks the handle's attributes that RowRules holds.
Status ReadRules(OpKernelConstruction* context, RowRules* rules) {
  TF_RETURN_IF_ERROR(context->GetAttr("max_rows", &rules->max_rows));
  TF_RETURN_IF_ERROR(ReadCapacity(context, &rules->capacity));
  TF_RETURN_IF_ERROR(context->GetAttr("has_padding_key", &rules->has_padding));
  TF_RETURN_IF_ERROR(context->GetAttr("frozen_keys", &rules->frozen_keys));
  int64_t rounding_seed;
  TF_RETURN_IF_ERROR(context->GetAttr("rounding_seed", &rounding_seed));
  tensorflow::DataType value_dtype;
  TF_RETURN_IF_ERROR(context->GetAttr("value_dtype", &value_dtype));
  tensorflow::DataType slot_dtype;
  TF_RETURN_IF_ERROR(context->GetAttr("slot_dtype", &slot_dtype));
  rules->value = {ValueTypeOf(value_dtype),
                  static_cast<uint64_t>(rounding_seed),
                  slot_dtype == tensorflow::DT_BFLOAT16};
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
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES_OK(context, context->GetAttr("owned_by_handle", &owned_));
    OP_REQUIRES_OK(context, context->GetAttr("version_unit", &version_unit_));
    OP_REQUIRES(
        context, dim_ >= 1 && dim_ <= kMaxRowFloats,
        InvalidArgument("dim must be in [1, ", kMaxRowFloats, "], got ", dim_));
    OP_REQUIRES_OK(context, ReadFilter(context, &filter_));
    OP_REQUIRES_OK(context, ReadRules(context, &rules_));
    OP_REQUIRES(
        context, !rules_.value.is_narrow() || dim_ <= kMaxNarrowDim,
        InvalidArgument("dim must be <= ", kMaxNarrowDim,
                        " with values or slots of 16 or 8 bits, got ", dim_,
                        "; leave value_dtype and slot_dtype out"));
    const ValueType type = rules_.value.type;
    OP_REQUIRES(
        context,
        ValueRounding(RowFormat(1, rules_.value)).FirstLost(&default_value_) <
            0,
        InvalidArgument("default_value must be finite in ", NameOf(type),
                        ", got ", default_value_,
                        "; choose float32, or bfloat16 in place of float16 and "
                        "int8, for larger numbers"));
    OP_REQUIRES_OK(context, storage_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("refreshable", &is_refreshable_));
    if (is_refreshable_) {
      OP_REQUIRES_OK(context, RefreshClock::Find(context, &clock_));
    }
  }

  // Makes a handle only once for each table: a handle is several strings, and
  // all tables of a step would make theirs one after the other.
  void Compute(OpKernelContext* context) override {
    if (owned_) return MakeOwned(context);
    if (get_resource() != nullptr) {
      const tensorflow::tf_shared_lock lock(handle_mutex_);
      if (handle_.NumElements() == 1) return context->set_output(0, handle_);
    }
    ResourceOpKernel::Compute(context);
    if (!context->status().ok()) return;
    const tensorflow::mutex_lock lock(handle_mutex_);
    handle_ = *context->mutable_output(0);
  }

 private:
  // Makes a table that lives as long as copies of the handle, in which no other
  // op finds it.
  void MakeOwned(OpKernelContext* context) {
    TableResource* table = nullptr;
    OP_REQUIRES_OK(context, MakeTable(shared_name_, &table));
    Tensor* handle;
    const Status status =
        context->allocate_output("table", TensorShape({}), &handle);
    if (!status.ok()) table->Unref();
    OP_REQUIRES_OK(context, status);
    // Takes the reference.
    handle->scalar<ResourceHandle>()() =
        ResourceHandle::MakeRefCountingHandle(table, context->device()->name());
  }

  Status MakeTable(const std::string& name, TableResource** resource) const {
    return OrStatus(name, [&] {
      TablePtr table(new TableResource(name, static_cast<int>(dim_),
                                       default_value_, version_unit_, filter_,
                                       rules_, storage_, clock_.get()));
      TF_RETURN_IF_ERROR(storage_.Open(table->name(), &table->table()));
      *resource = table.release();
      return Status();
    });
  }

  Status CreateResource(TableResource** resource) override
      TF_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return MakeTable(cinfo_.name(), resource);
  }

  Status VerifyResource(TableResource* resource) override {
    const EmbeddingTable& table = resource->table();
    const auto must_be = [&](const char* attr, auto present, auto given) {
      return InvalidArgument(attr, " of table ", resource->name(), " must be ",
                             present, ", the value it was created with, got ",
                             given);
    };
    if (table.dim() != dim_) return must_be("dim", table.dim(), dim_);
    // Compares bits, so that a NaN equals itself.
    const float present = resource->default_value();
    if (std::memcmp(&present, &default_value_, sizeof(float)) != 0) {
      return must_be("default_value", present, default_value_);
    }
    if (resource->version_unit() != version_unit_) {
      return must_be("version_unit", resource->version_unit(), version_unit_);
    }
    const bool is_refreshable = resource->clock() != nullptr;
    if (is_refreshable != is_refreshable_) {
      return must_be("refreshable", is_refreshable, is_refreshable_);
    }
    const FilterSpec& filter = table.filter();
    if (filter.threshold != filter_.threshold) {
      return must_be("filter_freq", filter.threshold, filter_.threshold);
    }
    if (filter.coefficient != filter_.coefficient) {
      return must_be("filter_coefficient", filter.coefficient,
                     filter_.coefficient);
    }
    if (!(filter.sketch == filter_.sketch)) {
      return must_be("sketch", SketchText(filter.sketch),
                     SketchText(filter_.sketch));
    }
    const RowRules& rules = table.rules();
    TF_RETURN_IF_ERROR(VerifyTypes(rules.value, must_be));
    if (rules.max_rows != rules_.max_rows) {
      return must_be("max_rows", rules.max_rows, rules_.max_rows);
    }
    if (!(rules.capacity == rules_.capacity)) {
      return must_be("capacity", CapacityText(rules.capacity),
                     CapacityText(rules_.capacity));
    }
    if (rules.has_padding != rules_.has_padding) {
      return must_be("has_padding_key", rules.has_padding, rules_.has_padding);
    }
    if (rules.frozen_keys != rules_.frozen_keys) {
      return must_be("frozen_keys", Listed(rules.frozen_keys),
                     Listed(rules_.frozen_keys));
    }
    return resource->storage().CheckSame(resource->name(), storage_);
  }

  // must_be: as in VerifyResource.
  template <typename MustBe>
  Status VerifyTypes(const ValueSpec& present, const MustBe& must_be) const {
    const ValueSpec& given = rules_.value;
    if (present.type != given.type) {
      return must_be("value_dtype", DataTypeString(DataTypeOf(present.type)),
                     DataTypeString(DataTypeOf(given.type)));
    }
    if (present.has_narrow_slots != given.has_narrow_slots) {
      const auto type = [](const ValueSpec& each) {
        return each.has_narrow_slots ? "bfloat16" : "float";
      };
      return must_be("slot_dtype", type(present), type(given));
    }
    if (present.seed != given.seed) {
      return must_be("rounding_seed", present.seed, given.seed);
    }
    return Status();
  }

  std::string shared_name_;
  bool owned_ = false;
  int64_t dim_ = 0;
  float default_value_ = 0.0f;
  std::string version_unit_;
  FilterSpec filter_;
  RowRules rules_;
  TableStorage storage_;
  bool is_refreshable_ = false;
  RefreshClock::Ptr clock_;  // Null if it is not refreshable.
  tensorflow::mutex handle_mutex_;
  Tensor handle_ TF_GUARDED_BY(handle_mutex_);  // No elements: it was not made.
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

    OP_REQUIRES_OK(context, CheckBank(*table, *bank));

    OP_REQUIRES_OK(
        context, OrStatus(table->name(), [&] {
          std::lock_guard<std::shared_mutex> lock(table->replace_mutex());
          if (only_new_ && table->ready()) return Status();
          table->BeginReplacement();
          table->table().SetBank(bank->flat<float>().data(), bank->dim_size(0));
          table->table().Clear();
          table->set_ready();
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

    is_initialized->scalar<bool>()() = table->ready();
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

class TableTierCountsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    Tensor* counts;
    OP_REQUIRES_OK(context, context->allocate_output(
                                "counts", TensorShape({kTierCounts}), &counts));
    const TierCounts of = table->table().tier_counts();
    const int64_t in_order[] = {of.memory_rows,   of.disk_rows, of.hits,
                                of.misses,        of.spills,    of.bytes_read,
                                of.bytes_written, of.read_ns,   of.file_bytes,
                                of.buffer_bytes};
    static_assert(std::size(in_order) == kTierCounts, "all numbers");
    std::copy(std::begin(in_order), std::end(in_order),
              counts->flat<int64_t>().data());
  }
};

class TableActivityOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    Tensor* activity;
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       "activity", TensorShape({kActivityCounts}), &activity));
    const TableActivity of = table->table().activity();
    const int64_t in_order[] = {of.rows,      of.entries, of.memory_bytes,
                                of.looked_up, of.found,   of.removed_rows,
                                of.disk_rows, of.hits,    of.misses};
    static_assert(std::size(in_order) == kActivityCounts, "all numbers");
    std::copy(std::begin(in_order), std::end(in_order),
              activity->flat<int64_t>().data());
  }
};

class TableSavedRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const SavedRows rows = table->saved_rows();
    const auto n = static_cast<int64_t>(rows.largest.size());
    Tensor *norms, *keys, *non_finite, *first;
    OP_REQUIRES_OK(context,
                   context->allocate_output("norms", TensorShape({n}), &norms));
    OP_REQUIRES_OK(context,
                   context->allocate_output("keys", TensorShape({n}), &keys));
    OP_REQUIRES_OK(context, context->allocate_output(
                                "non_finite", TensorShape({}), &non_finite));
    OP_REQUIRES_OK(context,
                   context->allocate_output("first", TensorShape({}), &first));

    for (int64_t i = 0; i < n; ++i) {
      norms->flat<float>()(i) = rows.largest[i].norm;
      keys->flat<int64_t>()(i) = rows.largest[i].key;
    }
    non_finite->scalar<int64_t>()() = rows.n_broken;
    first->scalar<tensorflow::tstring>()() = rows.first;
  }
};

// Base of the ops that read one number of each key.
template <typename T>
class PerKeyOp : public OpKernel {
 public:
  // `output`: name of the op's output.
  PerKeyOp(OpKernelConstruction* context, const char* output)
      : OpKernel(context), output_(output) {}

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* keys;
    OP_REQUIRES_OK(context, context->input("keys", &keys));
    const StepTime::Ptr time = StepTime::Of(context, table->clock());
    TableReader reader;
    OP_REQUIRES_OK(context, reader.Open(table.get(), time.get()));

    Tensor* out;
    OP_REQUIRES_OK(context,
                   context->allocate_output(output_, keys->shape(), &out));

    const size_t n = static_cast<size_t>(keys->NumElements());
    const KeyCopy copy(keys->flat<int64_t>().data(), n);
    Read(table->table(), reader, copy.data(), n, out->flat<T>().data());
  }

 private:
  virtual void Read(const EmbeddingTable& table, const TableReader& reader,
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
  void Read(const EmbeddingTable& table, const TableReader&,
            const int64_t* keys, size_t n,
            int64_t* frequencies) const override {
    table.Frequencies(keys, n, frequencies);
  }
};

class TableVersionsOp : public PerKeyOp<int64_t> {
 public:
  explicit TableVersionsOp(OpKernelConstruction* context)
      : PerKeyOp(context, "versions") {}

 private:
  void Read(const EmbeddingTable& table, const TableReader&,
            const int64_t* keys, size_t n, int64_t* versions) const override {
    table.Versions(keys, n, versions);
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
    TableReader reader;
    OP_REQUIRES_OK(context, reader.Open(table.get()));

    const int64_t n = keys->NumElements();
    const int64_t n_counted = counted_keys->NumElements();
    const int64_t n_all = n + n_counted;
    Tensor* admits;
    OP_REQUIRES_OK(context,
                   context->allocate_output("admits", keys->shape(), &admits));
    Tensor all_keys, all_admits = *admits;
    const TensorShape shape({n_all});
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_INT64, shape,
                                                   &all_keys));
    if (n_counted > 0) {
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_BOOL, shape,
                                                     &all_admits));
    }
    // Copies: another thread may write to the inputs (read_once.h).
    int64_t* copy = all_keys.flat<int64_t>().data();
    copy = std::copy_n(keys->flat<int64_t>().data(), n, copy);
    std::copy_n(counted_keys->flat<int64_t>().data(), n_counted, copy);

    bool* const out = all_admits.flat<bool>().data();
    OP_REQUIRES(
        context,
        table->table().Admits(all_keys.flat<int64_t>().data(), n_all, out),
        NoMemoryToCount(*table, n_all));
    if (n_counted > 0) std::copy_n(out, n, admits->flat<bool>().data());
  }
};

class TableContainsOp : public PerKeyOp<bool> {
 public:
  explicit TableContainsOp(OpKernelConstruction* context)
      : PerKeyOp(context, "owns_row") {}

 private:
  void Read(const EmbeddingTable& table, const TableReader& reader,
            const int64_t* keys, size_t n, bool* owns_row) const override {
    table.Contains(keys, n, owns_row);
    reader.Correct(keys, n, owns_row);
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableAdmits").Device(DEVICE_CPU),
                        Guarded<TableAdmitsOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableContains").Device(DEVICE_CPU),
                        Guarded<TableContainsOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableHandle").Device(DEVICE_CPU),
                        Guarded<TableHandleOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableInitialize").Device(DEVICE_CPU),
                        Guarded<TableInitializeOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableIsInitialized").Device(DEVICE_CPU),
    Guarded<TableIsInitializedOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableStats").Device(DEVICE_CPU),
                        Guarded<TableStatsOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableTierCounts").Device(DEVICE_CPU),
                        Guarded<TableTierCountsOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableActivity").Device(DEVICE_CPU),
                        Guarded<TableActivityOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableSavedRows").Device(DEVICE_CPU),
                        Guarded<TableSavedRowsOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableFrequencies").Device(DEVICE_CPU),
    Guarded<TableFrequenciesOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableVersions").Device(DEVICE_CPU),
                        Guarded<TableVersionsOp>);

}  // namespace
}  // namespace rec_estimator
