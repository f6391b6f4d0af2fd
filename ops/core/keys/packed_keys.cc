// SPDX-License-Identifier: Apache-2.0
#include "ops/core/keys/packed_keys.h"

#include <algorithm>
#include <cstring>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/read_once.h"
#include "ops/core/keys/deduplicator.h"

namespace rec_estimator {
namespace {

constexpr size_t kHeaderWords = 3;  // At the beginning of a section.
// Cycles to deduplicate an occurrence.
constexpr int64_t kPackOccurrence = 40;
// The distance, in keys, at which cells are prefetched.
constexpr uint64_t kCellsAhead = 16;

// The words of n counts of 32 bits.
size_t WordsOfCounts(size_t n) { return n / 2 + n % 2; }

}  // namespace

bool KeyPacker::Pack(const std::vector<KeyList>& lists, uint32_t sections,
                     const ParallelFor& parallel) {
  sections_.assign(sections, Section());
  for (const KeyUse use :
       {KeyUse::kGradient, KeyUse::kCounted, KeyUse::kRead}) {
    for (const KeyList& list : lists) {
      if (list.use != use) continue;
      Section& section = sections_[list.section];
      section.lists.push_back(&list);
      if (list.n >= kMaxBatch - section.n) return false;
      section.n += list.n;
    }
  }
  uint64_t n = 0;
  const bool has_memory = scratch_.Allocate([&](Layout* layout) {
    for (Section& section : sections_) {
      n += section.n;
      layout->Add(&section.distinct, section.n);
      layout->Add(&section.counts, section.n);
      layout->Add(&section.cells, Deduplicator<uint32_t>::CellsFor(
                                      static_cast<size_t>(section.n)));
    }
  });
  if (!has_memory) return false;
  const int64_t units = static_cast<int64_t>(sections_.size());
  if (units == 0) return true;
  parallel(units, kPackOccurrence * static_cast<int64_t>(n) / units,
           [this](int64_t begin, int64_t end) {
             for (; begin < end; ++begin) {
               Deduplicate(&sections_[static_cast<size_t>(begin)]);
             }
           });
  return true;
}

void KeyPacker::Deduplicate(Section* section) {
  Deduplicator<uint32_t> deduplicator(static_cast<size_t>(section->n),
                                      section->cells, section->distinct);
  uint32_t* const counts = section->counts;
  const auto hash_of = [](int64_t key) { return CellHash(HashKey(key)); };
  for (const KeyList* list : section->lists) {
    const int64_t* const keys = list->keys;
    const uint32_t occurrence = list->use != KeyUse::kRead;
    for (uint64_t i = 0; i < list->n; ++i) {
      if (i + kCellsAhead < list->n) {
        deduplicator.Prefetch(hash_of(keys[i + kCellsAhead]));
      }
      counts[deduplicator.size()] = 0;
      const int64_t key = ReadOnce(keys[i]);
      const uint32_t number = deduplicator.Add(key, hash_of(key));
      counts[number] += occurrence;
      list->index[i] = static_cast<int32_t>(number);
    }
    const uint32_t n_distinct = deduplicator.size();
    if (list->use == KeyUse::kGradient) section->n_gradient = n_distinct;
    if (list->use != KeyUse::kRead) {
      section->n_counted = n_distinct - section->n_gradient;
    }
  }
  section->n_distinct = deduplicator.size();
}

size_t KeyPacker::words() const {
  size_t keys = 0, counts = 0;
  for (const Section& section : sections_) {
    keys += section.n_distinct;
    counts += section.n_gradient + section.n_counted;
  }
  return kHeaderWords * sections_.size() + keys + WordsOfCounts(counts);
}

void KeyPacker::Write(int64_t* packed) const {
  int64_t* const end = packed + words();
  if (packed < end) end[-1] = 0;  // Half of the last word may have no count.
  for (const Section& section : sections_) {
    *packed++ = section.n_gradient;
    *packed++ = section.n_counted;
    *packed++ = section.n_distinct - section.n_gradient - section.n_counted;
  }
  for (const Section& section : sections_) {
    packed = std::copy_n(section.distinct, section.n_distinct, packed);
  }
  char* bytes = reinterpret_cast<char*>(packed);
  for (const Section& section : sections_) {
    const size_t n = section.n_gradient + section.n_counted;
    if (n == 0) continue;
    std::memcpy(bytes, section.counts, n * sizeof(uint32_t));
    bytes += n * sizeof(uint32_t);
  }
}

bool PackedKeys::Open(const int64_t* packed, size_t words, size_t sections) {
  sections_.clear();
  if (words / kHeaderWords < sections) return false;
  size_t left = words - kHeaderWords * sections;
  size_t counts = 0;
  for (size_t i = 0; i < sections; ++i) {
    uint64_t sizes[kHeaderWords];
    for (size_t part = 0; part < kHeaderWords; ++part) {
      // A negative size is a large one without its sign.
      sizes[part] =
          static_cast<uint64_t>(ReadOnce(packed[kHeaderWords * i + part]));
      if (sizes[part] > left) return false;
      left -= static_cast<size_t>(sizes[part]);
    }
    sections_.push_back({nullptr, nullptr, sizes[0], sizes[1], sizes[2]});
    counts += sizes[0] + sizes[1];
  }
  if (left != WordsOfCounts(counts)) return false;
  const int64_t* keys = packed + kHeaderWords * sections;
  // Written by memcpy, so these words may be read as what they are.
  const auto* count = reinterpret_cast<const uint32_t*>(packed + words - left);
  for (Section& section : sections_) {
    section.keys = keys;
    section.counts = count;
    keys += section.size();
    count += section.n_gradient + section.n_counted;
  }
  return true;
}

}  // namespace rec_estimator
