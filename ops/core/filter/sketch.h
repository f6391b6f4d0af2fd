// SPDX-License-Identifier: Apache-2.0
// Sketch: counts the keys of a table that have no entry in its index. A filter
// that counts keys in a way of its own is one class derived from Sketch and its
// registration. Nothing else in C++ knows which sketches there are.
//
// A table has one sketch, or none: then each counted key has an entry, which
// counts it. A sketch keeps a part for each stripe of the table, and what a
// method may change depends on the locks that its caller holds. The table calls
// a method for many keys at once where it matters for speed, so a virtual call
// costs nothing.
//
// Counts must never be too low: a filter admits no key late.
//
// Besides Estimate, Raise, Clear and bytes, all methods have a default, which
// suits a sketch of fixed size that does not age and is not saved. Keys that it
// counted start from 0 after a restore.
#ifndef REC_ESTIMATOR_OPS_CORE_FILTER_SKETCH_H_
#define REC_ESTIMATOR_OPS_CORE_FILTER_SKETCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/core/rows/table_spec.h"

namespace rec_estimator {

class Sketch {
 public:
  Sketch() = default;
  Sketch(const Sketch&) = delete;
  Sketch& operator=(const Sketch&) = delete;
  virtual ~Sketch() = default;

  // ----- Counting. The stripes of all keys are locked, exclusively for Raise.

  // counts[at[i]] = the count of keys[at[i]], for i < n; 0 if it is not known.
  virtual void Estimate(const int64_t* keys, const uint32_t* at, size_t n,
                        uint32_t* counts) const = 0;
  // Raises the count of keys[at[i]] to at least min(counts[at[i]], threshold).
  // There is room. tracking: whether the next incremental save asks for what
  // changed.
  virtual void Raise(const int64_t* keys, const uint32_t* at, size_t n,
                     const uint32_t* counts, bool tracking) = 0;

  // The count of one key.
  uint32_t CountOf(int64_t key) const {
    const uint32_t first = 0;
    uint32_t count;
    Estimate(&key, &first, 1, &count);
    return count;
  }

  // ----- Room in stripe s for keys that were not counted before. A step that
  // finds no memory must change nothing, so it asks for room first.

  // Reserves room for the keys of a batch. Returns whether there is room now.
  // If not, the caller calls GrowToQuota or releases the quota. No lock.
  virtual bool ReserveQuota(int /*s*/, int64_t /*keys*/) { return true; }
  virtual void ReleaseQuota(int /*s*/, int64_t /*keys*/) {}  // No lock.
  // Makes room for all quotas. False: no memory. The stripe is locked.
  virtual bool GrowToQuota(int /*s*/) { return true; }
  // Whether there is room for this many keys, whatever the quotas are.
  virtual bool HasRoom(int /*s*/, int64_t /*keys*/) const { return true; }
  // Makes this room. False: no memory. The stripe is locked exclusively.
  virtual bool MakeRoom(int /*s*/, int64_t /*keys*/) { return true; }

  // Bytes allocated for stripe s, which is locked.
  virtual size_t bytes(int s) const = 0;
  // Forgets everything. All stripes are locked exclusively.
  virtual void Clear() = 0;

  // ----- Ageing, by evictions. A key that is evicted while the sketch counts
  // it keeps an entry, in which it is counted from 0. The versions of these
  // entries say when the sketch has forgotten their keys.

  // For an eviction, at step `stamp`, of keys that did not occur since step
  // `version`: forgets keys that did not occur for longer. All stripes are
  // locked exclusively.
  virtual void AgeBySteps(int64_t /*version*/, int64_t /*stamp*/) {}
  // Whether so many keys were counted that an eviction by values, which knows
  // no time to live, should call AgeByKeys. All stripes are locked.
  virtual bool IsAgeingDue() const { return false; }
  virtual void AgeByKeys(int64_t /*stamp*/) {}  // Needs the same locks.
  // The step before which no occurrence is counted any more.
  virtual int64_t forgotten() const { return INT64_MIN; }
  // The step since which occurrences are certain to be the youngest.
  virtual int64_t youngest() const { return INT64_MIN; }

  // ----- Checkpoints

  enum class Type { kUint8, kUint16, kUint32, kInt64 };
  struct Tensor {
    std::string suffix;  // Follows the name of the shard: "-cbf_blocks".
    Type type;
    int64_t width;  // Elements of a row; 0: the tensor is a vector.
  };
  // The tensors of a checkpoint.
  struct Format {
    // Small int64 tensors. The first, a vector, holds the layout.
    std::vector<Tensor> heads;
    // Tensors with the same number of rows, of which row i belongs together.
    std::vector<Tensor> columns;
    std::vector<int64_t> layout;
  };
  using Heads = std::vector<std::vector<int64_t>>;  // What `heads` hold.

  // Fixed when the sketch is made. Nothing is saved if it is empty.
  virtual Format format() const { return {}; }

  // The format of a checkpoint of this layout; nullopt if its counts cannot be
  // merged and are lost.
  virtual std::optional<Format> FormatOf(
      const std::vector<int64_t>& layout) const {
    Format own = format();
    if (layout != own.layout) return std::nullopt;
    return own;
  }

  // What a save writes. All stripes are locked. only_changed: an incremental
  // save needs only what changed; all of it is never wrong.
  virtual Heads SaveHeads(bool /*only_changed*/) const { return {}; }
  virtual int64_t RowsToSave(bool /*only_changed*/) const { return 0; }
  // Calls visit(row) for each row; row[c] points to its part of column c.
  using VisitRow = std::function<void(const void* const* row)>;
  virtual void SaveRows(bool /*only_changed*/,
                        const VisitRow& /*visit*/) const {}
  // Changes so far become pending: they are part of incremental saves until
  // ForgetPending. The stripe is locked; MarkPending also has the save mutex.
  virtual void MarkPending(int /*s*/) {}
  virtual void ForgetPending(int /*s*/) {}

  // Rows of a stored shard that are read in one go.
  struct StoredRows {
    // The heads of the checkpoint, and of the last checkpoint of its chain. A
    // tensor that the checkpoint does not have is empty. FormatOf knows the
    // layout.
    const Heads* heads;
    const Heads* last;
    int64_t total;  // Rows in the checkpoint; these are [first, first + n).
    int64_t first;
    int64_t n;
    const void* const* columns;  // (n, width) each
  };
  // A rule that a tensor of a checkpoint breaks: "must be ..., got ...".
  struct Damage {
    std::string suffix;
    std::string rule;
  };
  virtual std::optional<Damage> CheckHeads(const Heads& /*heads*/,
                                           int64_t /*total*/) const {
    return std::nullopt;
  }
  virtual std::optional<Damage> CheckRows(const StoredRows& /*rows*/) const {
    return std::nullopt;
  }
  // Raises counts to those of the rows, which were checked. Returns false and
  // changes nothing if there is no memory. tracking: as for Raise. All stripes
  // are locked exclusively.
  virtual bool MergeRows(const StoredRows& /*rows*/, bool /*tracking*/) {
    return true;
  }
  // Takes over the heads of the last checkpoint of a chain, whose rows were
  // merged. Locks as MergeRows.
  virtual void MergeHeads(const Heads& /*last*/, int64_t /*total*/) {}
};

// A sketch that tables can ask for by name.
struct SketchKind {
  struct Parameter {
    std::string name;
    bool is_integer;
    double low;  // Integers are in [low, high], others in (low, high).
    double high;
  };
  std::string name;
  std::vector<Parameter> parameters;  // All of them must be given.
  std::unique_ptr<Sketch> (*make)(const SketchSpec& spec, uint32_t threshold);
  std::string layout;  // The suffix of its first head; empty: not saved.
};

// Registers a sketch when the library is loaded. The file that implements it
// has one, as a static constant.
class RegisterSketch {
 public:
  explicit RegisterSketch(SketchKind kind);
};

// Reads "name parameter=1 parameter=0.5". Rounds numbers that are not integers
// to float32, as attributes of ops are. False: the text has another form.
bool ParseSketch(const std::string& text, SketchSpec* spec);
// A text that ParseSketch reads, for messages.
std::string SketchText(const SketchSpec& spec);

// The first rule that the name or a parameter breaks, "<name> must be <rule>,
// got <value>; <remedy>". Empty: none.
std::string CheckSketch(const SketchSpec& spec);

// The suffixes of the layouts of all sketches that are saved.
std::vector<std::string> SketchLayouts();

// spec was checked. threshold: the count that admits a key, at least 2.
std::unique_ptr<Sketch> MakeSketch(const SketchSpec& spec, uint32_t threshold);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_FILTER_SKETCH_H_
