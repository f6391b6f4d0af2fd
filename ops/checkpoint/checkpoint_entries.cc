// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_entries.h.
#include "ops/checkpoint/checkpoint_entries.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/op_threads.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DataType;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Rows that are fetched before they are copied.
constexpr int64_t kPrefetched = 16;

// Memory for entries that are listed, plus a share of the table's memory. Each
// listing scans the whole index, so there should be few of them. A save may
// take 64 MiB and 1 % in all. Beside the list, chunks take 6 MiB, and entries
// that are read 2. If rows are on disk, the file's buffers take 4, the rows
// that are read 8, and pages that are held for later rows 20 MiB and 0.25 %
// (ops/core/table/snapshot.cc).
constexpr int64_t kListedBytes = int64_t{42} << 20;
constexpr int64_t kListedBytesBesidePages = int64_t{22} << 20;
constexpr int64_t kListedShare = 200;  // 1/200 = 0.5 %.

}  // namespace

bool EntriesSave::Chunk::IsFree() const {
  const auto is_free = [](const Tensor& tensor) {
    return tensor.NumElements() == 0 || tensor.RefCountIsOne();
  };
  return is_free(keys) && is_free(freqs) && is_free(versions) &&
         is_free(values) && is_free(scale_offset) &&
         std::all_of(slots.begin(), slots.end(), is_free);
}

EntriesSave::EntriesSave(tensorflow::OpKernelContext* context,
                         TableResource* resource, const TableNames& names,
                         CheckpointWriter* writer)
    : context_(context),
      resource_(*resource),
      names_(names),
      writer_(*writer),
      sources_{names.name},
      report_(resource) {
  for (const SlotSpec& slot : names.slots) {
    sources_.push_back(StrCat(names.name, "/", slot.name));
  }
}

Status EntriesSave::Run(const Snapshot& snapshot, bool refuses) {
  TF_RETURN_IF_ERROR(FindSlots(resource_, names_.slots, &slot_offsets_));
  TF_RETURN_IF_ERROR(CheckCountable(resource_.name(), snapshot));
  const std::vector<int64_t>& admitted = snapshot.admitted_offsets();
  const std::vector<int64_t> none(kKeyClasses + 1, 0);
  const bool saves_filtered = SavesFilteredKeys();
  const std::vector<int64_t>& filtered =
      saves_filtered ? snapshot.filtered_offsets() : none;
  TF_RETURN_IF_ERROR(SaveOffsets(kOffsets, admitted));
  TF_RETURN_IF_ERROR(SaveOffsets(kOffsetsFiltered, filtered));
  TF_RETURN_IF_ERROR(SaveKeys(snapshot, admitted.back(), /*with_row=*/true));
  TF_RETURN_IF_ERROR(SaveKeys(snapshot, filtered.back(), /*with_row=*/false));
  return report_.Finish(slot_offsets_, refuses);
}

Status EntriesSave::SaveOffsets(const char* suffix,
                                const std::vector<int64_t>& offsets) {
  const int64_t n = offsets.size();
  Tensor tensor;
  TF_RETURN_IF_ERROR(
      context_->allocate_temp(DT_INT32, TensorShape({n}), &tensor));
  std::copy(offsets.begin(), offsets.end(), tensor.flat<int32_t>().data());
  std::vector<TensorRows> slices;
  for (const std::string& source : sources_) {
    slices.push_back({source + suffix, n, 0, tensor});
  }
  return writer_.Add(std::move(slices));
}

Status EntriesSave::SaveKeys(const Snapshot& snapshot, int64_t total,
                             bool with_row) {
  if (total == 0) return SaveBatch({}, 0, 0, with_row);
  const EmbeddingTable& table = resource_.table();
  int64_t bytes_per_key = 3 * sizeof(int64_t);
  if (with_row) {
    bytes_per_key += table.dim() * sizeof(float);
    for (const SlotSpec& slot : names_.slots) {
      bytes_per_key += slot.width * sizeof(float);
    }
  }
  const int64_t listed_bytes =
      (table.tier() == nullptr ? kListedBytes : kListedBytesBesidePages) +
      table.memory_bytes() / kListedShare;
  EntryReader reader(snapshot, with_row,
                     std::max<int64_t>(1, kChunkBytes / bytes_per_key),
                     listed_bytes);
  for (int64_t begin = 0; begin < total;) {
    const EntryReader::Batch batch = reader.Next();
    TF_RETURN_IF_ERROR(SaveBatch(batch, begin, total, with_row));
    begin += static_cast<int64_t>(batch.n);
  }
  return Status();
}

Status EntriesSave::SaveBatch(const EntryReader::Batch& batch, int64_t begin,
                              int64_t total, bool with_row) {
  const auto n = static_cast<int64_t>(batch.n);
  Chunk* chunk;
  TF_RETURN_IF_ERROR(AcquireChunk(n, with_row, &chunk));
  TF_RETURN_IF_ERROR(FillChunk(batch, with_row, chunk));
  std::vector<TensorRows> slices;
  const auto add = [&](const std::string& name, const Tensor& rows) {
    slices.push_back({name, total, begin, rows.Slice(0, n)});
  };
  for (size_t s = 0; s < sources_.size(); ++s) {
    const std::string& source = sources_[s];
    add(source + (with_row ? kKeys : kKeysFiltered), chunk->keys);
    add(source + (with_row ? kFreqs : kFreqsFiltered), chunk->freqs);
    add(source + (with_row ? kVersions : kVersionsFiltered), chunk->versions);
    if (with_row) {
      add(source + kValues, s == 0 ? chunk->values : chunk->slots[s - 1]);
    }
  }
  if (with_row && HasBytes()) {
    add(names_.name + kScaleOffset, chunk->scale_offset);
  }
  return writer_.Add(std::move(slices));
}

Status EntriesSave::FillChunk(const EntryReader::Batch& batch, bool with_row,
                              Chunk* chunk) {
  const auto n = static_cast<int64_t>(batch.n);
  std::vector<ValueRows> slot_outs;
  std::optional<ValueRows> value_out;
  if (with_row) {
    value_out.emplace(chunk->values, chunk->scale_offset);
    for (const Tensor& slot : chunk->slots) slot_outs.emplace_back(slot);
  }
  int64_t* freq_out = chunk->freqs.flat<int64_t>().data();
  int64_t* version_out = chunk->versions.flat<int64_t>().data();
  const int64_t row_floats = resource_.table().row_floats();
  const auto copy = [&](int64_t first, int64_t end) {
    RowReport::Part report(&report_);
    for (int64_t i = first; i < end; ++i) {
      freq_out[i] = batch.entries[i].count;
      version_out[i] = batch.entries[i].version;
      if (!with_row) continue;
      if (i + kPrefetched < end) {
        PrefetchLines(batch.rows[i + kPrefetched], row_floats * sizeof(float));
      }
      CopyRowAndSlots(batch.rows[i], i, *value_out, slot_offsets_, slot_outs);
      report.Add(batch.entries[i], batch.rows[i]);
    }
  };
  // A cache miss for the row, then about a cycle per float.
  OpThreads(context_)(n, 200 + row_floats, copy);
  return CopyKeys(
      resource_.name(), n, [&](int64_t i) { return batch.entries[i].key; },
      &chunk->keys);
}

Status EntriesSave::AcquireChunk(int64_t n, bool with_row, Chunk** chunk) {
  std::vector<Chunk>& chunks = chunks_[with_row];
  auto it = std::find_if(chunks.begin(), chunks.end(),
                         [](const Chunk& each) { return each.IsFree(); });
  if (it == chunks.end()) it = chunks.insert(it, Chunk());
  *chunk = &*it;
  if (it->rows >= n) return Status();
  *it = Chunk();
  it->rows = n;
  const auto allocate = [&](DataType dtype, const TensorShape& shape,
                            Tensor* tensor) {
    return context_->allocate_temp(dtype, shape, tensor);
  };
  const TensorShape per_key({n});
  TF_RETURN_IF_ERROR(allocate(names_.key_dtype, per_key, &it->keys));
  TF_RETURN_IF_ERROR(allocate(DT_INT64, per_key, &it->freqs));
  TF_RETURN_IF_ERROR(allocate(DT_INT64, per_key, &it->versions));
  if (!with_row) return Status();
  const int64_t dim = resource_.table().dim();
  TF_RETURN_IF_ERROR(allocate(DataTypeOf(resource_.table().rules().value.type),
                              TensorShape({n, dim}), &it->values));
  if (HasBytes()) {
    TF_RETURN_IF_ERROR(
        allocate(DT_FLOAT, TensorShape({n, 2}), &it->scale_offset));
  }
  it->slots.resize(slot_offsets_.size());
  for (size_t s = 0; s < slot_offsets_.size(); ++s) {
    const int width = slot_offsets_[s].slot.width;
    TF_RETURN_IF_ERROR(allocate(SlotTypeOf(resource_.table(), width),
                                TensorShape({n, width}), &it->slots[s]));
  }
  return Status();
}

bool EntriesSave::HasBytes() const {
  return resource_.table().rules().value.type == ValueType::kInt8;
}

}  // namespace rec_estimator
