// SPDX-License-Identifier: Apache-2.0
// To be preloaded: makes allocations fail for which the code of one library
// asks, or those of one size.
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<bool> is_armed{false};
std::atomic<int64_t> left{0};
std::atomic<size_t> only_size{0};
uintptr_t code_begin = 0, code_end = 0;

// Stores where the code of a library is whose path ends with `name`.
int FindCode(dl_phdr_info* info, size_t, void* name) {
  const char* const wanted = static_cast<const char*>(name);
  const size_t length = std::strlen(info->dlpi_name);
  const size_t size = std::strlen(wanted);
  if (length < size || std::strcmp(info->dlpi_name + length - size, wanted)) {
    return 0;
  }
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    code_begin = info->dlpi_addr + part.p_vaddr;
    code_end = code_begin + part.p_memsz;
  }
  return 1;
}

bool Fails(size_t size, void* caller) {
  if (!is_armed.load(std::memory_order_relaxed)) return false;
  const uintptr_t at = reinterpret_cast<uintptr_t>(caller);
  const size_t only = only_size;
  if (only > 0 ? size != only : at < code_begin || at >= code_end) return false;
  return left-- == 0;
}

void* NewOrThrow(size_t size, void* caller) {
  void* memory = Fails(size, caller) ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

extern "C" {

// From now on, `n` allocations of the library whose path ends with `name`
// succeed, and then one fails. If size > 0, these are the allocations of this
// size by any library.
void FailAllocation(const char* name, int64_t n, size_t size) {
  dl_iterate_phdr(FindCode, const_cast<char*>(name));
  left = n;
  only_size = size;
  is_armed = true;
}

// Ends that. Returns whether an allocation failed.
int StopFailing() {
  is_armed = false;
  return left < 0;
}

void* aligned_alloc(size_t alignment, size_t size) {
  if (Fails(size, __builtin_return_address(0))) return nullptr;
  return memalign(alignment, size);
}

void* mmap(void* address, size_t size, int protection, int flags, int file,
           off_t offset) {
  if (Fails(size, __builtin_return_address(0))) return MAP_FAILED;
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, size, protection, flags, file, offset));
}

}  // extern "C"

void* operator new(size_t size) {
  return NewOrThrow(size, __builtin_return_address(0));
}
void* operator new[](size_t size) {
  return NewOrThrow(size, __builtin_return_address(0));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Fails(size, __builtin_return_address(0)) ? nullptr : std::malloc(size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return Fails(size, __builtin_return_address(0)) ? nullptr : std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
