// Kernels of TableExport and TableRestore: a table to tensors that a Saver
// writes, and back from a checkpoint file. What the tensors mean: DESIGN of the
// format in docs/architecture.md, names in checkpoint.py.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint_file.h"
#include "core/embedding_table.h"
#include "core/parallel.h"
#include "table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/strcat.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::OpOutputList;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::errors::DataLoss;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::errors::NotFound;
using ::tensorflow::errors::ResourceExhausted;
using ::tensorflow::strings::StrCat;

// Where in a row the slots that an op asks for are.
struct SlotPlace {
  SlotSpec slot;
  int offset;  // Floats from the row's begin; -1: the table has no such slot.
};

// InvalidArgument if the table has one of the slots with another width.
Status FindSlots(TableResource& resource, const std::vector<SlotSpec>& wanted,
                 std::vector<SlotPlace>* places) {
  const std::vector<SlotSpec> present = resource.table().slots();
  for (const SlotSpec& slot : wanted) {
    int offset = resource.table().dim();
    auto it = present.begin();
    for (; it != present.end() && it->name != slot.name; ++it) {
      offset += it->width;
    }
    if (it != present.end() && it->width != slot.width) {
      return InvalidArgument("slot_widths must be those of table ",
                             resource.name(), ", ", it->width, " for slot ",
                             slot.name, ", got ", slot.width);
    }
    places->push_back({slot, it == present.end() ? -1 : offset});
  }
  return Status();
}

class TableExportOp : public OpKernel {
 public:
  explicit TableExportOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, ReadSlots(context, &slots_));
    int64_t num_slots;
    OP_REQUIRES_OK(context, context->GetAttr("num_slots", &num_slots));
    OP_REQUIRES(context, static_cast<int64_t>(slots_.size()) == num_slots,
                InvalidArgument("slot_names must be of length num_slots = ",
                                num_slots, ", got ", slots_.size()));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));

    OP_REQUIRES_OK(context, CheckDim(*resource, dim_));
    OP_REQUIRES_OK(context, CheckInitialized(*resource, "it is saved"));

    OP_REQUIRES_OK(context, OrResourceExhausted(resource->name(), [&] {
                     return Export(context, *resource);
                   }));
  }

 private:
  using Entries = std::vector<EmbeddingTable::Snapshot::Entry>;

  Status Export(OpKernelContext* context, TableResource& resource) const {
    const EmbeddingTable& table = resource.table();
    const EmbeddingTable::Snapshot snapshot(table);
    // Of the snapshot's instant: both change under every shard's lock.
    const std::vector<float> bank = table.bank();
    std::vector<SlotPlace> places;
    TF_RETURN_IF_ERROR(FindSlots(resource, slots_, &places));
    const Entries& admitted = snapshot.admitted();
    const Entries& filtered = snapshot.filtered();
    // The offsets are int32, as DeepRec's are.
    const size_t most = std::numeric_limits<int32_t>::max();
    if (admitted.size() > most || filtered.size() > most) {
      return ResourceExhausted("rows of table ", resource.name(),
                               " must be <= ", most, " to be saved, got ",
                               std::max(admitted.size(), filtered.size()),
                               "; cut the table into more shards");
    }

    const int64_t n = admitted.size();
    const int64_t bank_rows = static_cast<int64_t>(bank.size()) / dim_;
    Tensor *bank_out, *values;
    TF_RETURN_IF_ERROR(context->allocate_output(
        "bank", TensorShape({bank_rows, dim_}), &bank_out));
    TF_RETURN_IF_ERROR(
        context->allocate_output("values", TensorShape({n, dim_}), &values));
    OpOutputList slot_values;
    TF_RETURN_IF_ERROR(context->output_list("slot_values", &slot_values));
    std::vector<float*> slot_outs;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Tensor* out;
      TF_RETURN_IF_ERROR(
          slot_values.allocate(i, TensorShape({n, slots_[i].width}), &out));
      slot_outs.push_back(out->flat<float>().data());
    }

    TF_RETURN_IF_ERROR(WriteKeys(context, admitted, "keys", "freqs", "versions",
                                 "partition_offset"));
    TF_RETURN_IF_ERROR(WriteKeys(context, filtered, "keys_filtered",
                                 "freqs_filtered", "versions_filtered",
                                 "partition_filter_offset"));
    std::copy(bank.begin(), bank.end(), bank_out->flat<float>().data());
    float* values_out = values->flat<float>().data();
    // A miss for the row, then about a cycle a float: memory is the limit.
    IntraOpThreads(context)(
        n, 200 + table.row_floats(), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const float* row = admitted[i].row;
            std::copy_n(row, dim_, values_out + i * dim_);
            for (size_t s = 0; s < places.size(); ++s) {
              const int width = places[s].slot.width;
              float* out = slot_outs[s] + i * width;
              if (places[s].offset < 0) {
                std::fill_n(out, width, places[s].slot.initial);
              } else {
                std::copy_n(row + places[s].offset, width, out);
              }
            }
          }
        });
    return Status();
  }

  static Status WriteKeys(OpKernelContext* context, const Entries& entries,
                          const char* keys_name, const char* freqs_name,
                          const char* versions_name, const char* offset_name) {
    const TensorShape shape({static_cast<int64_t>(entries.size())});
    Tensor *keys, *freqs, *versions, *offset;
    TF_RETURN_IF_ERROR(context->allocate_output(keys_name, shape, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(freqs_name, shape, &freqs));
    TF_RETURN_IF_ERROR(
        context->allocate_output(versions_name, shape, &versions));
    TF_RETURN_IF_ERROR(context->allocate_output(
        offset_name, TensorShape({kBuckets + 1}), &offset));
    int32_t* offsets = offset->flat<int32_t>().data();
    std::fill_n(offsets, kBuckets + 1, 0);
    for (size_t i = 0; i < entries.size(); ++i) {
      keys->flat<int64_t>()(i) = entries[i].key;
      freqs->flat<int64_t>()(i) = entries[i].freq;
      versions->flat<int64_t>()(i) = entries[i].version;
      ++offsets[BucketOf(entries[i].key) + 1];
    }
    for (int64_t i = 0; i < kBuckets; ++i) offsets[i + 1] += offsets[i];
    return Status();
  }

  int64_t dim_ = 0;
  std::vector<SlotSpec> slots_;
};

// Rows of one shard of the checkpoint that belong to the table now.
struct Part {
  std::vector<int64_t> keys;
  Tensor values;                  // (keys, dim), and rows behind that are void.
  std::vector<int64_t> freqs;     // Empty: unknown.
  std::vector<int64_t> versions;  // Empty: unknown.
  // Per slot asked for (keys, width) and void rows; nullopt: not in the file.
  std::vector<std::optional<Tensor>> slots;
};

// Moves rows kept[i] of (n, width) to i; kept ascends.
template <typename T>
void KeepRows(const std::vector<int64_t>& kept, int64_t width, T* rows) {
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == static_cast<int64_t>(i)) continue;
    std::copy_n(rows + kept[i] * width, width, rows + i * width);
  }
}

class TableRestoreOp : public OpKernel {
 public:
  explicit TableRestoreOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &tensor_name_));
    OP_REQUIRES_OK(context, context->GetAttr("part", &part_));
    OP_REQUIRES_OK(context, context->GetAttr("num_parts", &num_parts_));
    OP_REQUIRES_OK(context, ReadSlots(context, &slots_));
    OP_REQUIRES(context, part_ < num_parts_,
                InvalidArgument("part must be < num_parts = ", num_parts_,
                                ", got ", part_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));
    const Tensor *prefix, *bank;
    OP_REQUIRES_OK(context, context->input("prefix", &prefix));
    OP_REQUIRES_OK(context, context->input("bank", &bank));

    const int dim = resource->table().dim();
    OP_REQUIRES(context, TensorShapeUtils::IsScalar(prefix->shape()),
                InvalidArgument("prefix must be [], got shape ",
                                prefix->shape().DebugString()));
    OP_REQUIRES(context,
                TensorShapeUtils::IsMatrix(bank->shape()) &&
                    bank->dim_size(0) >= 1 && bank->dim_size(1) == dim,
                InvalidArgument("bank of table ", resource->name(),
                                " must be [b, dim], b >= 1, dim = ", dim,
                                ", got shape ", bank->shape().DebugString()));
    std::vector<SlotPlace> places;
    OP_REQUIRES_OK(context, FindSlots(*resource, slots_, &places));

    CheckpointFile file(context, prefix->scalar<tensorflow::tstring>()());
    OP_REQUIRES_OK(context, file.status());
    std::vector<Part> parts;
    std::vector<std::string> sources;
    OP_REQUIRES_OK(context, Sources(&file, &sources));
    for (const std::string& source : sources) {
      const int64_t number = parts.size();
      parts.emplace_back();
      OP_REQUIRES_OK(context, ReadPart(context, &file, source, number,
                                       sources.size(), dim, &parts.back()));
    }
    OP_REQUIRES(
        context, !parts.empty(),
        NotFound("table ", tensor_name_, " must be in checkpoint ",
                 file.prefix(), " as ", tensor_name_, "-keys or ", tensor_name_,
                 "/part_0-keys, got a file with tables ", file.TableNames()));
    OP_REQUIRES_OK(context, CheckDistinct(parts, file.prefix()));
    Tensor file_bank;
    const std::string bank_name = tensor_name_ + "/default_values";
    if (file.Has(bank_name)) {
      OP_REQUIRES_OK(context, ReadBank(&file, bank_name, dim, &file_bank));
      bank = &file_bank;
    }

    OP_REQUIRES_OK(context, OrResourceExhausted(resource->name(), [&] {
                     return Replace(*bank, parts, resource.get());
                   }));
  }

 private:
  // What the checkpoint calls the shards of the table; none if it has no such
  // table. DataLoss if there is a gap.
  Status Sources(CheckpointFile* file,
                 std::vector<std::string>* sources) const {
    sources->clear();
    if (file->Has(tensor_name_ + "-keys")) {
      sources->push_back(tensor_name_);
      return Status();
    }
    // More shards than buckets are never written.
    for (int64_t part = 0; part < kBuckets; ++part) {
      const std::string source = StrCat(tensor_name_, "/part_", part);
      if (!file->Has(source + "-keys")) continue;
      if (part != static_cast<int64_t>(sources->size())) {
        return DataLoss("tensor ", tensor_name_, "/part_", sources->size(),
                        "-keys must be in ", file->prefix(), " beside ", source,
                        "-keys, got none; shards are missing");
      }
      sources->push_back(source);
    }
    return Status();
  }

  // A file without its last shards looks like one cut into fewer, but its keys
  // are then in the wrong ones. `number`: of the shard, of `sources`.
  static Status CheckKeysOfPart(const CheckpointFile& file,
                                const std::string& source, int64_t number,
                                int64_t sources,
                                const std::vector<int64_t>& keys) {
    for (const int64_t key : keys) {
      if (BucketOf(key) % sources != number) {
        return DataLoss("tensor ", source,
                        "-keys must hold keys with floormod(", "key, 1000) % ",
                        sources, " == ", number, ", got ", key,
                        "; shards are missing in ", file.prefix());
      }
    }
    return Status();
  }

  // Reads the rows of a shard, the number-th of `sources`, that belong here.
  Status ReadPart(OpKernelContext* context, CheckpointFile* file,
                  const std::string& source, int64_t number, int64_t sources,
                  int dim, Part* part) const {
    std::vector<int64_t> keys;
    TF_RETURN_IF_ERROR(file->ReadKeys(source + "-keys", &keys));
    const int64_t n = keys.size();
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < n; ++i) {
      if (BucketOf(keys[i]) % num_parts_ == part_) kept.push_back(i);
    }
    TF_RETURN_IF_ERROR(file->CheckOffsets(source + "-partition_offset", n));
    TF_RETURN_IF_ERROR(CheckKeysOfPart(*file, source, number, sources, keys));
    TF_RETURN_IF_ERROR(
        ReadValues(file, source, n, dim, "dim of the table", &part->values));
    KeepRows(kept, dim, part->values.flat<float>().data());
    TF_RETURN_IF_ERROR(file->ReadPerKey(source + "-freqs", n, &part->freqs));
    TF_RETURN_IF_ERROR(
        file->ReadPerKey(source + "-versions", n, &part->versions));
    for (std::vector<int64_t>* numbers : {&part->freqs, &part->versions}) {
      if (numbers->empty()) continue;
      KeepRows(kept, 1, numbers->data());
      numbers->resize(kept.size());
    }
    for (const SlotSpec& slot : slots_) {
      part->slots.emplace_back();
      TF_RETURN_IF_ERROR(ReadSlot(context, file, StrCat(source, "/", slot.name),
                                  slot, keys, kept, &part->slots.back()));
    }
    part->keys = std::move(keys);
    KeepRows(kept, 1, part->keys.data());
    part->keys.resize(kept.size());
    return Status();
  }

  static Status ReadValues(CheckpointFile* file, const std::string& source,
                           int64_t n, int64_t width, const char* what,
                           Tensor* values) {
    const std::string name = source + "-values";
    if (!file->Has(name)) {
      return DataLoss("tensor ", name, " must be in ", file->prefix(),
                      " beside ", source,
                      "-keys, got none; the file is damaged");
    }
    return file->ReadRows(name, n, width, what, values);
  }

  // Reads a slot's rows for keys[kept]. Its part of the file has keys of its
  // own: usually the same, but not in what DeepRec writes while workers train.
  static Status ReadSlot(OpKernelContext* context, CheckpointFile* file,
                         const std::string& source, const SlotSpec& slot,
                         const std::vector<int64_t>& keys,
                         const std::vector<int64_t>& kept,
                         std::optional<Tensor>* values) {
    if (!file->Has(source + "-keys")) return Status();
    std::vector<int64_t> slot_keys;
    TF_RETURN_IF_ERROR(file->ReadKeys(source + "-keys", &slot_keys));
    TF_RETURN_IF_ERROR(
        file->CheckOffsets(source + "-partition_offset", slot_keys.size()));
    Tensor rows;
    TF_RETURN_IF_ERROR(ReadValues(file, source, slot_keys.size(), slot.width,
                                  "width of the slot", &rows));
    float* data = rows.flat<float>().data();
    if (slot_keys == keys) {
      KeepRows(kept, slot.width, data);
      *values = std::move(rows);
      return Status();
    }
    std::unordered_map<int64_t, int64_t> row_of;
    row_of.reserve(slot_keys.size());
    for (size_t i = 0; i < slot_keys.size(); ++i) {
      if (!row_of.emplace(slot_keys[i], i).second) {
        return Repeated(source + "-keys", file->prefix(), slot_keys[i]);
      }
    }
    Tensor matched;
    TF_RETURN_IF_ERROR(context->allocate_temp(
        DT_FLOAT, TensorShape({static_cast<int64_t>(kept.size()), slot.width}),
        &matched));
    float* out = matched.flat<float>().data();
    for (size_t i = 0; i < kept.size(); ++i, out += slot.width) {
      const auto it = row_of.find(keys[kept[i]]);
      if (it == row_of.end()) {
        std::fill_n(out, slot.width, slot.initial);
      } else {
        std::copy_n(data + it->second * slot.width, slot.width, out);
      }
    }
    *values = std::move(matched);
    return Status();
  }

  static Status Repeated(const std::string& name, const std::string& prefix,
                         int64_t key) {
    return DataLoss("tensor ", name, " of ", prefix,
                    " must have distinct keys, got ", key,
                    " twice; the file is damaged");
  }

  // DataLoss if a key comes twice, in one shard or in two.
  Status CheckDistinct(const std::vector<Part>& parts,
                       const std::string& prefix) const {
    if (AreSorted(parts)) return Status();
    std::vector<int64_t> keys;
    for (const Part& part : parts) {
      keys.insert(keys.end(), part.keys.begin(), part.keys.end());
    }
    std::sort(keys.begin(), keys.end());
    const auto it = std::adjacent_find(keys.begin(), keys.end());
    if (it == keys.end()) return Status();
    return Repeated(
        tensor_name_ + (parts.size() > 1 ? "/part_*-keys" : "-keys"), prefix,
        *it);
  }

  // Whether the keys come as TableExport writes them: each shard by bucket,
  // then key, and no bucket in two shards. Then they are distinct; DeepRec's
  // are not in that order.
  static bool AreSorted(const std::vector<Part>& parts) {
    std::vector<const Part*> owners(kBuckets, nullptr);
    for (const Part& part : parts) {
      for (size_t i = 0; i < part.keys.size(); ++i) {
        const int64_t bucket = BucketOf(part.keys[i]);
        const Part*& owner = owners[bucket];
        if (owner == nullptr) owner = &part;
        if (owner != &part) return false;
        if (i == 0) continue;
        const int64_t previous = BucketOf(part.keys[i - 1]);
        if (bucket < previous ||
            (bucket == previous && part.keys[i] <= part.keys[i - 1])) {
          return false;
        }
      }
    }
    return true;
  }

  static Status ReadBank(CheckpointFile* file, const std::string& name, int dim,
                         Tensor* bank) {
    TF_RETURN_IF_ERROR(file->ReadMatrix(name, dim, "dim of the table", bank));
    if (bank->dim_size(0) >= 1) return Status();
    return DataLoss("tensor ", name, " of ", file->prefix(),
                    " must have a row, got none; the file is damaged");
  }

  // Puts the parts in place of what the table holds. Everything is checked.
  Status Replace(const Tensor& bank, const std::vector<Part>& parts,
                 TableResource* resource) const {
    std::lock_guard<std::shared_mutex> lock(resource->replace_mutex());
    EmbeddingTable& table = resource->table();
    table.Clear();
    // While there is no row yet, so that none has to move.
    if (!table.EnsureSlots(slots_)) {
      return ResourceExhausted("table ", resource->name(),
                               " must fit into memory with its slots, got no "
                               "memory for a first row");
    }
    table.SetBank(bank.flat<float>().data(), bank.dim_size(0));
    const std::vector<SlotSpec> present = table.slots();
    for (const Part& part : parts) {
      EmbeddingTable::Rows rows;
      rows.keys = part.keys.data();
      rows.n = part.keys.size();
      rows.values = part.values.flat<float>().data();
      rows.slots.assign(present.size(), nullptr);
      for (size_t i = 0; i < slots_.size(); ++i) {
        const auto it = std::find_if(
            present.begin(), present.end(),
            [&](const SlotSpec& slot) { return slot.name == slots_[i].name; });
        if (it != present.end() && part.slots[i].has_value()) {
          rows.slots[it - present.begin()] =
              part.slots[i]->flat<float>().data();
        }
      }
      rows.freqs = part.freqs.empty() ? nullptr : part.freqs.data();
      rows.versions = part.versions.empty() ? nullptr : part.versions.data();
      if (!table.Insert(rows)) {
        table.Clear();
        return ResourceExhausted("table ", resource->name(),
                                 " must fit into memory, got no memory for ",
                                 rows.n, " rows of the checkpoint");
      }
    }
    return Status();
  }

  std::string tensor_name_;
  int64_t part_ = 0;
  int64_t num_parts_ = 1;
  std::vector<SlotSpec> slots_;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableExport").Device(DEVICE_CPU),
                        TableExportOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableRestore").Device(DEVICE_CPU),
                        TableRestoreOp);

}  // namespace
}  // namespace rec_estimator
