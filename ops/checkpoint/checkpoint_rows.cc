// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_rows.h.
#include "ops/checkpoint/checkpoint_rows.h"

#include <algorithm>
#include <limits>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/kernel/errors.h"
#include "ops/table/table_resource.h"
#include "ops/table/value_types.h"

namespace rec_estimator {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;

namespace {

// Size of a batch in memory, unless a single row is larger. Larger batches are
// not faster.
constexpr int64_t kBatchBytes = int64_t{2} << 20;
constexpr int64_t kBatchRows = int64_t{1} << 16;

// Batches that are read before Next() asks for them. A thread that waits goes
// on when there are kAtOnce batches to do: to wake one for each batch makes a
// restore from the page cache a tenth slower.
constexpr size_t kReadAhead = 8;
constexpr size_t kAtOnce = 4;

// Most keys of a key class that are kept to detect repeats: 8 MiB.
constexpr size_t kMaxKeysOfClass = size_t{1} << 20;

// Moves row kept[i] of `rows` (n, width) to row i and drops the others. `kept`
// ascends.
template <typename T>
void KeepRows(const std::vector<int64_t>& kept, int64_t width,
              std::vector<T>* rows) {
  if (rows->empty()) return;
  T* data = rows->data();
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == static_cast<int64_t>(i)) continue;
    std::copy_n(data + kept[i] * width, width, data + i * width);
  }
  rows->resize(kept.size() * width);
}

}  // namespace

bool DistinctKeys::Add(int64_t key, int64_t key_class) {
  if (!by_class_) return true;
  if (key_class != class_) {
    if (!Finish()) return false;
    by_class_ = by_class_ && key_class > class_;
    class_ = key_class;
  } else if (key <= last_) {
    ascends_ = false;
  }
  last_ = key;
  if (keys_.size() <= kMaxKeysOfClass) keys_.push_back(key);
  return true;
}

bool DistinctKeys::Finish() {
  if (!ascends_) {
    std::sort(keys_.begin(), keys_.end());
    const auto it = std::adjacent_find(keys_.begin(), keys_.end());
    if (it != keys_.end()) {
      repeated_ = *it;
      return false;
    }
    if (keys_.size() > kMaxKeysOfClass) by_class_ = false;
  }
  keys_.clear();
  ascends_ = true;
  return true;
}

bool IsElsewhere(const KeyRules& rules, const StoredShard& shard) {
  return shard.count == rules.num_parts && shard.number != rules.part;
}

Status StoredRowReader::OpenKeys(const std::string& name,
                                 const std::string& offsets) {
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file_.Find(name, {DT_INT64, DT_INT32}, 1, &tensor));
  rows_ = tensor.rows;
  row_bytes_ = sizeof(int64_t);
  keys_.emplace(std::move(tensor));
  return CheckOffsets(offsets);
}

Status StoredRowReader::CheckOffsets(const std::string& name) {
  if (!file_.Has(name)) return Status();
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file_.Find(name, {DT_INT32}, 1, &tensor));
  const int64_t size = tensor.rows;
  std::vector<int64_t> offsets;
  if (size == kKeyClasses + 1) {
    offsets.resize(size);
    RowStream stream(std::move(tensor));
    TF_RETURN_IF_ERROR(stream.ReadIntegers(size, offsets.data()));
    if (offsets.front() == 0 && offsets.back() == rows_ &&
        std::is_sorted(offsets.begin(), offsets.end())) {
      return Status();
    }
  }
  return DataLoss("tensor ", name, " of ", file_.prefix(), " must be ",
                  kKeyClasses + 1, " offsets from 0 to ", rows_, ", got ", size,
                  offsets.empty() ? "" : StrCat(" up to ", offsets.back()),
                  "; the file is damaged");
}

Status StoredRowReader::CheckRows(const StoredTensor& tensor) const {
  if (tensor.rows == rows_) return Status();
  return DataLoss("tensor ", tensor.name, " of ", file_.prefix(), " must have ",
                  rows_, " rows, one per key, got ", tensor.rows,
                  "; the file is damaged");
}

Status StoredRowReader::OpenPerKey(const std::string& name,
                                   std::optional<RowStream>* stream) {
  if (!file_.Has(name)) return Status();
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file_.Find(name, {DT_INT64}, 1, &tensor));
  if (tensor.rows == 0) return Status();
  TF_RETURN_IF_ERROR(CheckRows(tensor));
  row_bytes_ += sizeof(int64_t);
  stream->emplace(std::move(tensor));
  return Status();
}

Status StoredRowReader::OpenFreqs(const std::string& name) {
  return OpenPerKey(name, &freqs_);
}

Status StoredRowReader::OpenVersions(const std::string& name) {
  return OpenPerKey(name, &versions_);
}

Status StoredRowReader::OpenValues(const std::string& source, int64_t width,
                                   const char* what) {
  const std::string name = source + kValues;
  if (!file_.Has(name)) {
    return DataLoss("checkpoint ", file_.prefix(), " has ", source, kKeys,
                    " but no ", name, "; the file is damaged");
  }
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file_.FindMatrix(name, width, what, &tensor));
  TF_RETURN_IF_ERROR(CheckRows(tensor));
  row_bytes_ += tensor.width * static_cast<int64_t>(sizeof(float));
  values_.emplace(std::move(tensor));
  return Status();
}

Status StoredRowReader::OpenSlot(const SlotSpec& slot) {
  slots_.emplace_back();
  Slot& opened = slots_.back();
  const std::string source = StrCat(shard_.name, "/", slot.name);
  if (!file_.Has(source + kKeys)) return Status();
  // A reader of the slot alone checks all that can be checked before a row is
  // read.
  StoredRowReader slot_reader(&file_, rules_, shard_);
  TF_RETURN_IF_ERROR(slot_reader.OpenKeys(source + kKeys, source + kOffsets));
  TF_RETURN_IF_ERROR(
      slot_reader.OpenValues(source, slot.width, "width of the slot"));
  opened.differs = slot_reader.rows_ != rows_;
  if (opened.differs) return Status();
  opened.keys = std::move(slot_reader.keys_);
  opened.values = std::move(slot_reader.values_);
  row_bytes_ += slot_reader.row_bytes_;
  return Status();
}

Status StoredRowReader::OpenRows(int64_t dim,
                                 const std::vector<SlotSpec>& slots,
                                 bool with_versions) {
  const std::string& name = shard_.name;
  TF_RETURN_IF_ERROR(OpenKeys(name + kKeys, name + kOffsets));
  TF_RETURN_IF_ERROR(OpenFreqs(name + kFreqs));
  if (with_versions) TF_RETURN_IF_ERROR(OpenVersions(name + kVersions));
  TF_RETURN_IF_ERROR(OpenValues(name, dim, "dim of the table"));
  for (const SlotSpec& slot : slots) TF_RETURN_IF_ERROR(OpenSlot(slot));
  return Status();
}

Status StoredRowReader::OpenFiltered(bool with_versions) {
  const std::string& name = shard_.name;
  TF_RETURN_IF_ERROR(OpenKeys(name + kKeysFiltered, name + kOffsetsFiltered));
  TF_RETURN_IF_ERROR(OpenFreqs(name + kFreqsFiltered));
  if (!with_versions) return Status();
  return OpenVersions(name + kVersionsFiltered);
}

bool StoredRowReader::CheckRange(ValueType type) {
  const StoredTensor& tensor = values_->tensor();
  const RowFormat format(static_cast<int>(tensor.width), {type});
  if (!format.is_narrow() || tensor.dtype == DataTypeOf(type)) return false;
  type_ = type;
  rounding_.emplace(format);
  return true;
}

StoredRowReader::~StoredRowReader() {
  Stop(absl::CancelledError("the reader was destroyed"));
  if (thread_.joinable()) thread_.join();
}

void StoredRowReader::Start() {
  ready_.reserve(kReadAhead);  // The thread does not handle a bad_alloc there.
  // Env::StartThread would end the process if no thread can start.
  try {
    thread_ = std::thread([this] { ReadAll(); });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

void StoredRowReader::ReadAll() {
  RowBatch batch;
  while (next_key_ < rows_) {
    const Status status =
        OrStatus(shard_.name, [&] { return ReadBatch(&batch); });
    std::unique_lock<std::mutex> lock(mutex_);
    status_.Update(status);
    if (ready_.size() == kReadAhead) {
      has_room_.wait(lock, [this] {
        return ready_.size() <= kReadAhead - kAtOnce || !status_.ok();
      });
    }
    if (!status_.ok()) break;
    if (batch.n == 0) continue;
    ready_.push_back(std::move(batch));
    batch = RowBatch();
    if (!spare_.empty()) {
      std::swap(batch, spare_.back());
      spare_.pop_back();
    }
    if (ready_.size() == kAtOnce) has_batches_.notify_all();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  all_read_ = true;
  has_batches_.notify_all();
}

Status StoredRowReader::ReadNext(RowBatch* batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  batch->n = 0;
  while (status_.ok() && batch->n == 0 && next_key_ < rows_) {
    status_ = OrStatus(shard_.name, [&] { return ReadBatch(batch); });
  }
  if (!status_.ok()) batch->n = 0;
  return status_;
}

Status StoredRowReader::Next(RowBatch* batch) {
  if (!thread_.joinable()) return ReadNext(batch);
  std::unique_lock<std::mutex> lock(mutex_);
  if (batch->n > 0) spare_.push_back(std::move(*batch));
  *batch = RowBatch();
  if (ready_.empty()) {
    has_batches_.wait(lock, [this] {
      return all_read_ || ready_.size() >= kAtOnce || !status_.ok();
    });
  }
  if (!status_.ok() || ready_.empty()) return status_;
  std::swap(*batch, ready_.front());
  ready_.erase(ready_.begin());
  if (ready_.size() == kReadAhead - kAtOnce) has_room_.notify_one();
  return status_;
}

void StoredRowReader::Stop(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_.Update(status);
  has_room_.notify_one();
  has_batches_.notify_all();
}

Status StoredRowReader::ReadBatch(RowBatch* batch) {
  const int64_t n =
      std::min(rows_ - next_key_,
               std::clamp<int64_t>(kBatchBytes / row_bytes_, 1, kBatchRows));
  batch->keys.resize(n);
  TF_RETURN_IF_ERROR(keys_->ReadIntegers(n, batch->keys.data()));
  TF_RETURN_IF_ERROR(CheckKeys(batch->keys));
  const auto read = [n](std::optional<RowStream>* stream, auto* out) -> Status {
    if (!stream->has_value()) {
      out->clear();
      return Status();
    }
    out->resize(n * (*stream)->tensor().width);
    if constexpr (std::is_same_v<decltype(out), std::vector<float>*>) {
      return (*stream)->ReadFloats(n, out->data());
    } else {
      return (*stream)->Read(n, out->data());
    }
  };
  TF_RETURN_IF_ERROR(read(&freqs_, &batch->freqs));
  TF_RETURN_IF_ERROR(CheckFreqs(*batch));
  TF_RETURN_IF_ERROR(read(&versions_, &batch->versions));
  TF_RETURN_IF_ERROR(read(&values_, &batch->values));
  batch->slots.resize(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.keys.has_value() && !slot.differs) {
      slot_keys_.resize(n);
      TF_RETURN_IF_ERROR(slot.keys->ReadIntegers(n, slot_keys_.data()));
      slot.differs = slot_keys_ != batch->keys;
      // The caller then reads the slot after the rows.
      if (slot.differs) slot.values.reset();
    }
    TF_RETURN_IF_ERROR(read(&slot.values, &batch->slots[i]));
  }
  next_key_ += n;
  if (next_key_ == rows_ && !distinct_.Finish()) return RepeatedKey();
  batch->n = n;
  if (kept_.size() != static_cast<size_t>(n)) DropOthers(batch);
  return CheckValues(*batch);
}

void StoredRowReader::DropOthers(RowBatch* batch) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (batch->slots[i].empty()) continue;
    KeepRows(kept_, slots_[i].values->tensor().width, &batch->slots[i]);
  }
  if (values_.has_value()) {
    KeepRows(kept_, values_->tensor().width, &batch->values);
  }
  KeepRows(kept_, 1, &batch->freqs);
  KeepRows(kept_, 1, &batch->versions);
  KeepRows(kept_, 1, &batch->keys);
  batch->n = kept_.size();
}

// Checks the keys and fills kept_. If the last shards of a checkpoint are
// missing, it looks like one with fewer shards, but its keys are then in the
// wrong shards.
Status StoredRowReader::CheckKeys(const std::vector<int64_t>& keys) {
  const std::string& name = keys_->tensor().name;
  kept_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t key = keys[i];
    const int64_t key_class = KeyClassOf(key);
    if (shard_.count > 1 && key_class % shard_.count != shard_.number) {
      return DataLoss("tensor ", name, " must hold keys with floormod(",
                      "key, 1000) % ", shard_.count, " == ", shard_.number,
                      ", got ", key, "; shards are missing in ",
                      file_.prefix());
    }
    if (rules_.key_dtype == DT_INT32 &&
        key != static_cast<int64_t>(static_cast<int32_t>(key))) {
      return InvalidArgument("tensor ", name, " of ", file_.prefix(),
                             " must have keys that fit into int32, got ", key,
                             "; make the table with int64 keys");
    }
    if (!distinct_.Add(key, key_class)) return RepeatedKey();
    if (rules_.num_parts == 1 || key_class % rules_.num_parts == rules_.part) {
      kept_.push_back(i);
    }
  }
  return Status();
}

Status StoredRowReader::CheckFreqs(const RowBatch& batch) const {
  const std::vector<int64_t>& freqs = batch.freqs;
  const auto negative = std::find_if(freqs.begin(), freqs.end(),
                                     [](int64_t freq) { return freq < 0; });
  if (negative == freqs.end()) return Status();
  return DataLoss("tensor ", freqs_->tensor().name, " of ", file_.prefix(),
                  " must have counts >= 0, got ", *negative, " for key ",
                  batch.keys[negative - freqs.begin()],
                  "; the file is damaged");
}

Status StoredRowReader::CheckValues(const RowBatch& batch) {
  if (!rounding_.has_value()) return Status();
  const int64_t width = values_->tensor().width;
  for (size_t i = 0; i < batch.n; ++i) {
    const float* const value = batch.values.data() + i * width;
    const int lost = rounding_->FirstLost(value);
    if (lost < 0) continue;
    return DataLoss("tensor ", values_->tensor().name, " of ", file_.prefix(),
                    " must be finite in ", NameOf(type_),
                    ", as the table stores it, got ", value[lost], " of key ",
                    batch.keys[i],
                    "; choose float32, or bfloat16 in place of float16 and "
                    "int8, for larger numbers");
  }
  return Status();
}

Status StoredRowReader::RepeatedKey() const {
  return DataLoss("tensor ", keys_->tensor().name, " of ", file_.prefix(),
                  " must have distinct keys, got ", distinct_.repeated(),
                  " twice; the file is damaged");
}

}  // namespace rec_estimator
