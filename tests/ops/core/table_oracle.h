// SPDX-License-Identifier: Apache-2.0
// The definition of an EmbeddingTable, one key at a time, and random operations
// to compare a table with it.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_ORACLE_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_ORACLE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/rows/row_format.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/edges.h"

namespace rec_estimator {

// Values and slots of 16 bits are rounded by RowFormat, whose arithmetic has
// tests of its own. Here a Bloom filter is exact and never ages by its load:
// make that of the compared table large enough for both.
class TableOracle {
 public:
  struct Entry {
    int64_t count = 0;
    int64_t version = -1;
    std::vector<float> row;  // Empty: none.
  };

  TableOracle(int dim, float default_value, const FilterSpec& filter = {},
              const ValueSpec& value = {})
      : dim_(dim),
        default_(default_value),
        filter_(filter),
        bloom_(!filter.sketch.name.empty() && filter.threshold > 1),
        format_(dim, value) {}

  void SetBank(const std::vector<float>& bank) {
    bank_ = bank;
    for (size_t at = 0; at < bank_.size(); at += dim_) Round(&bank_[at]);
  }

  void EnsureSlots(const std::vector<SlotSpec>& slots) {
    for (size_t s = slots_.size(); s < slots.size(); ++s) {
      slots_.push_back(slots[s]);
      for (auto& [key, entry] : entries) {
        if (!entry.row.empty()) Extend(slots[s], &entry.row);
      }
    }
  }

  int64_t Count(int64_t key) const {
    const auto entry = entries.find(key);
    return entry != entries.end() ? entry->second.count : InCells(key);
  }
  int64_t Version(int64_t key) const {
    const auto entry = entries.find(key);
    return entry != entries.end() ? entry->second.version : -1;
  }
  bool HasRow(int64_t key) const {
    const auto entry = entries.find(key);
    return entry != entries.end() && !entry->second.row.empty();
  }
  std::vector<float> Read(int64_t key, UnknownKey unknown) const {
    if (HasRow(key)) {
      const std::vector<float>& row = entries.at(key).row;
      return {row.begin(), row.begin() + dim_};
    }
    if (unknown == UnknownKey::kInitial) return Initial(key);
    std::vector<float> value(dim_, default_);
    Round(value.data());
    return value;
  }
  int64_t rows() const {
    return std::count_if(entries.begin(), entries.end(), [](const auto& each) {
      return !each.second.row.empty();
    });
  }

  void Apply(const StepBatch& batch, const RowUpdate& update) {
    std::unordered_map<int64_t, int64_t> occurrences;
    std::unordered_map<int64_t, uint64_t> noises;
    std::unordered_map<int64_t, std::vector<float>> sums;
    for (size_t i = 0; i < batch.n; ++i) ++occurrences[batch.keys[i]];
    for (size_t i = 0; i < batch.n_counted; ++i)
      ++occurrences[batch.counted_keys[i]];
    for (const auto& [key, n] : occurrences) {
      noises[key] = format_.NoiseOf(key, batch.version,
                                    static_cast<uint32_t>(Count(key)));
      const int64_t count =
          std::min<int64_t>(Count(key) + n * filter_.coefficient, UINT32_MAX);
      const bool admitted = count >= filter_.threshold;
      if (bloom_ && entries.count(key) == 0 && !admitted) {
        cells_[0][key] = count;
        continue;
      }
      Entry& entry = entries[key];
      entry.count = count;
      entry.version = batch.version;
      if (entry.row.empty() && admitted) entry.row = NewRow(key);
    }
    for (size_t i = 0; i < batch.n; ++i) {
      const int64_t key = batch.keys[i];
      const float* grad = batch.grads + i * dim_;
      if (!HasRow(key)) continue;
      float* row = entries[key].row.data();
      if (update.per_occurrence() && !format_.is_narrow()) {
        update.Update(&row, &grad, 1, dim_);
        continue;
      }
      std::vector<float>& sum = sums[key];
      sum.resize(dim_, 0.0f);
      for (int d = 0; d < dim_; ++d) sum[d] += grad[d];
    }
    for (const auto& [key, sum] : sums) {
      float* row = entries[key].row.data();
      const float* grad = sum.data();
      update.Update(&row, &grad, 1, dim_);
      RoundTrained(noises[key], row);
    }
  }

  void Insert(const RestoredRows& rows) {
    for (size_t i = 0; i < rows.n; ++i) {
      Entry& entry = entries[rows.keys[i]];
      entry = Entry();
      entry.row = NewRow(rows.keys[i]);
      float* at = entry.row.data();
      if (rows.values != nullptr) std::copy_n(rows.values + i * dim_, dim_, at);
      Round(at);
      at += dim_;
      for (size_t s = 0; s < rows.slots.size(); ++s) {
        const size_t width = slots_[s].width;
        if (rows.slots[s] != nullptr) {
          std::copy_n(rows.slots[s] + i * width, width, at);
          RoundSlot(slots_[s].width, at);
        }
        at += width;
      }
      if (rows.freqs != nullptr) {
        entry.count = std::min<int64_t>(rows.freqs[i], UINT32_MAX);
      }
      if (rows.versions != nullptr) entry.version = rows.versions[i];
    }
  }

  void InsertFiltered(const std::vector<int64_t>& keys, const int64_t* freqs,
                      const int64_t* versions, bool into_bloom) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t freq = freqs == nullptr ? 0 : freqs[i];
      const int64_t count = std::clamp<int64_t>(freq, 0, UINT32_MAX);
      const bool admitted = count >= filter_.threshold;
      if (bloom_ && into_bloom && !admitted && entries.count(keys[i]) == 0) {
        int64_t& cell = cells_[0][keys[i]];
        cell = std::max(cell, count);
        continue;
      }
      Entry& entry = entries[keys[i]];
      entry.count = count;
      entry.version = versions == nullptr ? -1 : versions[i];
      if (entry.row.empty() && admitted) entry.row = NewRow(keys[i]);
    }
  }

  // The cells of a Bloom filter stay.
  size_t Erase(const std::vector<int64_t>& keys) {
    size_t erased = 0;
    for (const int64_t key : keys) erased += entries.erase(key);
    return erased;
  }

  int64_t EvictOlder(int64_t version, int64_t stamp) {
    const int64_t steps_to_live = std::max<int64_t>(0, stamp - version);
    for (int64_t& start : starts_) start = std::min(start, stamp);
    if (stamp - starts_[0] >= std::max<int64_t>(1, (steps_to_live + 1) / 2)) {
      std::rotate(cells_.begin(), cells_.end() - 1, cells_.end());
      cells_[0].clear();
      starts_ = {stamp, starts_[0], starts_[1]};
    }
    for (int age : {1, 2}) {
      if (starts_[age - 1] <= version) cells_[age].clear();
    }
    return Evict(stamp, [&](Entry* entry) {
      if (entry->version >= 0 && entry->version < version) return true;
      Date(stamp, entry);
      return false;
    });
  }
  int64_t EvictSmaller(float limit, int64_t stamp) {
    stamp = std::max(stamp, starts_[0]);
    return Evict(stamp, [&](Entry* entry) {
      if (entry->row.empty()) {
        if (bloom_) Date(stamp, entry);
        return false;
      }
      double sum = 0;
      for (int d = 0; d < dim_; ++d) {
        sum += static_cast<double>(entry->row[d]) * entry->row[d];
      }
      return 0.5 * sum < limit;
    });
  }

  void Clear() {
    entries.clear();
    cells_ = {};
    starts_ = {};
  }

  std::unordered_map<int64_t, Entry> entries;

 private:
  // Rounds a value (dim) to the nearest that is stored.
  void Round(float* value) const {
    std::vector<float> stored(dim_);
    format_.WriteValue(value, stored.data());
    format_.ReadValue(stored.data(), value);
  }
  void RoundSlot(int width, float* slot) const {
    std::vector<float> stored(width);
    format_.WriteSlot(slot, width, stored.data());
    format_.ReadSlot(stored.data(), width, slot);
  }
  // Rounds a row that a step has computed.
  void RoundTrained(uint64_t noise, float* row) const {
    format_.WithTrained([&](
        const auto& trained) __attribute__((always_inline)) {
      float* part = row;
      std::vector<float> stored(dim_);
      trained.WriteValue(part, noise, stored.data());
      format_.ReadValue(stored.data(), part);
      part += dim_;
      for (size_t s = 0; s < slots_.size(); ++s) {
        const int width = slots_[s].width;
        stored.resize(width);
        trained.WriteSlot(part, width, s, noise, stored.data());
        format_.ReadSlot(stored.data(), width, part);
        part += width;
      }
    });
  }
  void Extend(const SlotSpec& slot, std::vector<float>* row) const {
    row->insert(row->end(), slot.width, slot.initial);
    RoundSlot(slot.width, row->data() + row->size() - slot.width);
  }
  static void Date(int64_t stamp, Entry* entry) {
    if (entry->version == -1) entry->version = stamp;
    entry->version = std::min(entry->version, stamp);
  }
  std::vector<float> Initial(int64_t key) const {
    const int64_t n = static_cast<int64_t>(bank_.size()) / dim_;
    if (n == 0) return std::vector<float>(dim_, 0.0f);
    const auto row = bank_.begin() + ((key % n + n) % n) * dim_;
    return {row, row + dim_};
  }
  std::vector<float> NewRow(int64_t key) const {
    std::vector<float> row = Initial(key);
    for (const SlotSpec& slot : slots_) Extend(slot, &row);
    return row;
  }
  int64_t InCells(int64_t key) const {
    int64_t count = 0;
    for (const auto& cells : cells_) {
      const auto cell = cells.find(key);
      if (cell != cells.end()) count = std::max(count, cell->second);
    }
    return count;
  }
  template <typename Goes>
  int64_t Evict(int64_t stamp, const Goes& goes) {
    int64_t evicted = 0;
    for (auto entry = entries.begin(); entry != entries.end();) {
      if (!goes(&entry->second)) {
        ++entry;
        continue;
      }
      const bool had_row = !entry->second.row.empty();
      evicted += !bloom_ || had_row || entry->second.count > 0;
      if (had_row && InCells(entry->first) > 0) {
        entry->second = Entry();
        entry->second.version = stamp;
        ++entry;
      } else {
        entry = entries.erase(entry);
      }
    }
    return evicted;
  }

  const int dim_;
  const float default_;
  const FilterSpec filter_;
  const bool bloom_;
  const RowFormat format_;
  std::vector<float> bank_;
  std::vector<SlotSpec> slots_;
  // Generations, youngest first.
  std::array<std::unordered_map<int64_t, int64_t>, 3> cells_;
  std::array<int64_t, 3> starts_{};
};

// Keys and floats of random operations.
class RandomInputs {
 public:
  explicit RandomInputs(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t bound) { return random_() % bound; }

  // A few frequent keys, many rare ones, negative ones and the edges.
  int64_t Key() {
    static const int64_t kEdges[] = {0, -1, 1, kMin, kMax, kMin + 1, kMax - 1};
    switch (Below(8)) {
      case 0:
        return kEdges[Below(7)];
      case 1:
        return static_cast<int64_t>(Below(50));
      case 2:
      case 3:
        return static_cast<int64_t>(Below(2000)) - 1000;
      default:
        return static_cast<int64_t>(MixKey(static_cast<int64_t>(Below(3000))));
    }
  }
  std::vector<int64_t> Keys(size_t most) {
    std::vector<int64_t> keys(Below(most + 1));
    for (int64_t& key : keys) key = Key();
    return keys;
  }
  std::vector<int64_t> DistinctKeys(size_t most) {
    const std::vector<int64_t> keys = Keys(most);
    const std::set<int64_t> distinct(keys.begin(), keys.end());
    return {distinct.begin(), distinct.end()};
  }
  // Includes -0, which a sum from +0 must turn into +0.
  std::vector<float> Floats(size_t n) {
    std::vector<float> floats(n);
    for (float& f : floats) {
      f = Below(16) == 0 ? -0.0f : static_cast<float>(Below(4001)) * 1e-3f - 2;
    }
    return floats;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_ORACLE_H_
