// SPDX-License-Identifier: Apache-2.0
// A copy of keys that another thread may write to (read_once.h), for what reads
// each of them several times.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_KEY_COPY_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_KEY_COPY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace rec_estimator {

class KeyCopy {
 public:
  // Copies keys (n). Throws std::bad_alloc.
  KeyCopy(const int64_t* keys, size_t n) {
    if (n > kFew) more_.reset(new int64_t[n]);
    std::copy_n(keys, n, more_ == nullptr ? few_ : more_.get());
  }
  KeyCopy(const KeyCopy&) = delete;
  KeyCopy& operator=(const KeyCopy&) = delete;

  const int64_t* data() const { return more_ == nullptr ? few_ : more_.get(); }

 private:
  static constexpr size_t kFew = 512;  // They are on the stack.

  int64_t few_[kFew];
  std::unique_ptr<int64_t[]> more_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_KEYS_KEY_COPY_H_
