// SPDX-License-Identifier: Apache-2.0
// Kernels of lookup_ops.cc: read the rows of one lookup or of many.
//
// The threads share the lookups, and the parts of large ones. A thread locks
// the shards of one lookup's keys at a time and sums rows directly from the
// table, without the [keys, dim] tensor between a gather and a segment sum. Up
// to 8191 keys of a training step, and 4 MiB, are read into such memory first,
// because then they are handed over to the update.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/keys/key_copy.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_reader.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/op_threads.h"
#include "ops/lookup/combined_rows.h"
#include "ops/lookup/fused_lookups.h"
#include "ops/lookup/sparse_row_index.h"
#include "ops/lookup/step_keys.h"
#include "ops/table/refresh_clock.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::OpOutputList;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;

// keys.shape + [dim].
Status ValuesShape(const Tensor& keys, int dim, TensorShape* shape) {
  *shape = keys.shape();
  return shape->AddDimWithStatus(dim);
}

UnknownKey UnknownKeyOf(const std::string& name) {
  return name == "default" ? UnknownKey::kDefault : UnknownKey::kInitial;
}

// Cycles to read the row of one key that is mostly in a cache: the probe, and
// half a cycle per float to add or copy.
int64_t CyclesPerKey(int dim) { return 40 + dim / 2; }

// Floats of the rows that are combined and handed over: 4 MiB.
constexpr int64_t kMostCombined = int64_t{1} << 20;

// Cycles of a lookup besides its keys: the locks of its stripes.
constexpr double kCyclesPerLookup = 4000;

class TableLookupOp : public OpKernel {
 public:
  explicit TableLookupOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string unknown;
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, context->GetAttr("unknown", &unknown));
    unknown_ = UnknownKeyOf(unknown);
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* keys;
    OP_REQUIRES_OK(context, context->input("keys", &keys));

    OP_REQUIRES_OK(context, CheckDim(*table, dim_));
    const StepTime::Ptr time = StepTime::Of(context, table->clock());
    TableReader reader;
    OP_REQUIRES_OK(context, reader.Open(table.get(), time.get()));

    TensorShape shape;
    OP_REQUIRES_OK(context, ValuesShape(*keys, table->table().dim(), &shape));
    Tensor* values;
    OP_REQUIRES_OK(context, context->allocate_output("values", shape, &values));

    float* const out = values->flat<float>().data();
    const StepKeys::Ptr step_keys = StepKeys::ForLookup(context, *table, *keys);
    const ParallelFor threads = OpThreads(context);
    if (step_keys != nullptr && !reader.reads_past() &&
        step_keys->Lookup(table.get(), *keys, unknown_, out, threads)) {
      return;
    }
    const int64_t* const data = keys->flat<int64_t>().data();
    const auto n = static_cast<size_t>(keys->NumElements());
    table->table().Lookup(data, n, unknown_, out, threads);
    reader.Correct(data, n, unknown_, out);
  }

 private:
  int64_t dim_ = 0;
  UnknownKey unknown_ = UnknownKey::kInitial;
};

// One lookup of a TableGroupLookup.
struct GroupedLookup : KeyRows {
  TablePtr table;
  TableReader reader;
  int dim = 0;
  Combiner combiner = Combiner::kSum;
  UnknownKey unknown = UnknownKey::kInitial;
  const int64_t* keys = nullptr;  // (n)
  int64_t n = 0;
  const Tensor* tensor = nullptr;  // The tensor of the keys.
  StepKeys::Ptr step_keys;         // Null: they are not handed over.
  float* out = nullptr;            // (rows, dim)
};

// Reads a lookup whose keys are handed over into values (n, dim). False: that
// is not possible.
bool HandOver(const GroupedLookup& lookup, float* values,
              const ParallelFor& parallel) {
  return lookup.step_keys->Lookup(lookup.table.get(), *lookup.tensor,
                                  lookup.unknown, values, parallel);
}

// Reads the lookups of long lists that are handed over, and leaves nothing to
// read of them.
void HandOverLong(const ParallelFor& parallel,
                  std::vector<GroupedLookup>* lookups) {
  std::vector<GroupedLookup*> handed_over;
  int64_t cycles = 0;
  for (GroupedLookup& lookup : *lookups) {
    if (lookup.step_keys == nullptr || lookup.n <= kShortList) continue;
    handed_over.push_back(&lookup);
    cycles += lookup.n * CyclesPerKey(lookup.dim);
  }
  if (handed_over.empty()) return;
  // Threads share a single lookup. Of several, each takes whole ones.
  const bool is_single = handed_over.size() == 1;
  const auto read = [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      GroupedLookup& lookup = *handed_over[static_cast<size_t>(i)];
      if (HandOver(lookup, lookup.out, is_single ? parallel : SerialFor)) {
        lookup.n = 0;
      }
      lookup.step_keys = nullptr;
    }
  };
  const auto n = static_cast<int64_t>(handed_over.size());
  if (is_single) return read(0, n);
  parallel(n, cycles / n, read);
}

// Writes what keys (n) read to `out` (n, dim).
void CopyRows(const GroupedLookup& lookup, const int64_t* keys, size_t n,
              float* out) {
  const RowReader reader(lookup.table->table(), keys, n);
  reader.Copy(keys, n, lookup.unknown, out);
  lookup.reader.Correct(keys, n, lookup.unknown, out);
}

// Combines the rows of keys [begin, end), which begin and end with a row of the
// output. Also writes the empty rows before them.
void CombineRows(const GroupedLookup& lookup, int64_t begin, int64_t end,
                 const RowWindow::Find& find) {
  RowWindow window(begin, end, find);
  WriteRows(lookup.row_index, begin, end, lookup.dim, lookup.out,
            [&](int64_t first, int64_t last, float* out) {
              CombineRow(lookup.dim, lookup.combiner, first, last, &window,
                         out);
            });
}

// The same for keys whose values read(values) writes to values (end - begin,
// dim). False, with nothing done, if it returns false. Throws std::bad_alloc.
template <typename Read>
bool CombineCopies(const GroupedLookup& lookup, int64_t begin, int64_t end,
                   const Read& read) {
  const int64_t dim = lookup.dim;
  const std::unique_ptr<float[]> values(
      new float[static_cast<size_t>((end - begin) * dim)]);
  if (!read(values.get())) return false;
  CombineRows(lookup, begin, end,
              [&](int64_t first, int64_t last, const float** rows) {
                for (; first < last; ++first) {
                  *rows++ = values.get() + (first - begin) * dim;
                }
              });
  return true;
}

// The same for keys (end - begin), read where they are or, if they must be
// corrected, from copies.
void CombineRead(const GroupedLookup& lookup, const int64_t* keys,
                 int64_t begin, int64_t end) {
  const auto n = static_cast<size_t>(end - begin);
  if (lookup.reader.reads_past()) {
    CombineCopies(lookup, begin, end, [&](float* values) {
      CopyRows(lookup, keys, n, values);
      return true;
    });
    return;
  }
  const RowReader reader(lookup.table->table(), keys, n);
  CombineRows(
      lookup, begin, end, [&](int64_t first, int64_t last, const float** rows) {
        reader.Rows(keys + (first - begin), static_cast<size_t>(last - first),
                    lookup.unknown, rows);
      });
}

// Computes units [begin, end) of a lookup. Unit i < n is key i; unit n stands
// for the empty rows after the last key. A row, with the empty rows before it,
// belongs to the range that contains its first key. Keys that are handed over
// are one range.
void ReadUnits(const GroupedLookup& lookup, int64_t begin, int64_t end) {
  const int64_t dim = lookup.dim;
  const bool has_last_unit = end > lookup.n;
  end = std::min(end, lookup.n);
  if (lookup.one_key_per_row) {
    if (begin >= end) return;
    if (lookup.step_keys != nullptr &&
        HandOver(lookup, lookup.out, SerialFor)) {
      return;
    }
    const size_t n = static_cast<size_t>(end - begin);
    const KeyCopy keys(lookup.keys + begin, n);
    CopyRows(lookup, keys.data(), n, lookup.out + begin * dim);
    return;
  }
  lookup.row_index.ToWholeRows(&begin, &end);
  const auto hand_over = [&](float* values) {
    return HandOver(lookup, values, SerialFor);
  };
  if (begin < end && (lookup.step_keys == nullptr ||
                      !CombineCopies(lookup, begin, end, hand_over))) {
    const KeyCopy keys(lookup.keys + begin, static_cast<size_t>(end - begin));
    CombineRead(lookup, keys.data(), begin, end);
  }
  if (has_last_unit) {
    WriteLastRows(lookup.row_index, lookup.rows, dim, lookup.out);
  }
}

class TableGroupLookupOp : public OpKernel {
 public:
  explicit TableGroupLookupOp(OpKernelConstruction* context)
      : OpKernel(context) {
    int64_t n;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES(context, static_cast<int64_t>(dims_.size()) == n,
                InvalidArgument("dims must be of length N = ", n, ", got ",
                                dims_.size()));
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    std::vector<std::string> unknowns;
    OP_REQUIRES_OK(context, context->GetAttr("unknowns", &unknowns));
    OP_REQUIRES(context, static_cast<int64_t>(unknowns.size()) == n,
                InvalidArgument("unknowns must be of length N = ", n, ", got ",
                                unknowns.size()));
    for (const std::string& name : unknowns) {
      unknowns_.push_back(UnknownKeyOf(name));
    }
    names_ = LookupNames(context, dims_.size());
  }

  void Compute(OpKernelContext* context) override {
    OpInputList tables, keys, indices, dense_shapes;
    OP_REQUIRES_OK(context, context->input_list("tables", &tables));
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    OP_REQUIRES_OK(context, context->input_list("indices", &indices));
    OP_REQUIRES_OK(context, context->input_list("dense_shapes", &dense_shapes));

    const int n = static_cast<int>(dims_.size());
    std::vector<GroupedLookup> lookups(n);
    std::vector<TensorShape> shapes(n);
    OP_REQUIRES_OK(context, OpenTables(context, tables, &lookups));
    OneKeyPerRow one_key_per_row;  // The inputs live as long as it does.
    for (int i = 0; i < n; ++i) {
      GroupedLookup& lookup = lookups[i];
      lookup.dim = lookup.table->table().dim();
      lookup.combiner = combiners_[i];
      lookup.unknown = unknowns_[i];
      lookup.keys = keys[i].flat<int64_t>().data();
      lookup.n = keys[i].NumElements();
      OP_REQUIRES(context, TensorShapeUtils::IsVector(keys[i].shape()),
                  InvalidArgument("keys of lookup ", names_[i],
                                  " must be [n], got shape ",
                                  keys[i].shape().DebugString()));
      OP_REQUIRES_OK(
          context, CheckSparse(names_[i], lookup.n, indices[i], dense_shapes[i],
                               &one_key_per_row, &lookup));
      OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                  {lookup.rows, lookup.dim}, &shapes[i]));
      // If rows are combined, long lists would gain nothing.
      if (!lookup.reader.reads_past() &&
          (lookup.one_key_per_row ||
           (lookup.n < kShortList && lookup.n * lookup.dim <= kMostCombined))) {
        lookup.tensor = &keys[i];
        lookup.step_keys = StepKeys::ForLookup(context, *lookup.table, keys[i]);
      }
    }

    OpOutputList values;
    OP_REQUIRES_OK(context, context->output_list("values", &values));
    for (int i = 0; i < n; ++i) {
      Tensor* out;
      OP_REQUIRES_OK(context, values.allocate(i, shapes[i], &out));
      lookups[i].out = out->flat<float>().data();
    }

    const ParallelFor threads = OpThreads(context);
    HandOverLong(threads, &lookups);
    std::vector<int64_t> units;
    double cycles = 0;
    for (const GroupedLookup& lookup : lookups) {
      units.push_back(lookup.n + (lookup.one_key_per_row ? 0 : 1));
      cycles += static_cast<double>(units.back()) * CyclesPerKey(lookup.dim) +
                kCyclesPerLookup;
    }
    ForAllUnits(units, cycles, threads,
                [&](size_t i, int64_t begin, int64_t end) {
                  ReadUnits(lookups[i], begin, end);
                });
  }

 private:
  // Finds and opens the tables of lookups.
  Status OpenTables(OpKernelContext* context, const OpInputList& handles,
                    std::vector<GroupedLookup>* lookups) const {
    StepTime::Ptr time;
    for (size_t i = 0; i < lookups->size(); ++i) {
      GroupedLookup& lookup = (*lookups)[i];
      TF_RETURN_IF_ERROR(
          FindTable(context, handles[static_cast<int>(i)], &lookup.table));
      TF_RETURN_IF_ERROR(CheckDim(*lookup.table, dims_[i]));
      if (time == nullptr) time = StepTime::Of(context, lookup.table->clock());
      TF_RETURN_IF_ERROR(lookup.reader.Open(lookup.table.get(), time.get()));
    }
    return Status();
  }

  std::vector<int64_t> dims_;
  std::vector<Combiner> combiners_;
  std::vector<UnknownKey> unknowns_;
  std::vector<std::string> names_;  // The names of the lookups, for messages.
};

class TableGroupLookupGradOp : public OpKernel {
 public:
  explicit TableGroupLookupGradOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    names_ = LookupNames(context, combiners_.size());
  }

  void Compute(OpKernelContext* context) override {
    OpInputList indices, grads;
    OP_REQUIRES_OK(context, context->input_list("indices", &indices));
    OP_REQUIRES_OK(context, context->input_list("grads", &grads));

    const int n = static_cast<int>(combiners_.size());
    std::vector<SpreadGradient> spreads(n);
    OneKeyPerRow one_key_per_row;
    for (int i = 0; i < n; ++i) {
      SpreadGradient& spread = spreads[i];
      OP_REQUIRES(context, TensorShapeUtils::IsMatrix(grads[i].shape()),
                  InvalidArgument("grads of lookup ", names_[i],
                                  " must be [rows, dim], got shape ",
                                  grads[i].shape().DebugString()));
      spread.combiner = combiners_[i];
      spread.rows = grads[i].dim_size(0);
      spread.dim = grads[i].dim_size(1);
      spread.grads = grads[i].flat<float>().data();
      OP_REQUIRES_OK(context, CheckIndices(names_[i], indices[i],
                                           &one_key_per_row, &spread));
    }

    OpOutputList key_grads;
    OP_REQUIRES_OK(context, context->output_list("key_grads", &key_grads));
    for (int i = 0; i < n; ++i) {
      // Then every scale is 1.
      if (spreads[i].one_key_per_row) {
        key_grads.set(i, grads[i]);
        continue;
      }
      TensorShape shape;
      OP_REQUIRES_OK(context,
                     TensorShape::BuildTensorShape(
                         {spreads[i].row_index.n(), spreads[i].dim}, &shape));
      Tensor* out;
      OP_REQUIRES_OK(context, key_grads.allocate(i, shape, &out));
      spreads[i].out = out->flat<float>().data();
    }

    std::vector<int64_t> units;
    double cycles = 0;
    for (const SpreadGradient& spread : spreads) {
      units.push_back(spread.one_key_per_row ? 0 : spread.row_index.n());
      // Half a cycle per float and 10 cycles to find the row.
      cycles += static_cast<double>(units.back()) * (10 + spread.dim / 2);
    }
    ForAllUnits(units, cycles, OpThreads(context),
                [&](size_t i, int64_t begin, int64_t end) {
                  SpreadUnits(spreads[i], begin, end);
                });
  }

 private:
  // The gradient of one lookup's rows, to be spread over its keys.
  struct SpreadGradient : KeyRows {
    Combiner combiner = Combiner::kSum;
    int64_t dim = 0;
    const float* grads = nullptr;  // (rows, dim)
    float* out = nullptr;          // (row_index.n(), dim)
  };

  // Computes the gradients of keys [begin, end). Multiplies by 1/n or 1/sqrt(n)
  // rounded to float, as TensorFlow's SparseSegmentMeanGrad does, so that the
  // bits are the same.
  static void SpreadUnits(const SpreadGradient& spread, int64_t begin,
                          int64_t end) {
    const int64_t dim = spread.dim;
    if (begin >= end) return;
    for (int64_t run = spread.row_index.RunOf(begin); begin < end; ++run) {
      const int64_t row_end = spread.row_index.end(run);
      const double n = row_end - spread.row_index.begin(run);
      const float scale = spread.combiner == Combiner::kMean
                              ? static_cast<float>(1.0 / n)
                          : spread.combiner == Combiner::kSqrtn
                              ? static_cast<float>(1.0 / std::sqrt(n))
                              : 1.0f;
      const float* grad = spread.grads + spread.row_index.row(run) * dim;
      for (const int64_t stop = std::min(end, row_end); begin < stop; ++begin) {
        float* __restrict out = spread.out + begin * dim;
        for (int64_t d = 0; d < dim; ++d) out[d] = grad[d] * scale;
      }
    }
  }

  std::vector<Combiner> combiners_;
  std::vector<std::string> names_;  // The names of the lookups, for messages.
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableLookup").Device(DEVICE_CPU),
                        Guarded<TableLookupOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableGroupLookup").Device(DEVICE_CPU),
    Guarded<TableGroupLookupOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableGroupLookupGrad").Device(DEVICE_CPU),
    Guarded<TableGroupLookupGradOp>);

}  // namespace
}  // namespace rec_estimator
