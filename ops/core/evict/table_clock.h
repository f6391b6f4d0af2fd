// SPDX-License-Identifier: Apache-2.0
// The time by which tables measure the age of keys in seconds: readings of a
// clock that may jump, without the jumps.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_TABLE_CLOCK_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_TABLE_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace rec_estimator {

// Thread rule: one thread at a time.
class TableClock {
 public:
  // Times and readings are seconds since 1970 below this, about the year 5138.
  // So no sum overflows.
  static constexpr int64_t kMostSeconds = 100'000'000'000;

  // most_seconds >= 1: by which a reading advances the time, at most.
  // tolerance >= 0: how far a reading may be behind the time.
  TableClock(int64_t most_seconds, int64_t tolerance)
      : most_seconds_(most_seconds), tolerance_(tolerance) {}

  // The time after a reading of the clock. It never goes back. time: that after
  // the last reading, in [0, 2 kMostSeconds), or 0: unknown. reading: in
  // [0, kMostSeconds); 0: none.
  //
  // A reading that is behind by more than the tolerance is of a clock that was
  // set back. From then on the time advances by what passes on this clock,
  // until a reading is closer to the time as it is: the clock was set right.
  int64_t Advance(int64_t time, int64_t reading) {
    if (reading == 0) return time;
    if (time == 0) return reading;
    if (std::abs(reading - time) < std::abs(Present(reading) - time)) {
      ahead_ = 0;
    }
    const int64_t present = Present(reading);
    if (present > time) return time + std::min(present - time, most_seconds_);
    if (time - present > tolerance_) ahead_ = time - reading;
    return time;
  }

  // What the last reading tells: it may be behind the time, or ahead of it.
  int64_t Present(int64_t reading) const { return reading + ahead_; }

 private:
  const int64_t most_seconds_;
  const int64_t tolerance_;
  // By how much the time is ahead of the clock, since the clock was set back.
  int64_t ahead_ = 0;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_TABLE_CLOCK_H_
