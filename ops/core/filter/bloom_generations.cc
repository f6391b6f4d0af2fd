// SPDX-License-Identifier: Apache-2.0
#include "ops/core/filter/bloom_generations.h"

namespace rec_estimator {

bool GenerationAges::AgeBySteps(int64_t version, int64_t stamp) {
  // Another run, which had come further, may have written the starts.
  for (int64_t& start : start_) start = std::min(start, stamp);
  const int64_t steps_to_live = std::max<int64_t>(0, stamp - version);
  const bool rotates = stamp - start_[0] >=
                       std::max<int64_t>(1, steps_to_live - steps_to_live / 2);
  if (rotates) Rotate(stamp);
  // A generation ended where the next younger one began.
  while (count_ > 1 && start_[count_ - 2] <= version) --count_;
  return rotates;
}

void GenerationAges::Rotate(int64_t stamp) {
  const int64_t start = std::max(stamp, start_[0] + 1);
  std::copy_backward(start_.begin(), start_.end() - 1, start_.end());
  start_[0] = start;
  ++number_;
  count_ = std::min(count_ + 1, kBloomGenerations);
}

void GenerationAges::Merge(int64_t number, const std::vector<int64_t>& starts) {
  number_ = std::max(number_, number);
  count_ = std::max(count_, static_cast<int>(starts.size()));
  for (size_t age = 0; age < starts.size(); ++age) {
    start_[age] = std::max(start_[age], starts[age]);
  }
}

}  // namespace rec_estimator
