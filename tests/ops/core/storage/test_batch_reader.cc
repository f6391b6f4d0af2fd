// SPDX-License-Identifier: Apache-2.0
// Both readers, and the choice between them.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/storage/batch_reader.h"
#include "ops/core/storage/disk_memory.h"
#include "ops/core/storage/page.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr uint64_t kPages = 256;

// A file whose page p begins with the number p.
class NumberedPages {
 public:
  NumberedPages() {
    std::string pages(kPages * kDiskBlock, '\0');
    for (uint64_t p = 0; p < kPages; ++p) {
      std::memcpy(&pages[p * kDiskBlock], &p, sizeof(p));
    }
    folder_.Write("pages", pages);
    const std::string path = folder_.path() + "/pages";
    file_ = open(path.c_str(), O_RDONLY | O_DIRECT);
    if (file_ < 0) file_ = open(path.c_str(), O_RDONLY);
  }
  ~NumberedPages() { close(file_); }
  int descriptor() const { return file_; }

  // Reads n pages in a scattered order and checks them.
  void Check(BatchReader* reader, size_t n) const {
    Scattered pages(*this, n);
    reader->Read(pages.requests.data(), n);
    pages.Check();
  }

  // Requests for n pages in a scattered order, and memory for them.
  struct Scattered {
    Scattered(const NumberedPages& pages, size_t n) : memory(n * kDiskBlock) {
      for (size_t i = 0; i < n; ++i) {
        requests.push_back({pages.file_, kDiskBlock, NumberOf(i) * kDiskBlock,
                            memory.get() + i * kDiskBlock, 0});
      }
    }
    static uint64_t NumberOf(size_t i) { return i * 101 % kPages; }
    void Check() const {
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(requests[i].result, int64_t{kDiskBlock});
        uint64_t page;
        std::memcpy(&page, requests[i].to, sizeof(page));
        EXPECT_EQ(page, NumberOf(i));
      }
    }

    DiskMemory memory;
    std::vector<ReadRequest> requests;
  };

 private:
  Folder folder_;
  int file_;
};

// Calls check for each reader that works here.
void ForEachReader(const std::function<void(BatchReader*)>& check) {
  for (const auto make : {&MakeUringReader, &MakeThreadsReader}) {
    const std::unique_ptr<BatchReader> reader = make();
    if (reader != nullptr) check(reader.get());
  }
}

// From now on the kernel refuses io_uring to this process, as most containers
// do.
bool ForbidUring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // The number of the system call.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 425, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(EveryPageIsReadOnceWhateverTheSizeOfTheBatch) {
  const NumberedPages pages;
  ForEachReader([&](BatchReader* reader) {
    for (const size_t n : {0, 1, 2, 31, 32, 33, 64, 1000}) {
      pages.Check(reader, n);
    }
  });
}

TEST(ReadingsOfAThreadOverlapAndEndInAnyOrder) {
  const NumberedPages pages;
  ForEachReader([&](BatchReader* reader) {
    for (const size_t n : {1, 2, 100, 700}) {
      NumberedPages::Scattered first(pages, n), second(pages, 300),
          third(pages, n);
      {
        const auto reading = reader->Start(first.requests.data(), n);
        const auto next = reader->Start(second.requests.data(), 300);
        const auto unawaited = reader->Start(third.requests.data(), n);
        next->Wait();
        second.Check();
        pages.Check(reader, 40);
        reading->Wait();
        reading->Wait();  // Again, which does nothing.
        first.Check();
      }
      third.Check();
    }
  });
}

TEST(AFailedReadIsAResultAndTheOthersOfItsBatchSucceed) {
  const NumberedPages pages;
  ForEachReader([&](BatchReader* reader) {
    const DiskMemory memory(4 * kDiskBlock);
    const auto request = [&](int file, uint64_t page, int slot) {
      return ReadRequest{file, kDiskBlock, page * kDiskBlock,
                         memory.get() + slot * kDiskBlock, 0};
    };
    ReadRequest requests[] = {request(pages.descriptor(), 7, 0),
                              request(-1, 7, 1),
                              request(pages.descriptor(), kPages, 2),
                              request(pages.descriptor(), 8, 3)};
    reader->Read(requests, 4);
    EXPECT_EQ(requests[0].result, int64_t{kDiskBlock});
    EXPECT_EQ(requests[1].result, int64_t{-EBADF});
    EXPECT_EQ(requests[2].result, int64_t{0});  // Behind the end.
    EXPECT_EQ(requests[3].result, int64_t{kDiskBlock});
  });
}

TEST(SeveralThreadsReadAtOnce) {
  const NumberedPages pages;
  ForEachReader([&](BatchReader* reader) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) pages.Check(reader, 40);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(AProcessThatWasForkedReadsByItselfAndEndsTheReader) {
  const NumberedPages pages;
  for (const auto make : {&MakeUringReader, &MakeThreadsReader}) {
    std::unique_ptr<BatchReader> reader = make();
    if (reader == nullptr) continue;
    pages.Check(reader.get(), 40);
    EXPECT_EQ(InChild([&] {
                pages.Check(reader.get(), 40);
                reader.reset();
                return testing::Failures() == 0 ? 0 : 1;
              }),
              0);
    pages.Check(reader.get(), 40);
  }
}

TEST(ThreadsReadWhereTheKernelForbidsUring) {
  const NumberedPages pages;
  EXPECT_EQ(InChild([&] {
              if (!ForbidUring()) return 2;
              const std::unique_ptr<BatchReader> reader = MakeBatchReader();
              EXPECT_EQ(std::string(reader->name()), "pread threads");
              return testing::Failures() == 0 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
