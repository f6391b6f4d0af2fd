// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/batch_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace rec_estimator {
namespace {

// More of them do not make the disks that were measured faster.
constexpr unsigned kThreads = 64;

class ReadingInTurn : public Reading {
 public:
  ReadingInTurn(ReadRequest* requests, size_t n)
      : next_(requests), end_(requests + n) {}
  ~ReadingInTurn() override { Wait(); }
  void Wait() override {
    for (; next_ != end_; ++next_) ReadOne(next_);
  }

 private:
  ReadRequest* next_;
  ReadRequest* const end_;
};

class ThreadsReader : public BatchReader {
 public:
  ~ThreadsReader() override {
    if (getpid() != owner_) {
      LeaveThreads();
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_->notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::unique_ptr<Reading> Start(ReadRequest* requests, size_t n) override {
    if (n <= 1 || getpid() != owner_) return ReadInTurn(requests, n);
    return std::make_unique<ThreadsReading>(this, requests, n);
  }

  const char* name() const override { return "pread threads"; }

 private:
  struct ThreadsReading : public Reading {
    ThreadsReading(ThreadsReader* of, ReadRequest* requests, size_t n)
        : reader(*of), next(requests), end(requests + n) {
      const std::lock_guard<std::mutex> lock(reader.mutex_);
      reader.StartThreads();
      reader.batches_.push_back(this);
      reader.wake_->notify_all();
    }
    ~ThreadsReading() override { Wait(); }
    void Wait() override {
      std::unique_lock<std::mutex> lock(reader.mutex_);
      // This thread reads too: it needs no other thread to be there.
      while (reader.ReadNext(&lock, this)) {
      }
      reader.done_->wait(lock, [&] { return running == 0; });
    }

    ThreadsReader& reader;
    ReadRequest* next;
    ReadRequest* end;
    size_t running = 0;  // Requests that threads are reading.
  };

  // In a process that was forked, which has none of the threads. One of them
  // may have held the lock, and the end of a condition variable waits for those
  // who wait for it.
  void LeaveThreads() {
    (void)wake_.release();
    (void)done_.release();
    for (std::thread& thread : threads_) thread.detach();
  }

  // The lock is held. If the system refuses more threads, fewer will do.
  void StartThreads() {
    if (!threads_.empty()) return;
    try {
      for (unsigned t = 1; t < kThreads; ++t) {
        threads_.emplace_back([this] { Work(); });
      }
    } catch (const std::system_error&) {
    }
  }

  // Reads the next request of a batch, during which the lock is not held.
  // False: there is none left.
  bool ReadNext(std::unique_lock<std::mutex>* lock, ThreadsReading* batch) {
    if (batch->next == batch->end) return false;
    ReadRequest* const request = batch->next++;
    if (batch->next == batch->end) {
      batches_.erase(std::find(batches_.begin(), batches_.end(), batch));
    }
    ++batch->running;
    lock->unlock();
    ReadOne(request);
    lock->lock();
    if (--batch->running == 0 && batch->next == batch->end) done_->notify_all();
    return true;
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      if (batches_.empty()) {
        wake_->wait(lock);
      } else {
        ReadNext(&lock, batches_.front());
      }
    }
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;  // Guards what follows.
  std::unique_ptr<std::condition_variable> wake_ =
      std::make_unique<std::condition_variable>();
  std::unique_ptr<std::condition_variable> done_ =
      std::make_unique<std::condition_variable>();
  std::deque<ThreadsReading*> batches_;  // Batches with requests left.
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

std::unique_ptr<Reading> ReadInTurn(ReadRequest* requests, size_t n) {
  return std::make_unique<ReadingInTurn>(requests, n);
}

std::unique_ptr<BatchReader> MakeThreadsReader() {
  return std::make_unique<ThreadsReader>();
}

std::unique_ptr<BatchReader> MakeBatchReader() {
  std::unique_ptr<BatchReader> reader = MakeUringReader();
  return reader != nullptr ? std::move(reader) : MakeThreadsReader();
}

}  // namespace rec_estimator
