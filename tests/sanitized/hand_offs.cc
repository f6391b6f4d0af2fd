// SPDX-License-Identifier: Apache-2.0
// Tells TSan in which order TensorFlow calls the op library. Preloaded under
// TSan only.
//
// TensorFlow is built without TSan, which therefore does not see how it hands a
// tensor from one kernel to the next, or work to a thread of its pool, and
// would call each such hand-off a race. The sources of the library that
// TensorFlow calls are compiled with -finstrument-functions, so each of their
// functions calls the two functions of GCC below. When TensorFlow enters the
// library, everything that earlier calls did before they returned has happened
// before, and so has what a kernel did before it gave work to a thread pool.
// Two calls stay unordered as long as neither has returned before the other
// begins, so races between concurrent kernels are found.
#include <dlfcn.h>

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

// ThreadPool::Schedule(std::function<void()>) of TensorFlow, called in its
// place. The function is passed by its address.
#define SCHEDULE _ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE
#define NAME_OF(symbol) #symbol
#define NAME(symbol) NAME_OF(symbol)

__attribute__((no_instrument_function)) void SCHEDULE(void* pool, void* work) {
  using Schedule = void (*)(void*, void*);
  static const Schedule schedule = reinterpret_cast<Schedule>(
      dlsym(dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD),
            NAME(SCHEDULE)));
  if (depth > 0) __tsan_release(&hand_off);
  schedule(pool, work);
}

}  // extern "C"
