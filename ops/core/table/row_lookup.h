// SPDX-License-Identifier: Apache-2.0
// The loops of a lookup: from keys to the vectors they read.
//
// A lookup takes 24 keys at a time (kChunk), in three overlapping steps: hash
// the key and prefetch its bucket; compare the 5 keys of the bucket at once and
// prefetch the row; copy. Keys outside their home bucket, one in ten, are
// resolved last. In a block of keys that often repeat, each distinct key is
// looked up once.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_ROW_LOOKUP_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_ROW_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/rows/row_arena.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

class PinnedRows;

// Made and used while the stripes of the keys are locked, shared at least.
class RowLookup {
 public:
  RowLookup(const StripeSet& stripes, const RowStore& store, UnknownKey unknown)
      : stripes_(stripes),
        view_(store.view()),
        initial_(store.initial()),
        default_vector_(store.default_vector()),
        format_(store.format()),
        dim_(store.dim()),
        unknown_(unknown) {}

  // A key whose row is on disk, for which the default vector is taken.
  struct Spilled {
    size_t i;  // Its position in keys.
    int64_t key;
    uint32_t place;
  };
  // The spilled keys of the last call of a method below.
  const std::vector<Spilled>& spilled() const { return spilled_; }

  // Pins the rows of spilled(), whose stripes are still locked, to be read to
  // their rows of out (n, dim). Throws std::bad_alloc.
  void PinSpilled(float* out, PinnedRows* pinned) const;

  // rows[i] = what keys[i] reads, in the format of rows. Prefetches it.
  void Find(const int64_t* keys, size_t n, const float** rows);

  // out (n, dim) = what keys (n) read. known: the rows (n) of these keys,
  // HashIndex::kSpilled where they are not known; nullptr: none is.
  void Copy(const int64_t* keys, size_t n, float* out,
            const uint32_t* known = nullptr);

  // out (n, dim) = what the keys of hints->list(), which is short, read. Fills
  // the hints.
  void CopyListed(RowHints* hints, float* out);
  // Does the same for the keys of group g of a long list and their rows of
  // `out`.
  void CopyGroup(RowHints* hints, int g, float* out);

 private:
  // What a key without a row reads.
  const float* WithoutRow(int64_t key) const {
    const bool has_initial =
        unknown_ == UnknownKey::kInitial && !stripes_.IsPadding(key);
    return has_initial ? initial_.Of(key) : default_vector_;
  }
  // Copy for one block. CopyDistinct finds each key once; the block is not
  // small. False, with nothing done: too few keys occur more than once.
  bool CopyDistinct(const int64_t* keys, size_t n, float* out);
  void CopyEach(const int64_t* keys, size_t n, const uint32_t* known,
                float* out);
  void NoteSpilled(const int64_t* key, EntryRef entry);
  // Each of the last spilled() from `first` on is of one of `distinct` keys of
  // a block: lists every occurrence instead. position (n): of each occurrence
  // among the distinct keys. keys: of the block.
  void SpreadSpilled(size_t first, size_t distinct, const int64_t* keys,
                     const uint16_t* position, size_t n);
  void FindAll(const int64_t* keys, size_t n, const float** rows);
  // rows (n) = those of keys, which are distinct keys of hints->list() from
  // `first` on. Fills this part of the hints. Prefetches the rows. Each of the
  // last spilled() is of a distinct key.
  void FindListed(const int64_t* keys, uint32_t n, uint32_t first,
                  RowHints* hints, const float** rows);
  // The steps of both, for n <= kChunk keys.
  void PrefetchHomes(const int64_t* keys, size_t n, Bucket** homes) const;
  void FindChunk(const int64_t* keys, size_t n, Bucket* const* homes,
                 const float** rows);
  // rows (n) = those of these numbers. Prefetches them.
  void TakeRows(const uint32_t* known, size_t n, const float** rows) const;
  template <typename Match>
  void FindChunkWith(const int64_t* keys, size_t n, Bucket* const* homes,
                     const float** rows);

  const StripeSet& stripes_;
  const RowArena::View view_;
  const InitialVectors initial_;
  const float* const default_vector_;
  const RowFormat format_;
  const int dim_;
  const UnknownKey unknown_;
  const int64_t* first_key_ = nullptr;  // Spilled::i counts from this one.
  std::vector<Spilled> spilled_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_ROW_LOOKUP_H_
