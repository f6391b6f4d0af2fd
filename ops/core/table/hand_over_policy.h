// SPDX-License-Identifier: Apache-2.0
// HandOverPolicy: whether the lookups of a table hand over what they find to
// the update of their step (row_hints.h).
//
// That costs a lookup memory and time, and pays only if the update uses it. So
// the policy watches both. Lookups begin to hand over when a training step has
// missed it. They end for good when kVain steps in a row could not use it,
// because the keys of their gradients were other tensors. They pause while no
// step has followed the last kVain lookups, as in an evaluation.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_HAND_OVER_POLICY_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_HAND_OVER_POLICY_H_

#include <atomic>

namespace rec_estimator {

// Any thread may call any method at any time. Threads that call at the same
// time may miscount, which only delays a change.
class HandOverPolicy {
 public:
  // Steps of other workers may have read their keys before the first one.
  static constexpr int kVain = 32;

  // Whether a lookup that begins now is to hand over what it finds.
  bool IsOn() const {
    const int missed = steps_missed_.load(std::memory_order_relaxed);
    return missed > 0 && missed < kVain &&
           lookups_unused_.load(std::memory_order_relaxed) < kVain;
  }

  // Called after a lookup that has handed over what it found.
  void NoteLookup() { lookups_unused_.fetch_add(1, std::memory_order_relaxed); }

  // Called in a training step: whether it uses what was handed over. A step
  // without lookups, which inserts keys for example, has missed it only if none
  // of the table's lookups has begun.
  void NoteStep(bool used);

 private:
  // Steps in a row that missed it, plus one since the first step. Once it is
  // kVain, it stays so.
  std::atomic<int> steps_missed_{0};
  std::atomic<int> lookups_unused_{0};  // Since the last step.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_HAND_OVER_POLICY_H_
