// SPDX-License-Identifier: Apache-2.0
#include "ops/core/tier/disk_tier.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "ops/core/base/float8.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/base/parallel.h"
#include "ops/core/keys/packed_keys.h"

namespace rec_estimator {
namespace {

// Rows among which one victim is chosen: the search for it reads as many
// entries of the index.
constexpr int64_t kSample = 5;
// Rows that a search looks at together, so that their cache misses overlap.
constexpr size_t kSeen = 16;
// If spared rows take more than the memory for rows, there is one row that is
// not spared for so many that are.
constexpr int64_t kSparedPerOther = 4;
// Segments that are compacted for each one that spilled rows fill.
constexpr uint64_t kCompactedPerSpilled = 2;
// Segments that may be due for compaction, so that the log stays small where
// steps spill faster than the thread compacts.
constexpr uint64_t kCompactedLater = 8;
// Segments that are compacted to make room for another one.
constexpr int kCompactedForRoom = 2;

int StripeNumberOf(int64_t key) {
  return static_cast<int>(StripeOf(MixKey(key)));
}

// Throws std::bad_alloc.
std::vector<int64_t> WithoutRepeats(const std::vector<KeySpan>& lists) {
  size_t n = 0;
  for (const KeySpan& list : lists) n += list.n;
  std::vector<int32_t> positions(n);
  std::vector<KeyList> same;  // Lists of one section.
  size_t begin = 0;
  for (const KeySpan& list : lists) {
    same.push_back(
        {list.keys, list.n, 0, KeyUse::kRead, positions.data() + begin});
    begin += list.n;
  }
  KeyPacker packer;
  if (!packer.Pack(same, 1, SerialFor)) throw std::bad_alloc();
  std::vector<int64_t> packed(packer.words());
  packer.Write(packed.data());
  PackedKeys keys;
  if (!keys.Open(packed.data(), packed.size(), 1)) throw std::bad_alloc();
  return {keys[0].keys, keys[0].keys + keys[0].size()};
}

// Rows ahead of the one that is put back, whose buckets are fetched.
constexpr size_t kFetched = 8;

// A segment is a 64th of the memory: four buffers should not take much of it,
// but long segments make saves fast.
constexpr int64_t kSegmentShare = 64;
constexpr int64_t kMostSegmentBytes = int64_t{4} << 20;

// The least number of buffers that a limit of all memory must have room for.
constexpr size_t kLimitedBuffers = 6;

// Rows that lookups have read take at most this share of the memory for rows,
// or this many bytes, which the lookups of a step seldom exceed.
constexpr int64_t kRecentShare = 16;
constexpr int64_t kLeastRecentBytes = int64_t{4} << 20;

}  // namespace

void ThrowStorageError(const DiskError& error) {
  if (error.text.empty()) throw std::bad_alloc();
  throw StorageError(error);
}

std::unique_ptr<DiskTier> DiskTier::Open(StripeSet* stripes, RowStore* store,
                                         const TierSpec& spec,
                                         std::unique_ptr<DiskIo> io,
                                         DiskError* error) {
  const int64_t row_bytes = static_cast<int64_t>(store->row_bytes());
  int64_t memory = spec.memory_rows * row_bytes;
  if (spec.memory_bytes != 0) memory = spec.memory_bytes;
  if (spec.limit_bytes != 0) memory = spec.limit_bytes;
  std::unique_ptr<DiskTier> tier(new DiskTier(stripes, store, spec, memory));
  const int64_t segment = std::min(memory / kSegmentShare, kMostSegmentBytes);
  tier->log_ =
      DiskLog::Open(spec.paths, store->arena().row_floats(), std::move(io),
                    error, static_cast<size_t>(std::max<int64_t>(segment, 0)));
  if (tier->log_ != nullptr) return tier;
  tier->Fail(error);
  return nullptr;
}

DiskTier::DiskTier(StripeSet* stripes, RowStore* store, const TierSpec& spec,
                   int64_t memory_bytes)
    : stripes_(*stripes),
      store_(*store),
      spec_(spec),
      recent_(static_cast<size_t>(
          std::max(memory_bytes / kRecentShare, kLeastRecentBytes))),
      limit_(spec.limit_bytes == 0 ? nullptr
                                   : new MemoryLimit(spec.limit_bytes, stripes,
                                                     store, spec.warn)),
      compaction_([this] { CompactOne(); }) {}

bool DiskTier::Fail(DiskError* error) const {
  if (!spec_.owner.empty() && !error->text.empty()) {
    error->text = spec_.owner + ": " + error->text;
  }
  return false;
}

int64_t DiskTier::RowsPerStripe() const {
  if (limit_ != nullptr) return limited_rows_ / kStripes;
  const int64_t row_bytes =
      static_cast<int64_t>(log_->row_floats() * sizeof(float));
  const int64_t rows = spec_.memory_bytes != 0 ? spec_.memory_bytes / row_bytes
                                               : spec_.memory_rows;
  return std::max<int64_t>(rows / kStripes, 1);
}

int64_t DiskTier::MostInMemory(int stripe) const {
  const int64_t most = RowsPerStripe(), spared = ahead_.spared(stripe);
  // Some rows besides the spared ones, so that a search for victims is short.
  return std::max(most, spared + std::min(most, spared / kSparedPerOther));
}

PinnedRows::PinnedRows(DiskTier* tier) : tier_(*tier) {}

PinnedRows::~PinnedRows() { tier_.log()->Unpin(items_.data(), items_.size()); }

void PinnedRows::Add(uint32_t place, int64_t key, float* row) {
  stamps_.push_back(tier_.recent().StampOf(place));
  items_.push_back({place, key, row});
  tier_.log()->Pin(place);
}

void DiskTier::Release(const KeyHolder* holder) {
  holders_.Remove(holder);
  ahead_.EndStep();
}

TierCounts DiskTier::counts() {
  compaction_.WaitUntilLeft(0);
  const DiskLog::Counters log = log_->counters();
  TierCounts counts;
  counts.disk_rows = spilled();
  counts.memory_rows = stripes_.n_rows() - counts.disk_rows;
  counts.hits = hits_;
  counts.misses = misses_;
  counts.spills = spills_;
  counts.bytes_read = static_cast<int64_t>(log.bytes_read);
  counts.bytes_written = static_cast<int64_t>(log.bytes_written);
  counts.read_ns = static_cast<int64_t>(log.read_ns);
  counts.file_bytes = static_cast<int64_t>(log.file_bytes);
  counts.buffer_bytes = static_cast<int64_t>(memory_bytes());
  return counts;
}

int64_t DiskTier::spilled() const {
  int64_t rows = 0;
  for (const auto& spilled : spilled_) rows += spilled;
  return rows;
}

// ------------------------------------------------------------------- bring in

bool DiskTier::BringIn(PinnedRows* pinned, DiskError* error) {
  return BringInFor(For::kStep, pinned, error);
}

bool DiskTier::BringInFor(For whom, PinnedRows* pinned, DiskError* error) {
  std::vector<DiskLog::Item>& items = pinned->items();
  if (items.empty()) return true;
  const size_t floats = log_->row_floats();
  const std::unique_ptr<float[]> rows(new float[items.size() * floats]);
  for (size_t i = 0; i < items.size(); ++i) items[i].row = &rows[i * floats];
  std::vector<DiskLog::Item> unread;
  for (const size_t i : recent_.Copy(items.data(), items.size(), floats)) {
    unread.push_back(items[i]);
  }
  if (!log_->Read(unread.data(), unread.size(), floats, error)) {
    return Fail(error);
  }
  std::sort(items.begin(), items.end(),
            [](const DiskLog::Item& a, const DiskLog::Item& b) {
              return StripeNumberOf(a.key) < StripeNumberOf(b.key);
            });
  for (size_t at = 0; at < items.size();) {
    const int stripe = StripeNumberOf(items[at].key);
    size_t end = at;
    while (end < items.size() && StripeNumberOf(items[end].key) == stripe)
      ++end;
    if (!PutBack(whom, stripe, &items[at], end - at, floats)) {
      error->text.clear();
      return false;
    }
    at = end;
  }
  return true;
}

bool DiskTier::PutBack(For whom, int number, const DiskLog::Item* items,
                       size_t n, size_t floats) {
  Stripe& stripe = stripes_[number];
  const std::unique_lock<SharedMutex> lock(stripe.mutex());
  std::vector<uint32_t> freed;
  freed.reserve(n);
  uint32_t next = 0;
  const size_t free = std::min<size_t>(n, stripe.n_free_rows());
  const size_t from_arena = n - free;
  if (from_arena > 0 && !store_.arena().Take(from_arena, 0, &next)) {
    return false;
  }
  const uint32_t end = next + static_cast<uint32_t>(from_arena);
  const RowArena::View view = store_.view();
  for (size_t i = 0; i < n; ++i) {
    if (i + kFetched < n) stripe.Prefetch(items[i + kFetched].key);
    const EntryRef entry = stripe.Find(items[i].key);
    // Unless another step or batch brought it in, or it was erased. It may have
    // been moved, but it is the row that was read: held keys are not spilled.
    if (!entry.found() || !entry.is_spilled()) {
      if (whom == For::kBatchAhead && entry.found() && entry.in_memory()) {
        ahead_.Spare(number, entry.row());
      }
      continue;
    }
    // Others may have been brought in, trained and spilled since. A pinned
    // place is not used anew, so the row there is the one that was read.
    if (whom == For::kBatchAhead && entry.place() != items[i].place) continue;
    const bool was_free = stripe.n_free_rows() > 0;
    const uint32_t row = Stripe::RowSource(view, next).Next(&stripe);
    next += !was_free;
    float* const to = view.Row(row);
    CopyRow(items[i].row, static_cast<int>(floats), to);
    // Slots that were added since it was read.
    const std::vector<float>& initials = store_.slot_initials();
    const size_t known =
        floats - static_cast<size_t>(store_.format().value_words());
    std::copy(initials.begin() + static_cast<std::ptrdiff_t>(known),
              initials.end(), to + floats);
    freed.push_back(entry.place());
    entry.row() = row;
    if (whom == For::kBatchAhead) ahead_.Spare(number, row);
  }
  Free(number, freed.data(), freed.size());
  for (; next < end; ++next) stripe.FreeRow(next);
  stripe.LeaveInPlace();
  return true;
}

void DiskTier::BringInKeys(const int64_t* keys, size_t n) {
  PinnedRows spilled(this);
  stripes_.Inspect(keys, n, [&](size_t i, EntryRef entry) {
    if (entry.found() && entry.is_spilled())
      spilled.Add(entry.place(), keys[i]);
  });
  DiskError error;
  if (!BringIn(&spilled, &error)) ThrowStorageError(error);
}

bool DiskTier::BringInAhead(const std::vector<KeySpan>& lists, uint32_t batches,
                            DiskError* error) {
  // First: batches that never reach a step must not fill the memory.
  if (!SpillExcess(error)) return false;
  try {
    uint64_t keys = 0;
    for (const KeySpan& list : lists) keys += list.n;
    // For the rows of this batch and those that steps add before the next one.
    ahead_.Begin(batches, store_.arena().taken() + (batches + 1) * keys);
    PinnedRows spilled(this);
    ListAhead(lists, &spilled);
    return BringInFor(For::kBatchAhead, &spilled, error);
  } catch (const std::bad_alloc&) {
    error->text.clear();
    return false;
  }
}

void DiskTier::ListAhead(const std::vector<KeySpan>& lists,
                         PinnedRows* spilled) {
  const std::vector<int64_t> all = WithoutRepeats(lists);
  for (size_t at = 0; at < all.size(); at += kLockBlock) {
    const int64_t* const keys = &all[at];
    const size_t n = std::min(kLockBlock, all.size() - at);
    uint32_t rows[kLockBlock];
    const SharedLocks locks(stripes_, StripesOf(keys, n));
    stripes_.FindEach(keys, static_cast<uint32_t>(n),
                      [&](uint32_t i, EntryRef entry) {
                        rows[i] = HashIndex::RowWordOf(entry);
                        if (rows[i] < HashIndex::kMaxRows)
                          ahead_.Prefetch(rows[i]);
                      });
    for (size_t i = 0; i < n; ++i) {
      if (rows[i] < HashIndex::kMaxRows) {
        ahead_.Spare(StripeNumberOf(keys[i]), rows[i]);
      } else if (rows[i] != HashIndex::kNoRow) {
        spilled->Add(rows[i] & ~HashIndex::kSpilled, keys[i]);
      }
    }
  }
}

// ---------------------------------------------------------------------- spill

int64_t DiskTier::SpillSome(int number, int64_t n, bool* is_full) {
  Stripe& stripe = stripes_[number];
  const HeldKeys held = holders_.KeysIn(uint64_t{1} << number);
  const auto wanted = static_cast<size_t>(kSample * n);
  std::vector<Victim> victims;
  EntryRef seen[kSeen];
  size_t n_seen = 0;
  const auto take_seen = [&] {
    for (size_t i = 0; i < n_seen; ++i) {
      const EntryRef entry = seen[i];
      if (ahead_.IsSpared(entry.row()) || held.Contains(entry.key())) continue;
      victims.push_back({spec_.victims == Victims::kLeastCounted
                             ? static_cast<int64_t>(entry.count())
                             : entry.version(),
                         entry});
    }
    n_seen = 0;
  };
  stripe.index().ScanFrom(&hand_[number], [&](EntryRef entry) {
    if (!entry.in_memory()) return true;
    ahead_.Prefetch(entry.row());
    seen[n_seen++] = entry;
    if (n_seen < std::min(kSeen, wanted)) return true;
    take_seen();
    return victims.size() < wanted;
  });
  take_seen();
  n = std::min(n, static_cast<int64_t>(victims.size()));
  std::nth_element(
      victims.begin(), victims.begin() + n, victims.end(),
      [](const Victim& a, const Victim& b) { return a.priority < b.priority; });
  const RowArena::View view = store_.view();
  std::vector<DiskLog::NewRow> rows;
  rows.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const EntryRef entry = victims[static_cast<size_t>(i)].entry;
    rows.push_back({entry.key(), view.Row(entry.row())});
  }
  const size_t appended = log_->Append(rows.data(), rows.size());
  *is_full = appended < rows.size();
  for (size_t i = 0; i < appended; ++i) {
    const EntryRef entry = victims[i].entry;
    const uint32_t row = entry.row();
    entry.SetPlace(rows[i].place);
    stripe.FreeRow(row);
  }
  stripe.LeaveInPlace();
  spilled_[number] += static_cast<int64_t>(appended);
  spills_.fetch_add(static_cast<int64_t>(appended), std::memory_order_relaxed);
  spilled_since_ += static_cast<int64_t>(appended);
  return static_cast<int64_t>(appended);
}

bool DiskTier::SpillExcess(DiskError* error) {
  compaction_.WaitUntilLeft(kCompactedLater);
  const std::shared_lock<std::shared_mutex> lock(spilling_);
  if (limit_ != nullptr) {
    // As soon as a row is spilled, there are buffers.
    const size_t buffers =
        std::max(memory_bytes(), kLimitedBuffers * log_->segment_bytes());
    limited_rows_ = limit_->RowsToKeep(stripes_.n_rows() - spilled(),
                                       static_cast<int64_t>(buffers));
  }
  try {
    if (!Spill(error)) return Fail(error);
  } catch (const std::bad_alloc&) {
    error->text.clear();
    return false;
  }
  AskForCompaction();
  if (limit_ != nullptr) limit_->GiveBack(stripes_.n_rows() - spilled());
  return true;
}

bool DiskTier::Spill(DiskError* error) {
  for (int s = 0; s < kStripes; ++s) {
    const int64_t most = MostInMemory(s);
    while (InMemory(s) > most) {
      int64_t n = 0;
      bool is_full = false;
      {
        const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
        const int64_t excess = InMemory(s) - most;
        if (excess > 0) n = SpillSome(s, excess, &is_full);
      }
      if (n > 0 && !is_full) continue;
      if (!is_full) break;  // All others are held or spared.
      if (!MakeRoomOnDisk(error) && n == 0) return false;
    }
  }
  return true;
}

bool DiskTier::MakeRoomOnDisk(DiskError* error) {
  if (log_->WriteFullBuffers(error)) return true;
  if (error->fault != StorageFault::kNoSpace) return false;
  // Rows that were freed since may leave room for a segment.
  CompactForRoom(kCompactedForRoom);
  return log_->WriteFullBuffers(error);
}

void DiskTier::AskForCompaction() {
  const int64_t per_segment = log_->rows_per_segment();
  int64_t rows = spilled_since_;
  while (!spilled_since_.compare_exchange_weak(rows, rows % per_segment)) {
  }
  compaction_.Add(kCompactedPerSpilled *
                  static_cast<uint64_t>(rows / per_segment));
}

void DiskTier::CompactOne() {
  const std::shared_lock<std::shared_mutex> spilling(spilling_);
  const std::lock_guard<std::mutex> lock(compacting_);
  // A disk error is reported to the step that needs the rows, or room.
  DiskError error;
  try {
    MoveSegment(false, &error);
  } catch (const std::bad_alloc&) {
    // Nothing needs it now.
  }
}

void DiskTier::CompactForRoom(int most) {
  const std::lock_guard<std::mutex> lock(compacting_);
  DiskError error;
  while (most > 0 && MoveSegment(true, &error)) --most;
}

bool DiskTier::MoveSegment(bool for_room, DiskError* error) {
  uint32_t segment;
  if (!log_->PickSegment(&segment, for_room)) return false;
  const size_t floats = log_->row_floats();
  bool is_moved = true;
  log_->ReadSegment(
      segment,
      [&](uint32_t place, int64_t key, const float* row) {
        is_moved = is_moved && Move({place, key, row, floats}, for_room, error);
      },
      error);
  return is_moved;
}

bool DiskTier::Move(const StoredRow& stored, bool for_room, DiskError* error) {
  Stripe& stripe = stripes_.Of(stored.key);
  for (;;) {
    {
      const std::unique_lock<SharedMutex> lock(stripe.mutex());
      const EntryRef entry = stripe.Find(stored.key);
      if (!entry.found() || !entry.is_spilled() ||
          entry.place() != stored.place) {
        return true;
      }
      // Slots were added since it was read: another compaction moves it.
      if (log_->row_floats() != stored.floats) return true;
      DiskLog::NewRow moved = {stored.key, stored.row};
      if (log_->Append(&moved, 1, for_room) == 1) {
        entry.SetPlace(moved.place);
        recent_.Forget(&stored.place, 1);
        log_->Free(&stored.place, 1);
        stripe.LeaveInPlace();
        return true;
      }
    }
    if (!log_->WriteFullBuffers(error)) return false;
  }
}

// -------------------------------------------------------------------- reading

void DiskTier::Read(const DiskLog::Item* items, size_t n, size_t floats) {
  DiskError error;
  if (!log_->Read(items, n, floats, &error)) ThrowError(error);
}

void DiskTier::ThrowError(DiskError error) const {
  Fail(&error);
  ThrowStorageError(error);
}

void DiskTier::ReadForLookup(const PinnedRows& rows) {
  const RowFormat& format = store_.format();
  const size_t n_words = static_cast<size_t>(format.value_words());
  if (!format.is_narrow()) {
    return ReadWords(rows.items(), rows.stamps(), n_words);
  }
  // A short value of 8 bits has more words, with its scale and offset, than
  // floats.
  std::vector<DiskLog::Item> items = rows.items();
  std::vector<float> words(items.size() * n_words);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].row = &words[i * n_words];
  }
  ReadWords(items, rows.stamps(), n_words);
  for (size_t i = 0; i < items.size(); ++i) {
    format.ReadValue(items[i].row, rows.items()[i].row);
  }
}

void DiskTier::ReadWords(const std::vector<DiskLog::Item>& items,
                         const std::vector<uint32_t>& row_stamps,
                         size_t floats) {
  const std::vector<size_t> which =
      recent_.Copy(items.data(), items.size(), floats);
  if (which.empty()) return;
  // Reads the slots too, which the step needs.
  const size_t all_floats = log_->row_floats();
  std::vector<float> whole(which.size() * all_floats);
  std::vector<DiskLog::Item> unread;
  std::vector<uint32_t> stamps;
  for (const size_t i : which) {
    float* const row = &whole[unread.size() * all_floats];
    unread.push_back({items[i].place, items[i].key, row});
    stamps.push_back(row_stamps[i]);
  }
  Read(unread.data(), unread.size(), all_floats);
  for (size_t u = 0; u < which.size(); ++u) {
    std::copy_n(unread[u].row, floats, items[which[u]].row);
  }
  recent_.Add(unread.data(), stamps.data(), unread.size(), all_floats);
}

int64_t DiskTier::EvictSpilled(const EvictsValue& evicts, int64_t stamp) {
  int64_t evicted = 0;
  ValueView values(store_.format());
  std::vector<std::pair<uint32_t, int64_t>> named;  // Places and keys.
  for (uint32_t segment = 0; segment < log_->segments(); ++segment) {
    DiskError error;
    named.clear();
    const bool is_read = log_->ReadSegment(
        segment,
        [&](uint32_t place, int64_t key, const float* row) {
          if (evicts(values.Of(row), store_.dim())) {
            named.push_back({place, key});
          }
        },
        &error);
    if (!is_read) ThrowError(error);
    for (const auto& [place, key] : named) {
      Stripe& stripe = stripes_.Of(key);
      const std::unique_lock<SharedMutex> lock(stripe.mutex());
      evicted += stripe.EvictSpilled(key, place, stamp);
    }
  }
  return evicted;
}

void DiskTier::Free(int stripe, const uint32_t* places, size_t n) {
  recent_.Forget(places, n);
  log_->Free(places, n);
  spilled_[stripe] -= static_cast<int64_t>(n);
}

void DiskTier::Clear() {
  recent_.Clear();
  ahead_.GiveUp();
  log_->Clear();
  for (auto& spilled : spilled_) spilled = 0;
}

}  // namespace rec_estimator
