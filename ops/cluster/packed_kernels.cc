// SPDX-License-Identifier: Apache-2.0
// Kernels of packed_ops.cc besides those that train: deduplicate keys, read
// rows, give them to the lookups, sum gradients. All of them check what they
// get, since a packed tensor comes from another process.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ops/cluster/stored_rows.h"
#include "ops/core/base/parallel.h"
#include "ops/core/base/scratch.h"
#include "ops/core/keys/packed_keys.h"
#include "ops/core/math/indexed_rows.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/op_threads.h"
#include "ops/lookup/step_keys.h"
#include "ops/table/table_resource.h"
#include "ops/train/packed_inputs.h"
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

// Adds n * m numbers to *total. InvalidArgument if a tensor cannot have as
// many.
Status AddFloats(uint64_t n, uint64_t m, int64_t* total) {
  constexpr uint64_t kMost =
      std::numeric_limits<int64_t>::max() / sizeof(float);
  const uint64_t room = kMost - static_cast<uint64_t>(*total);
  if (m != 0 && n > room / m) {
    return InvalidArgument(
        "packed must have keys of rows that fit into memory"
        ", got ",
        n, " keys of ", m, " numbers");
  }
  *total += static_cast<int64_t>(n * m);
  return Status();
}

// The tables whose rows TablesRead sends and RowsSpread gets, in one tensor.
struct PackedTables {
  PackedSections sections;  // One for each table.
  std::vector<int64_t> dims;

  // Reads and checks the attributes.
  Status Read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
    TF_RETURN_IF_ERROR(
        sections.Read(context, static_cast<int64_t>(dims.size())));
    for (const int64_t dim : dims) {
      if (dim < 1 || dim > std::numeric_limits<int>::max()) {
        return InvalidArgument("dims must be >= 1, got ", dim);
      }
    }
    return Status();
  }

  // The same for an op with N tensors, one for each table.
  Status ReadEach(OpKernelConstruction* context, int64_t* n) {
    TF_RETURN_IF_ERROR(context->GetAttr("N", n));
    TF_RETURN_IF_ERROR(Read(context));
    if (static_cast<int64_t>(dims.size()) == *n) return Status();
    return InvalidArgument("dims must be of length N = ", *n, ", got ",
                           dims.size());
  }

  // The keys of table i.
  const PackedKeys::Section& KeysOf(const PackedKeys& keys, size_t i) const {
    return keys[sections.used[i]];
  }

  // Where the rows of each table begin, and where the last ones end.
  Status FindRows(const PackedKeys& keys, std::vector<int64_t>* begin,
                  int64_t* floats) const {
    *floats = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      begin->push_back(*floats);
      TF_RETURN_IF_ERROR(AddFloats(KeysOf(keys, i).size(), dims[i], floats));
    }
    return Status();
  }

  // Finds the keys in a tensor, and where the rows of each table begin in
  // `rows`.
  Status Open(const Tensor& packed, const Tensor& rows, PackedKeys* keys,
              std::vector<int64_t>* begin) const {
    int64_t floats;
    TF_RETURN_IF_ERROR(sections.Open(packed, keys));
    TF_RETURN_IF_ERROR(FindRows(*keys, begin, &floats));
    if (rows.dims() == 1 && rows.NumElements() == floats) return Status();
    return InvalidArgument("rows must be those of the packed keys, [", floats,
                           "], got shape ", rows.shape().DebugString());
  }
};

// Cycles to read or copy the row of one key.
int64_t CyclesPerKey(int64_t dim) { return 40 + dim / 2; }

// Runs work(i) for each i in [0, n) in parallel. All of it costs `cycles`.
template <typename Work>
void ForEach(OpKernelContext* context, size_t n, int64_t cycles,
             const Work& work) {
  if (n == 0) return;
  const auto run = [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) work(static_cast<size_t>(begin));
  };
  const int64_t units = static_cast<int64_t>(n);
  if (cycles < kSerialBelowCycles) {
    run(0, units);
  } else {
    OpThreads(context)(units, cycles / units, run);
  }
}

class KeysPackOp : public OpKernel {
 public:
  explicit KeysPackOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t n;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n));
    OP_REQUIRES_OK(context, sections_.Read(context, n));
    std::vector<std::string> uses;
    OP_REQUIRES_OK(context, context->GetAttr("uses", &uses));
    OP_REQUIRES(context, static_cast<int64_t>(uses.size()) == n,
                InvalidArgument("uses must be of length N = ", n, ", got ",
                                uses.size()));
    for (const std::string& use : uses) {
      const bool is_gradient = use == "gradient", is_counted = use == "counted";
      OP_REQUIRES(context, is_gradient || is_counted || use == "read",
                  InvalidArgument("uses must each be 'gradient', 'counted' or "
                                  "'read', got '",
                                  use, "'"));
      uses_.push_back(is_gradient  ? KeyUse::kGradient
                      : is_counted ? KeyUse::kCounted
                                   : KeyUse::kRead);
    }
  }

  void Compute(OpKernelContext* context) override {
    OpInputList keys;
    OpOutputList index;
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    OP_REQUIRES_OK(context, context->output_list("index", &index));
    std::vector<KeyList> lists;
    for (int i = 0; i < keys.size(); ++i) {
      Tensor* of_list;
      OP_REQUIRES_OK(context, index.allocate(i, keys[i].shape(), &of_list));
      lists.push_back({keys[i].flat<int64_t>().data(),
                       static_cast<uint64_t>(keys[i].NumElements()),
                       static_cast<uint32_t>(sections_.used[i]), uses_[i],
                       of_list->flat<int32_t>().data()});
    }
    KeyPacker packer;
    OP_REQUIRES(context,
                packer.Pack(lists, static_cast<uint32_t>(sections_.count),
                            OpThreads(context)),
                ResourceExhausted(
                    "keys of node ", name(),
                    " must fit into memory, and be fewer than 2^31 for each "
                    "table; make the batch smaller"));
    Tensor* packed;
    const int64_t words = static_cast<int64_t>(packer.words());
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({words}), &packed));
    packer.Write(packed->flat<int64_t>().data());
  }

 private:
  PackedSections sections_;
  std::vector<KeyUse> uses_;
};

// out (keys, dim) = what the keys read, on the calling thread.
void ReadRows(const EmbeddingTable& table, const PackedKeys::Section& keys,
              UnknownKey unknown, const RowHints* hints, float* out) {
  table.Lookup(keys.keys, keys.size(), unknown, out, SerialFor, hints);
}
// The same in the type in which the table stores values. Throws std::bad_alloc.
template <typename T>
void ReadRows(const EmbeddingTable& table, const PackedKeys::Section& keys,
              UnknownKey unknown, const RowHints* hints, T* out) {
  const size_t n = keys.size(), dim = static_cast<size_t>(table.dim());
  Scratch memory;
  float* wide = nullptr;
  if (!memory.Allocate([&](Layout* layout) { layout->Add(&wide, n * dim); })) {
    throw std::bad_alloc();
  }
  ReadRows(table, keys, unknown, hints, wide);
  for (size_t i = 0; i < n; ++i) {
    SendRow(wide + i * dim, table.dim(), out + i * dim);
  }
}

template <typename T>
class TablesReadOp : public OpKernel {
 public:
  explicit TablesReadOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t n;
    OP_REQUIRES_OK(context, tables_.ReadEach(context, &n));
    std::vector<std::string> unknowns;
    OP_REQUIRES_OK(context, context->GetAttr("unknowns", &unknowns));
    OP_REQUIRES(context, static_cast<int64_t>(unknowns.size()) == n,
                InvalidArgument("unknowns must be of length N = ", n, ", got ",
                                unknowns.size()));
    for (const std::string& unknown : unknowns) {
      OP_REQUIRES(context, unknown == "default" || unknown == "initial",
                  InvalidArgument("unknowns must each be 'initial' or "
                                  "'default', got '",
                                  unknown, "'"));
      unknowns_.push_back(unknown == "default" ? UnknownKey::kDefault
                                               : UnknownKey::kInitial);
    }
  }

  void Compute(OpKernelContext* context) override {
    OpInputList handles;
    const Tensor* packed;
    PackedKeys keys;
    OP_REQUIRES_OK(context, context->input_list("tables", &handles));
    OP_REQUIRES_OK(context, context->input("packed", &packed));
    OP_REQUIRES_OK(context, tables_.sections.Open(*packed, &keys));
    const size_t n = tables_.dims.size();
    std::vector<TablePtr> tables(n);
    std::vector<TableReader> readers(n);
    int64_t cycles = 0;
    for (size_t i = 0; i < n; ++i) {
      OP_REQUIRES_OK(context, FindTable(context, handles[static_cast<int>(i)],
                                        &tables[i]));
      OP_REQUIRES_OK(context, CheckDim(*tables[i], tables_.dims[i]));
      OP_REQUIRES_OK(
          context,
          CheckValueDtype(*tables[i], tensorflow::DataTypeToEnum<T>::v()));
      OP_REQUIRES_OK(context, readers[i].Open(tables[i].get()));
      cycles += static_cast<int64_t>(tables_.KeysOf(keys, i).size()) *
                CyclesPerKey(tables_.dims[i]);
    }
    std::vector<int64_t> begin;
    int64_t floats;
    OP_REQUIRES_OK(context, tables_.FindRows(keys, &begin, &floats));
    Tensor* rows;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({floats}), &rows));
    T* const out = rows->flat<T>().data();
    const StepKeys::Ptr step_keys = StepKeys::Of(context);
    ForEach(context, n, cycles, [&](size_t i) {
      const PackedKeys::Section& section = tables_.KeysOf(keys, i);
      const std::shared_ptr<const RowHints> hints =
          step_keys == nullptr
              ? nullptr
              : step_keys->ForLookupOfPacked(tables[i].get(), section.keys,
                                             section.size());
      ReadRows(tables[i]->table(), section, unknowns_[i], hints.get(),
               out + begin[i]);
    });
  }

 private:
  PackedTables tables_;
  std::vector<UnknownKey> unknowns_;
};

template <typename T>
class RowsSpreadOp : public OpKernel {
 public:
  explicit RowsSpreadOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t n;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n));
    OP_REQUIRES_OK(context, tables_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("lookups", &lookups_));
    OP_REQUIRES(context, static_cast<int64_t>(lookups_.size()) == n,
                InvalidArgument("lookups must be of length N = ", n, ", got ",
                                lookups_.size()));
    const int64_t tables = static_cast<int64_t>(tables_.dims.size());
    for (const int64_t table : lookups_) {
      OP_REQUIRES(
          context, table >= 0 && table < tables,
          InvalidArgument("lookups must be in [0, ", tables, "), got ", table));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *rows, *packed;
    OpInputList index;
    OpOutputList values;
    PackedKeys keys;
    std::vector<int64_t> begin;
    OP_REQUIRES_OK(context, context->input("rows", &rows));
    OP_REQUIRES_OK(context, context->input("packed", &packed));
    OP_REQUIRES_OK(context, context->input_list("index", &index));
    OP_REQUIRES_OK(context, context->output_list("values", &values));
    OP_REQUIRES_OK(context, tables_.Open(*packed, *rows, &keys, &begin));
    std::vector<float*> out(lookups_.size());
    int64_t cycles = 0;
    for (int i = 0; i < index.size(); ++i) {
      const int64_t dim = tables_.dims[lookups_[i]];
      TensorShape shape = index[i].shape();
      OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim));
      Tensor* of_lookup;
      OP_REQUIRES_OK(context, values.allocate(i, shape, &of_lookup));
      out[i] = of_lookup->flat<float>().data();
      cycles += index[i].NumElements() * CyclesPerKey(dim);
    }
    const auto keys_of = [&](size_t i) {
      return static_cast<int64_t>(tables_.KeysOf(keys, lookups_[i]).size());
    };
    std::vector<char> is_refused(lookups_.size());
    ForEach(context, lookups_.size(), cycles, [&](size_t i) {
      const Tensor& of_lookup = index[static_cast<int>(i)];
      const auto received =
          ReceivedRows(rows->flat<T>().data() + begin[lookups_[i]],
                       static_cast<int>(tables_.dims[lookups_[i]]));
      is_refused[i] = !CopyCheckedRows(received, keys_of(i),
                                       of_lookup.flat<int32_t>().data(),
                                       of_lookup.NumElements(), out[i]);
    });
    for (size_t i = 0; i < lookups_.size(); ++i) {
      OP_REQUIRES(context, !is_refused[i],
                  InvalidArgument("index must be positions in a section of ",
                                  keys_of(i), " keys, got others in list ", i));
    }
  }

 private:
  PackedTables tables_;
  std::vector<int64_t> lookups_;
};

class RowsUnpackOp : public OpKernel {
 public:
  explicit RowsUnpackOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t n;
    OP_REQUIRES_OK(context, tables_.ReadEach(context, &n));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *rows, *packed;
    OpOutputList tables;
    OP_REQUIRES_OK(context, context->input("rows", &rows));
    OP_REQUIRES_OK(context, context->input("packed", &packed));
    OP_REQUIRES_OK(context, context->output_list("tables", &tables));
    PackedKeys keys;
    std::vector<int64_t> begin;
    OP_REQUIRES_OK(context, tables_.Open(*packed, *rows, &keys, &begin));
    for (int i = 0; i < tables.size(); ++i) {
      const int64_t n = static_cast<int64_t>(tables_.KeysOf(keys, i).size());
      const TensorShape shape({n, tables_.dims[i]});
      const Tensor part =
          rows->Slice(begin[i], begin[i] + shape.num_elements());
      Tensor view;
      if (part.IsAligned() && view.CopyFrom(part, shape)) {
        tables.set(i, view);
        continue;
      }
      Tensor* copy;
      OP_REQUIRES_OK(context, tables.allocate(i, shape, &copy));
      std::copy_n(static_cast<const char*>(part.data()), part.TotalBytes(),
                  static_cast<char*>(copy->data()));
    }
  }

 private:
  PackedTables tables_;
};

class GradientsPackOp : public OpKernel {
 public:
  explicit GradientsPackOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t k, n;
    OP_REQUIRES_OK(context, context->GetAttr("K", &k));
    OP_REQUIRES_OK(context, context->GetAttr("N", &n));
    OP_REQUIRES_OK(context, sections_.Read(context, n));
    std::vector<int64_t> lists;
    OP_REQUIRES_OK(context, context->GetAttr("lists", &lists));
    first_list_.push_back(0);
    for (const int64_t each : lists) {
      OP_REQUIRES(context, each >= 0 && each <= k - first_list_.back(),
                  InvalidArgument("lists must be >= 0 with a sum of K = ", k,
                                  ", got ", each));
      first_list_.push_back(first_list_.back() + each);
    }
    OP_REQUIRES(
        context,
        static_cast<int64_t>(lists.size()) == n && first_list_.back() == k,
        InvalidArgument("lists must be of length N = ", n,
                        " with a sum of K = ", k, ", got length ", lists.size(),
                        " and sum ", first_list_.back()));
    int64_t m;
    OP_REQUIRES_OK(context, context->GetAttr("M", &m));
    const bool has_positions = m > 0;
    OP_REQUIRES(context,
                !has_positions ||
                    (m == n && std::count(lists.begin(), lists.end(), 1) == n),
                InvalidArgument("positions must be none, or N = ", n,
                                " with one list for each table, got ", m));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *packed, *version;
    OpInputList index, hyper;
    PackedKeys keys;
    OP_REQUIRES_OK(context, context->input("packed", &packed));
    OP_REQUIRES_OK(context, context->input_list("index", &index));
    OP_REQUIRES_OK(context, context->input("version", &version));
    OP_REQUIRES_OK(context, context->input_list("hyper", &hyper));
    OP_REQUIRES_OK(context, sections_.Open(*packed, &keys));
    const size_t n = sections_.used.size();
    OP_REQUIRES_OK(context, CheckPerTable(*version, "version"));
    for (int h = 0; h < hyper.size(); ++h) {
      OP_REQUIRES_OK(context, CheckPerTable(hyper[h], "hyper"));
    }
    const int64_t header = static_cast<int64_t>(n) * (2 + hyper.size());
    std::vector<int64_t> begin(n);
    int64_t floats = header, cycles = 0;
    std::vector<Gradient> grads(n);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t distinct = keys[sections_.used[i]].n_gradient;
      OP_REQUIRES_OK(context, CountKeys(i, index, distinct, &grads[i]));
      OP_REQUIRES_OK(context, ReadGradient(context, i, &grads[i]));
      begin[i] = floats;
      OP_REQUIRES_OK(context, AddFloats(distinct, grads[i].dim, &floats));
      cycles += grads[i].n * CyclesPerKey(grads[i].dim);
    }
    Tensor* packed_gradients;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({floats}),
                                                     &packed_gradients));
    float* const out = packed_gradients->flat<float>().data();
    WriteHeader(*version, hyper, out);
    std::fill(out + header, out + floats, 0.0f);
    std::vector<int64_t> refused(n, -1);  // A list of each table.
    ForEach(context, n, cycles, [&](size_t i) {
      const float* rows = grads[i].rows;
      for (int64_t k = first_list_[i]; k < first_list_[i + 1]; ++k) {
        const Tensor& list = index[static_cast<int>(k)];
        if (!AddList(grads[i], rows, list, out + begin[i])) refused[i] = k;
        rows += list.NumElements() * grads[i].dim;
      }
    });
    for (size_t i = 0; i < n; ++i) {
      OP_REQUIRES(
          context, refused[i] < 0,
          InvalidArgument("index must be positions of ", grads[i].distinct,
                          " keys with a gradient, got others in list ",
                          refused[i]));
    }
  }

 private:
  // The gradient of a table.
  struct Gradient {
    const float* rows;
    int64_t n;         // Keys in the lists of the table.
    int64_t distinct;  // Sums.
    int dim;
    // If rows are not in the order of the keys: where they are, and how many
    // keys each position has.
    bool has_positions = false;
    std::vector<int32_t> positions;
    int64_t keys = 0;
  };

  // Adds the rows of a list to the sums. False: an index is out of range.
  static bool AddList(const Gradient& gradient, const float* rows,
                      const Tensor& list, float* sums) {
    const int32_t* const to = list.flat<int32_t>().data();
    if (!gradient.has_positions) {
      return AddCheckedRows(rows, to, list.NumElements(), gradient.dim, sums,
                            gradient.distinct);
    }
    return AddCheckedRowsAt(rows, gradient.positions.data(),
                            static_cast<int64_t>(gradient.positions.size()),
                            gradient.keys, to, gradient.dim, sums,
                            gradient.distinct);
  }

  Status CheckPerTable(const Tensor& tensor, const char* name) const {
    const int64_t n = static_cast<int64_t>(sections_.used.size());
    if (TensorShapeUtils::IsScalar(tensor.shape()) ||
        (tensor.dims() == 1 && tensor.NumElements() == n)) {
      return Status();
    }
    return InvalidArgument(name, " must be [] or, for ", n, " tables, [", n,
                           "], got shape ", tensor.shape().DebugString());
  }

  // Counts the keys of table i. There are at least as many as the `distinct`
  // keys that have a gradient, all of which are among them.
  Status CountKeys(size_t i, const OpInputList& index, uint64_t distinct,
                   Gradient* gradient) const {
    gradient->n = 0;
    for (int64_t k = first_list_[i]; k < first_list_[i + 1]; ++k) {
      gradient->n += index[static_cast<int>(k)].NumElements();
    }
    gradient->distinct = static_cast<int64_t>(distinct);
    if (distinct <= static_cast<uint64_t>(gradient->n)) return Status();
    return InvalidArgument("index must have all ", distinct,
                           " keys with a gradient of table ", i, ", got ",
                           gradient->n, " keys");
  }

  // Reads the gradient of the n keys of table i.
  Status ReadGradient(OpKernelContext* context, size_t i,
                      Gradient* gradient) const {
    OpInputList grads, positions;
    TF_RETURN_IF_ERROR(context->input_list("grads", &grads));
    TF_RETURN_IF_ERROR(context->input_list("positions", &positions));
    const Tensor& grad = grads[static_cast<int>(i)];
    gradient->rows = grad.flat<float>().data();
    if (positions.size() > 0) {
      return ReadPositions(i, grad, positions[static_cast<int>(i)], gradient);
    }
    if (TensorShapeUtils::IsMatrix(grad.shape()) &&
        grad.dim_size(0) == gradient->n &&
        grad.dim_size(1) <= std::numeric_limits<int>::max()) {
      gradient->dim = static_cast<int>(grad.dim_size(1));
      return Status();
    }
    return InvalidArgument("grads of table ", i,
                           " must be [n, dim], n = ", gradient->n,
                           ", got shape ", grad.shape().DebugString());
  }

  static Status ReadPositions(size_t i, const Tensor& grad,
                              const Tensor& positions, Gradient* gradient) {
    const int64_t n = positions.NumElements();
    const int64_t rows = grad.dims() == 0 ? 0 : grad.dim_size(0);
    // A copy: another thread may write to the input (read_once.h).
    const int32_t* const input = positions.flat<int32_t>().data();
    gradient->positions.assign(input, input + n);
    if (!AreRows(gradient->positions.data(), n, rows)) {
      return InvalidArgument("positions of table ", i, " must be in [0, ", rows,
                             "), got others");
    }
    const int64_t keys = n == 0 ? 0 : gradient->n / n;
    const int64_t floats = rows == 0 ? 0 : grad.NumElements() / rows;
    const int64_t dim = keys == 0 ? 0 : floats / keys;
    if (keys * n != gradient->n || dim * keys != (keys == 0 ? 0 : floats) ||
        dim > std::numeric_limits<int>::max()) {
      return InvalidArgument("grads of table ", i, " must have rows for ",
                             gradient->n, " keys at ", n, " positions, got ",
                             floats, " floats at each");
    }
    gradient->dim = static_cast<int>(dim);
    gradient->has_positions = true;
    gradient->keys = keys;
    return Status();
  }

  void WriteHeader(const Tensor& version, const OpInputList& hyper,
                   float* out) const {
    const size_t n = sections_.used.size();
    for (size_t i = 0; i < n; ++i, out += 2) {
      const int64_t value =
          version.flat<int64_t>()(version.dims() == 0 ? 0 : i);
      std::memcpy(out, &value, sizeof(value));
    }
    for (int h = 0; h < hyper.size(); ++h) {
      const auto of_tables = hyper[h].flat<float>();
      for (size_t i = 0; i < n; ++i) {
        *out++ = of_tables(hyper[h].dims() == 0 ? 0 : i);
      }
    }
  }

  PackedSections sections_;
  std::vector<int64_t> first_list_;  // Each table's first list, and the end.
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>KeysPack").Device(DEVICE_CPU),
                        Guarded<KeysPackOp>);
#define REGISTER_KERNELS(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("RecEstimator>TablesRead")        \
                              .Device(DEVICE_CPU)                \
                              .TypeConstraint<T>("value_dtype"), \
                          Guarded<TablesReadOp<T>>);             \
  REGISTER_KERNEL_BUILDER(Name("RecEstimator>RowsSpread")        \
                              .Device(DEVICE_CPU)                \
                              .TypeConstraint<T>("value_dtype"), \
                          Guarded<RowsSpreadOp<T>>);
REGISTER_KERNELS(float)
REGISTER_KERNELS(tensorflow::bfloat16)
REGISTER_KERNELS(Eigen::half)
#undef REGISTER_KERNELS
REGISTER_KERNEL_BUILDER(Name("RecEstimator>RowsUnpack").Device(DEVICE_CPU),
                        Guarded<RowsUnpackOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>GradientsPack").Device(DEVICE_CPU),
                        Guarded<GradientsPackOp>);

}  // namespace
}  // namespace rec_estimator
