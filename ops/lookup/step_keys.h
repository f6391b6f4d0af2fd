// SPDX-License-Identifier: Apache-2.0
// What the lookups of a step hand over to each other and to the update of the
// step: the distinct keys of their lists, and where the tables have them.
//
//   TableLookup of dim 16 --\                       /-- TablesReserve
//                             StepKeys of this step
//   TableLookup of dim 1  --/   (list of keys: distinct keys; table: hints)
//
// It is a resource in TensorFlow's container of the running step, so steps that
// run at the same time have different ones, and it ends with its step. A list
// is known by the memory of its keys. It holds the tensor, so that memory is
// not used for other keys meanwhile.
//
// Packed keys (packed_keys.h) go the other way: the update is reserved first.
//
//   TablesReservePacked --> hints for a lookup in a table --> TablesRead
#ifndef REC_ESTIMATOR_OPS_LOOKUP_STEP_KEYS_H_
#define REC_ESTIMATOR_OPS_LOOKUP_STEP_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/row_hints.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace rec_estimator {

class StepKeys : public tensorflow::ResourceBase {
 public:
  using Ptr = tensorflow::core::RefCountPtr<StepKeys>;

  // The object of the running step; null unless a lookup of these keys is to
  // hand over what it finds.
  static Ptr ForLookup(tensorflow::OpKernelContext* context,
                       const TableResource& table,
                       const tensorflow::Tensor& keys) {
    const bool hands_over =
        table.hand_over().IsOn() && IsWorthwhile(keys.NumElements());
    return hands_over ? Of(context) : nullptr;
  }
  // The object of the running step; null if the step has none.
  static Ptr Of(tensorflow::OpKernelContext* context);

  // For TSan: see ResourceOfStep.
  StepKeys() { const std::lock_guard<std::mutex> lock(mutex_); }

  std::string DebugString() const override { return "keys of a step"; }

  // With fewer keys, handing over costs more than it saves.
  static constexpr int64_t kLeast = 256;

  // Whether it pays to hand over a list of n keys.
  static bool IsWorthwhile(int64_t n) { return n >= kLeast && n <= kMostKeys; }

  // Writes what the keys read to out (keys.shape, dim). The caller has opened
  // the table. False, with nothing done: the step has too many lists, because a
  // loop reads them, or they have too many keys. Throws std::bad_alloc.
  bool Lookup(TableResource* table, const tensorflow::Tensor& keys,
              UnknownKey unknown, float* out, const ParallelFor& parallel);

  // What a lookup of the same keys in the table has found; null if there was
  // none.
  std::shared_ptr<const RowHints> ForStep(TableResource* table,
                                          const tensorflow::Tensor& keys);

  // Keeps what a reservation found for keys in the memory of `packed`. Throws
  // std::bad_alloc.
  void Keep(TableResource* table, const tensorflow::Tensor& packed,
            const int64_t* keys, std::shared_ptr<const RowHints> hints);
  // What was kept for keys (n) in the same memory; null: nothing.
  std::shared_ptr<const RowHints> ForLookupOfPacked(TableResource* table,
                                                    const int64_t* keys,
                                                    size_t n);

 private:
  // What a lookup has found in a table.
  struct TableHints {
    TablePtr table;
    std::shared_ptr<const RowHints> hints;
  };
  // A tensor of keys, and what lookups have found for them.
  struct KeyTensor {
    tensorflow::Tensor keys;
    std::mutex mutex;  // Guards the next member.
    // Null before the first lookup.
    std::shared_ptr<const DeduplicatedList> distinct;
    std::vector<TableHints> hints;  // Guarded by StepKeys::mutex_.
  };
  // What a reservation of a table found for keys in one tensor.
  struct Reservation {
    TablePtr table;
    tensorflow::Tensor packed;
    std::shared_ptr<const RowHints> hints;
  };
  // Lists are kept until the end of the step. So many lists take up to 160 MiB
  // if they are short, and long ones of so many keys in all about as much.
  static constexpr size_t kMostLists = 1024;
  static constexpr int64_t kMostKeys = int64_t{4} << 20;
  // Where the keys are, and how many.
  using Memory = std::pair<const int64_t*, int64_t>;
  static Memory MemoryOf(const tensorflow::Tensor& keys) {
    return {keys.flat<int64_t>().data(), keys.NumElements()};
  }

  // The list of these keys; nullptr: there are too many.
  KeyTensor* FindOrAdd(const tensorflow::Tensor& keys);

  std::mutex mutex_;  // Guards what follows.
  std::map<Memory, KeyTensor> lists_;
  int64_t long_keys_ = 0;  // Keys of all long lists.
  std::map<std::pair<const TableResource*, const int64_t*>, Reservation>
      reserved_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_LOOKUP_STEP_KEYS_H_
