// SPDX-License-Identifier: Apache-2.0
// Reads of memory that another thread may write to: a NumPy array that is fed,
// or a variable of TensorFlow 1, is the memory of an op's input, without a
// copy, and a script may write to it while the op runs.
//
// A number of such memory that becomes an index, a size or a key is read once.
// If it were checked and read again, the second number could be any.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_READ_ONCE_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_READ_ONCE_H_

namespace rec_estimator {

// The number, as it is now: the compiler does not read it again.
template <typename T>
inline T ReadOnce(const T& number) {
  return *static_cast<const volatile T*>(&number);
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_READ_ONCE_H_
