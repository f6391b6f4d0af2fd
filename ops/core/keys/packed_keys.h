// SPDX-License-Identifier: Apache-2.0
// The keys that one request sends to the tables of another task, in one array
// of 64-bit words: each distinct key of a table once, and how often it occurs.
//
//   sections        | keys                    | counts
//   3 words each    | 1 word each             | 32 bits each
//   n_gradient,     | section by section, in  | of the keys with a gradient and
//   n_counted,      | order of occurrence     | the counted keys, section by
//   n_read          |                         | section
//
// A section has the keys of one table. First those with a gradient, then those
// that are only counted, then those that are only read.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_PACKED_KEYS_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_PACKED_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/keys/key_partition.h"

namespace rec_estimator {

// What a step does with the keys of a list. Later uses come later in a section.
enum class KeyUse { kGradient, kCounted, kRead };

struct KeyList {
  const int64_t* keys;  // (n)
  uint64_t n;
  uint32_t section;
  KeyUse use;
  int32_t* index;  // (n) output: the position of each key in its section
};

// Removes repetitions from lists of keys.
class KeyPacker {
 public:
  // Sets the indices of all lists. False: there is no memory, or a section has
  // 2^31 keys or more.
  bool Pack(const std::vector<KeyList>& lists, uint32_t sections,
            const ParallelFor& parallel);

  // After Pack.
  size_t words() const;
  void Write(int64_t* packed) const;  // (words())

 private:
  struct Section {
    std::vector<const KeyList*> lists;  // By use.
    uint64_t n = 0;                     // Occurrences.
    int64_t* distinct = nullptr;        // (n) in order of first occurrence
    uint32_t* counts = nullptr;         // (n) by distinct key
    uint32_t* cells = nullptr;          // The Deduplicator's.
    uint32_t n_gradient = 0, n_counted = 0, n_distinct = 0;
  };
  static void Deduplicate(Section* section);

  std::vector<Section> sections_;
  Scratch scratch_;
};

// The parts of an array that a KeyPacker wrote.
class PackedKeys {
 public:
  struct Section {
    const int64_t* keys;     // (size())
    const uint32_t* counts;  // (n_gradient + n_counted)
    uint64_t n_gradient, n_counted, n_read;

    uint64_t size() const { return n_gradient + n_counted + n_read; }
  };

  // Finds the sections. False: these words, which may come from anywhere, are
  // not what a KeyPacker writes for so many sections. They outlive the object.
  // If another thread writes to them, the sections stay where they are.
  bool Open(const int64_t* packed, size_t words, size_t sections);

  size_t size() const { return sections_.size(); }
  const Section& operator[](size_t i) const { return sections_[i]; }

 private:
  std::vector<Section> sections_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_KEYS_PACKED_KEYS_H_
