// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/batch_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace rec_estimator {
namespace {

class ThreadsReader : public BatchReader {
 public:
  ~ThreadsReader() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
      // A process that was forked has no such threads.
      getpid() == owner_ ? thread.join() : thread.detach();
    }
  }

  void Read(ReadRequest* requests, size_t n) override {
    if (n <= 1 || getpid() != owner_) {
      std::for_each(requests, requests + n,
                    [](ReadRequest& request) { ReadOne(&request); });
      return;
    }
    Batch batch = {requests, requests + n, 0};
    std::unique_lock<std::mutex> lock(mutex_);
    StartThreads();
    batches_.push_back(&batch);
    wake_.notify_all();
    // This thread reads too: it needs no other thread to be there.
    while (ReadNext(&lock, &batch)) {
    }
    done_.wait(lock, [&] { return batch.running == 0; });
  }

  const char* name() const override { return "pread threads"; }

 private:
  struct Batch {
    ReadRequest* next;
    ReadRequest* end;
    size_t running;  // Requests that threads are reading.
  };

  // The lock is held. A system without threads to spare gets fewer of them.
  void StartThreads() {
    if (!threads_.empty()) return;
    try {
      for (unsigned t = 1; t < kReadDepth; ++t) {
        threads_.emplace_back([this] { Work(); });
      }
    } catch (const std::system_error&) {
    }
  }

  // Reads the next request of a batch, during which the lock is not held.
  // False: there is none left.
  bool ReadNext(std::unique_lock<std::mutex>* lock, Batch* batch) {
    if (batch->next == batch->end) return false;
    ReadRequest* const request = batch->next++;
    if (batch->next == batch->end) {
      batches_.erase(std::find(batches_.begin(), batches_.end(), batch));
    }
    ++batch->running;
    lock->unlock();
    ReadOne(request);
    lock->lock();
    if (--batch->running == 0 && batch->next == batch->end) done_.notify_all();
    return true;
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      if (batches_.empty()) {
        wake_.wait(lock);
      } else {
        ReadNext(&lock, batches_.front());
      }
    }
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<Batch*> batches_;  // Those that have requests left.
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void ReadOne(ReadRequest* request) {
  do {
    request->result = pread(request->file, request->to, request->bytes,
                            static_cast<off_t>(request->offset));
  } while (request->result < 0 && errno == EINTR);
  if (request->result < 0) request->result = -errno;
}

std::unique_ptr<BatchReader> MakeThreadsReader() {
  return std::make_unique<ThreadsReader>();
}

std::unique_ptr<BatchReader> MakeBatchReader() {
  std::unique_ptr<BatchReader> reader = MakeUringReader();
  return reader != nullptr ? std::move(reader) : MakeThreadsReader();
}

}  // namespace rec_estimator
