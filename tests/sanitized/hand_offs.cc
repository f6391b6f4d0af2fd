// SPDX-License-Identifier: Apache-2.0
// Tells TSan in which order TensorFlow calls the op library. Preloaded under
// TSan only.
//
// TensorFlow is built without TSan, which therefore does not see how it hands a
// tensor from one kernel to the next, or work to a thread of its pool, and
// would call each such hand-off a race. The sources of the library that
// TensorFlow calls are compiled with -finstrument-functions, so each of their
// functions calls the two functions below. When TensorFlow enters the library,
// everything that earlier calls did before they returned has happened before.
// Two calls stay unordered as long as neither has returned before the other
// begins, so races between concurrent kernels are found.
extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);

static char hand_off;
static thread_local int depth = 0;

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void*,
                                                                      void*) {
  if (depth++ == 0) __tsan_acquire(&hand_off);
}

__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void*,
                                                                     void*) {
  if (--depth == 0) __tsan_release(&hand_off);
}

}  // extern "C"
