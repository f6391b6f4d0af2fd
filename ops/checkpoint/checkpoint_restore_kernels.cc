// SPDX-License-Identifier: Apache-2.0
// Kernel of TableRestore: a table from a checkpoint and those it builds on, by
// way of little memory.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/checkpoint/checkpoint_chain.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/strcat.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::DT_INT64;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::tstring;
using ::tensorflow::errors::DataLoss;
using ::tensorflow::errors::ResourceExhausted;
using ::tensorflow::strings::StrCat;

// Threads that read and insert, at most: each takes the memory of a batch.
constexpr int64_t kWorkers = 4;

// Blocks of a Bloom filter read at once take so many bytes.
constexpr int64_t kBloomBytes = int64_t{4} << 20;

// Reads a chain of checkpoints into a table, which nobody else changes
// meanwhile, or, without a table, to see whether they can be read: all but
// whether keys that do not come by bucket are distinct, which takes a table.
class TableRestore {
 public:
  TableRestore(OpKernelContext* context, TableResource& resource,
               const KeyRules& rules, const std::vector<SlotSpec>& slots,
               EmbeddingTable* table)
      : context_(context),
        resource_(resource),
        rules_(rules),
        slots_(slots),
        layout_(resource.table().bloom_layout()),
        table_(table) {
    if (table == nullptr) return;
    const std::vector<SlotSpec> present = table->slots();
    num_slots_ = present.size();
    for (const SlotSpec& slot : slots) {
      const auto it = std::find_if(
          present.begin(), present.end(),
          [&](const SlotSpec& other) { return other.name == slot.name; });
      slot_numbers_.push_back(it - present.begin());
    }
  }

  Status Run(const std::vector<Link>& chain, const std::string& name) {
    for (const Link& link : chain) {
      CheckpointFile file(link.prefix);
      TF_RETURN_IF_ERROR(OpenLink(link, &file));
      StoredTable stored;
      TF_RETURN_IF_ERROR(FindStored(&file, name, &stored));
      const bool is_delta = !stored.delta_of.empty();
      for (const StoredShard& shard : stored.shards) {
        // Cut as the table is: another shard has nothing for this one.
        if (shard.count == rules_.num_parts && shard.number != rules_.part) {
          continue;
        }
        if (is_delta) TF_RETURN_IF_ERROR(ReadErased(&file, shard));
        TF_RETURN_IF_ERROR(ReadRows(&file, shard, is_delta));
        TF_RETURN_IF_ERROR(ReadFiltered(&file, shard, is_delta));
        TF_RETURN_IF_ERROR(ReadBloom(&file, shard));
      }
    }
    return Status();
  }

  // Rows that were read, those that a later checkpoint replaces included.
  int64_t rows() const { return rows_; }

 private:
  // Calls take(batch), which returns false if there is no memory, for all that
  // the reader has, on several threads. `count`: how many keys that were.
  template <typename Take>
  Status ForEachBatch(RowReader* reader, const Take& take, int64_t* count) {
    std::atomic<int64_t> taken{0};
    // Dear enough that each worker is a piece of work of its own.
    constexpr int64_t kCycles = int64_t{1} << 30;
    IntraOpThreads(context_)(kWorkers, kCycles, [&](int64_t, int64_t) {
      RowBatch batch;
      Status status;
      do {
        status = OrResourceExhausted(resource_.name(), [&]() -> Status {
          TF_RETURN_IF_ERROR(reader->Next(&batch));
          if (table_ != nullptr && batch.n > 0 && !take(&batch)) {
            return NoMemory(batch.n);
          }
          return Status();
        });
        taken += batch.n;
      } while (status.ok() && batch.n > 0);
      reader->Stop(status);
    });
    *count = taken;
    RowBatch none;
    return reader->Next(&none);
  }

  Status NoMemory(int64_t rows) const {
    return ResourceExhausted("table ", resource_.name(),
                             " must fit into memory, got no memory for ", rows,
                             " rows of the checkpoint");
  }

  // Whether `inserted` keys made `grown` more, unless the reader knows it.
  static Status CheckDistinct(const CheckpointFile& file,
                              const std::string& name, const RowReader& reader,
                              bool is_delta, int64_t inserted, int64_t grown) {
    if (reader.distinct() || (!is_delta && inserted == grown)) return Status();
    if (is_delta) {
      return DataLoss("tensor ", name, " of ", file.prefix(),
                      " must be ordered by floormod(key, 1000), got another "
                      "order; the file is damaged");
    }
    return DataLoss("tensor ", name, " of ", file.prefix(),
                    " must have distinct keys, got ", inserted, " of which ",
                    grown, " are; the file is damaged");
  }

  Status ReadErased(CheckpointFile* file, const StoredShard& shard) {
    RowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(reader.OpenKeys(shard.name + kKeysErased, ""));
    reader.Start();
    int64_t count;
    return ForEachBatch(
        &reader,
        [&](RowBatch* batch) {
          table_->Erase(batch->keys.data(), batch->n);
          return true;
        },
        &count);
  }

  Status ReadRows(CheckpointFile* file, const StoredShard& shard,
                  bool is_delta) {
    RowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(
        reader.OpenKeys(shard.name + kKeys, shard.name + kOffsets));
    TF_RETURN_IF_ERROR(reader.OpenFreqs(shard.name + kFreqs));
    TF_RETURN_IF_ERROR(reader.OpenVersions(shard.name + kVersions));
    TF_RETURN_IF_ERROR(reader.OpenValues(shard.name, resource_.table().dim(),
                                         "dim of the table"));
    for (const SlotSpec& slot : slots_) {
      TF_RETURN_IF_ERROR(reader.OpenSlot(slot));
    }
    reader.Start();
    // Keys of a file spread evenly over the shards they go into.
    if (table_ != nullptr) table_->Reserve(reader.rows() / rules_.num_parts);
    const int64_t before = table_ == nullptr ? 0 : table_->size();
    int64_t count;
    TF_RETURN_IF_ERROR(ForEachBatch(
        &reader, [&](RowBatch* batch) { return Insert(batch); }, &count));
    rows_ += count;
    if (table_ != nullptr) {
      TF_RETURN_IF_ERROR(CheckDistinct(*file, shard.name + kKeys, reader,
                                       is_delta, count,
                                       table_->size() - before));
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (reader.slot_differs(i)) {
        TF_RETURN_IF_ERROR(ReadSlot(file, shard, i));
      }
    }
    return Status();
  }

  bool Insert(RowBatch* batch) {
    // Whoever did not count has admitted them all.
    if (batch->freqs.empty()) {
      batch->freqs.assign(batch->n,
                          std::max<int64_t>(1, table_->filter().threshold));
    }
    EmbeddingTable::Rows rows;
    rows.keys = batch->keys.data();
    rows.n = batch->n;
    rows.values = batch->values.data();
    rows.slots.assign(num_slots_, nullptr);
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (batch->slots[i].empty()) continue;
      rows.slots[slot_numbers_[i]] = batch->slots[i].data();
    }
    rows.freqs = batch->freqs.data();
    rows.versions = batch->versions.empty() ? nullptr : batch->versions.data();
    return table_->Insert(rows);
  }

  // A slot with other keys than the rows: those that own a row.
  Status ReadSlot(CheckpointFile* file, const StoredShard& shard, size_t i) {
    const std::string source = StrCat(shard.name, "/", slots_[i].name);
    RowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(reader.OpenKeys(source + kKeys, source + kOffsets));
    TF_RETURN_IF_ERROR(
        reader.OpenValues(source, slots_[i].width, "width of the slot"));
    reader.Start();
    int64_t count;
    return ForEachBatch(
        &reader,
        [&](RowBatch* batch) {
          table_->SetSlot(slot_numbers_[i], batch->keys.data(), batch->n,
                          batch->values.data());
          return true;
        },
        &count);
  }

  Status ReadFiltered(CheckpointFile* file, const StoredShard& shard,
                      bool is_delta) {
    const std::string name = shard.name + kKeysFiltered;
    if (!file->Has(name)) return Status();
    RowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(reader.OpenKeys(name, shard.name + kOffsetsFiltered));
    TF_RETURN_IF_ERROR(reader.OpenFreqs(shard.name + kFreqsFiltered));
    TF_RETURN_IF_ERROR(reader.OpenVersions(shard.name + kVersionsFiltered));
    reader.Start();
    // A file with a Bloom filter has its counts there; keys of such a file are
    // those whose cells could not be taken back.
    const bool into_bloom =
        layout_.blocks > 0 && !file->Has(shard.name + kBloomLayout);
    const int64_t before = table_ == nullptr ? 0 : table_->total_count();
    int64_t count;
    TF_RETURN_IF_ERROR(ForEachBatch(
        &reader,
        [&](RowBatch* batch) {
          return table_->InsertFiltered(
              batch->keys.data(), batch->n,
              batch->freqs.empty() ? nullptr : batch->freqs.data(),
              batch->versions.empty() ? nullptr : batch->versions.data(),
              into_bloom);
        },
        &count));
    // In the Bloom filter a key that comes twice does no harm.
    if (table_ == nullptr || into_bloom) return Status();
    return CheckDistinct(*file, name, reader, is_delta, count,
                         table_->total_count() - before);
  }

  Status ReadBloom(CheckpointFile* file, const StoredShard& shard) {
    const std::string name = shard.name + kBloomLayout;
    // Without a Bloom filter here its counts are forgotten.
    if (layout_.blocks == 0 || !file->Has(name)) return Status();
    StoredTensor tensor;
    TF_RETURN_IF_ERROR(file->Find(name, {DT_INT64}, 1, &tensor));
    int64_t here[kBloomLayoutSize], there[kBloomLayoutSize];
    if (tensor.rows != kBloomLayoutSize) {
      return DataLoss("tensor ", name, " of ", file->prefix(), " must be [",
                      kBloomLayoutSize, "], got [", tensor.rows,
                      "]; the file is damaged");
    }
    TF_RETURN_IF_ERROR(
        RowStream(std::move(tensor)).ReadIntegers(kBloomLayoutSize, there));
    CopyLayout(layout_, here);
    if (!std::equal(here, here + kBloomLayoutSize, there)) {
      if (table_ != nullptr) {
        LOG(WARNING) << "Counts of keys of table " << resource_.name()
                     << " that are not admitted are dropped: its Bloom filter "
                        "has "
                     << here[0] << " blocks of " << here[1] << " cells of "
                     << here[3] << " bits and " << here[2]
                     << " hashes, that in " << file->prefix() << " has "
                     << there[0] << ", " << there[1] << ", " << there[3]
                     << " and " << there[2];
      }
      return Status();
    }
    return WithCounterType(BloomCounterType(layout_), [&](auto* counter) {
      return ReadBloomBlocks(file, shard, counter);
    });
  }

  template <typename Counter>
  Status ReadBloomBlocks(CheckpointFile* file, const StoredShard& shard,
                         Counter*) {
    const int64_t width = layout_.cells_per_block;
    const std::string blocks_name = shard.name + kBloomBlocks;
    const std::string counters_name = shard.name + kBloomCounters;
    StoredTensor tensor;
    TF_RETURN_IF_ERROR(file->Find(blocks_name, {DT_INT64}, 1, &tensor));
    const int64_t blocks = tensor.rows;
    RowStream numbers(std::move(tensor));
    TF_RETURN_IF_ERROR(
        file->Find(counters_name, {BloomCounterType(layout_)}, 2, &tensor));
    if (tensor.rows != blocks || (blocks > 0 && tensor.width != width)) {
      return DataLoss("tensor ", counters_name, " of ", file->prefix(),
                      " must be [", blocks, ", ", width, "], got [",
                      tensor.rows, ", ", tensor.width,
                      "]; the file is damaged");
    }
    RowStream counters(std::move(tensor));
    const uint64_t largest = (uint64_t{1} << layout_.cell_bits) - 1;
    const int64_t most = std::max<int64_t>(1, kBloomBytes / (width * 4));
    std::vector<int64_t> number;
    std::vector<Counter> stored;
    std::vector<uint32_t> cells;
    for (int64_t at = 0; at < blocks; at += most) {
      const int64_t n = std::min(most, blocks - at);
      number.resize(n);
      stored.resize(n * width);
      TF_RETURN_IF_ERROR(numbers.ReadIntegers(n, number.data()));
      TF_RETURN_IF_ERROR(counters.Read(n, stored.data()));
      for (const int64_t block : number) {
        if (block < 0 || block >= layout_.blocks) {
          return DataLoss("tensor ", blocks_name, " of ", file->prefix(),
                          " must have numbers in [0, ", layout_.blocks,
                          "), got ", block, "; the file is damaged");
        }
      }
      for (const Counter cell : stored) {
        if (cell > largest) {
          return DataLoss("tensor ", counters_name, " of ", file->prefix(),
                          " must have counts <= ", largest, ", got ", cell,
                          "; the file is damaged");
        }
      }
      if (table_ == nullptr) continue;
      cells.assign(stored.begin(), stored.end());
      if (!table_->MergeBloom(number.data(), n, cells.data())) {
        return NoMemory(n);
      }
    }
    return Status();
  }

  OpKernelContext* const context_;
  TableResource& resource_;
  const KeyRules rules_;
  const std::vector<SlotSpec>& slots_;
  const EmbeddingTable::BloomLayout layout_;
  EmbeddingTable* const table_;  // nullptr: only to see.
  int64_t rows_ = 0;
  size_t num_slots_ = 0;              // The table's.
  std::vector<size_t> slot_numbers_;  // Of slots_ among the table's.
};

class TableRestoreOp : public OpKernel {
 public:
  explicit TableRestoreOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &tensor_name_));
    OP_REQUIRES_OK(context, context->GetAttr("part", &rules_.part));
    OP_REQUIRES_OK(context, context->GetAttr("num_parts", &rules_.num_parts));
    OP_REQUIRES_OK(context, context->GetAttr("key_dtype", &rules_.key_dtype));
    OP_REQUIRES_OK(context, ReadSlots(context, &slots_));
    OP_REQUIRES(context, rules_.part < rules_.num_parts,
                tensorflow::errors::InvalidArgument(
                    "part must be < num_parts = ", rules_.num_parts, ", got ",
                    rules_.part));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));
    const Tensor *prefix, *bank;
    OP_REQUIRES_OK(context, context->input("prefix", &prefix));
    OP_REQUIRES_OK(context, context->input("bank", &bank));

    const int dim = resource->table().dim();
    OP_REQUIRES(
        context, TensorShapeUtils::IsScalar(prefix->shape()),
        tensorflow::errors::InvalidArgument("prefix must be [], got shape ",
                                            prefix->shape().DebugString()));
    OP_REQUIRES(context,
                TensorShapeUtils::IsMatrix(bank->shape()) &&
                    bank->dim_size(0) >= 1 && bank->dim_size(1) == dim,
                tensorflow::errors::InvalidArgument(
                    "bank of table ", resource->name(),
                    " must be [b, dim], b >= 1, dim = ", dim, ", got shape ",
                    bank->shape().DebugString()));
    std::vector<SlotPlace> places;
    OP_REQUIRES_OK(context, FindSlots(*resource, slots_, &places));

    OP_REQUIRES_OK(context, OrResourceExhausted(resource->name(), [&] {
                     return Restore(context, prefix->scalar<tstring>()(),
                                    bank->flat<float>().data(),
                                    bank->dim_size(0), resource.get());
                   }));
  }

 private:
  Status Restore(OpKernelContext* context, const std::string& prefix,
                 const float* bank, int64_t bank_rows,
                 TableResource* resource) const {
    EmbeddingTable& table = resource->table();
    std::vector<Link> chain;
    TF_RETURN_IF_ERROR(FindChain(prefix, tensor_name_, &chain));
    std::vector<float> stored_bank;
    TF_RETURN_IF_ERROR(ReadBank(chain, table.dim(), &stored_bank));
    if (!stored_bank.empty()) {
      bank = stored_bank.data();
      bank_rows = static_cast<int64_t>(stored_bank.size()) / table.dim();
    }

    std::lock_guard<std::shared_mutex> lock(resource->replace_mutex());
    // What counts in a Bloom filter cannot be seen from outside.
    const bool holds_counts = table.bloom_layout().blocks > 0;
    const bool is_new = table.bank_rows() == 0;
    if (table.total_count() > 0 || (holds_counts && !is_new)) {
      TableRestore only_reads(context, *resource, rules_, slots_, nullptr);
      TF_RETURN_IF_ERROR(only_reads.Run(chain, tensor_name_));
      // Of changes to a checkpoint it is not known yet how many rows they make.
      if (chain.size() == 1) {
        TF_RETURN_IF_ERROR(CheckRoom(*resource, only_reads.rows()));
      }
    }
    const std::vector<float> old_bank = table.bank();
    table.Clear();
    const Status status = Fill(context, chain, bank, bank_rows, resource);
    if (status.ok()) return status;
    table.Clear();
    if (!is_new) {
      table.SetBank(old_bank.data(),
                    static_cast<int64_t>(old_bank.size()) / table.dim());
    }
    return status;
  }

  Status Fill(OpKernelContext* context, const std::vector<Link>& chain,
              const float* bank, int64_t bank_rows,
              TableResource* resource) const {
    EmbeddingTable& table = resource->table();
    // While there is no row yet, so that none has to move.
    if (!table.EnsureSlots(slots_)) {
      return ResourceExhausted("table ", resource->name(),
                               " must fit into memory with its slots, got no "
                               "memory for a first row");
    }
    table.SetBank(bank, bank_rows);
    TableRestore restore(context, *resource, rules_, slots_, &table);
    TF_RETURN_IF_ERROR(restore.Run(chain, tensor_name_));
    // A checkpoint may be from a table that has no padding.
    if (table.rules().has_padding) table.Erase(&EmbeddingTable::kPadding, 1);
    return CheckRoom(*resource, table.size());
  }

  static Status CheckRoom(TableResource& resource, int64_t rows) {
    const int64_t most = resource.table().rules().max_rows;
    if (most == 0 || rows <= most) return Status();
    return TooManyRows(resource, rows - most, " in the checkpoint");
  }

  // The bank of the last checkpoint that has one; left empty if none has.
  Status ReadBank(const std::vector<Link>& chain, int64_t dim,
                  std::vector<float>* bank) const {
    const std::string name = tensor_name_ + kBank;
    for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
      CheckpointFile file(link->prefix);
      TF_RETURN_IF_ERROR(OpenLink(*link, &file));
      if (!file.Has(name)) continue;
      StoredTensor tensor;
      TF_RETURN_IF_ERROR(
          file.FindMatrix(name, dim, "dim of the table", &tensor));
      if (tensor.rows == 0) {
        return DataLoss("tensor ", name, " of ", link->prefix,
                        " must have a row, got none; the file is damaged");
      }
      const int64_t rows = tensor.rows;
      bank->resize(rows * dim);
      return RowStream(std::move(tensor)).Read(rows, bank->data());
    }
    return Status();
  }

  std::string tensor_name_;
  KeyRules rules_{0, 1, DT_INT64};
  std::vector<SlotSpec> slots_;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableRestore").Device(DEVICE_CPU),
                        TableRestoreOp);

}  // namespace
}  // namespace rec_estimator
