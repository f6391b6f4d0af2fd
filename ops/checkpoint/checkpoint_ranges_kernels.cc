// SPDX-License-Identifier: Apache-2.0
// Before a restore: compares the checksums of byte ranges of a data file, so
// that damage is found before anything changes.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/core/base/crc32c.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/kernel/op_threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/platform/env.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::Env;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::RandomAccessFile;
using ::tensorflow::Tensor;
using ::tensorflow::tstring;

// Bytes that a thread reads at once.
constexpr int64_t kChunk = int64_t{1} << 20;

// Sets `matches` to whether the range has the checksum.
Status CompareRange(const RandomAccessFile& file, int64_t offset, int64_t size,
                    int64_t checksum, bool* matches) {
  const std::unique_ptr<char[]> buffer(
      new (std::nothrow) char[std::min(size, kChunk)]);
  if (buffer == nullptr) {
    return ResourceExhausted("a buffer of ", kChunk,
                             " bytes must fit into memory, got a failed "
                             "allocation; give the process more memory");
  }
  uint32_t computed = 0;
  *matches = false;
  while (size > 0) {
    const size_t n = std::min(size, kChunk);
    absl::string_view read;
    const Status status = file.Read(offset, n, &read, buffer.get());
    if (read.size() != n) {
      if (status.ok() || absl::IsOutOfRange(status)) {
        return Status();
      }
      return status;
    }
    computed = ExtendCrc32c(computed, read.data(), n);
    offset += n;
    size -= n;
  }
  *matches = checksum == tensorflow::crc32c::Mask(computed);
  return Status();
}

class CheckpointRangesMatchOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& path = context->input(0);
    const Tensor& offsets = context->input(1);
    const Tensor& sizes = context->input(2);
    const Tensor& checksums = context->input(3);
    OP_REQUIRES_OK(context, CheckRank(path, 0, "path", "[]"));
    OP_REQUIRES_OK(context, CheckRank(offsets, 1, "offsets", "[n]"));
    OP_REQUIRES(
        context,
        sizes.shape() == offsets.shape() &&
            checksums.shape() == offsets.shape(),
        InvalidArgument("sizes and checksums must have the shape of offsets, ",
                        offsets.shape().DebugString(), ", got ",
                        sizes.shape().DebugString(), " and ",
                        checksums.shape().DebugString()));
    const int64_t n = offsets.NumElements();
    const int64_t* begins = offsets.flat<int64_t>().data();
    const int64_t* bytes = sizes.flat<int64_t>().data();
    int64_t most = 0;
    for (int64_t i = 0; i < n; ++i) {
      OP_REQUIRES(
          context,
          begins[i] >= 0 && bytes[i] >= 0 && bytes[i] <= INT64_MAX - begins[i],
          InvalidArgument("offsets and sizes must be >= 0 and have a ",
                          "sum that fits into int64, got ", begins[i], " and ",
                          bytes[i]));
      most = std::max(most, bytes[i]);
    }
    Tensor* matches;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, offsets.shape(), &matches));

    OP_REQUIRES_OK(context, CheckRegular(path.scalar<tstring>()()));
    std::vector<Status> statuses(n);
    bool* const out = matches->flat<bool>().data();
    const int64_t* stored = checksums.flat<int64_t>().data();
    OpThreads(context)(n, most, [&](int64_t begin, int64_t end) {
      // The system reads ahead of each opened file, so each thread opens one.
      std::unique_ptr<RandomAccessFile> file;
      statuses[begin] =
          Env::Default()->NewRandomAccessFile(path.scalar<tstring>()(), &file);
      for (int64_t i = begin; i < end && file != nullptr; ++i) {
        statuses[i] =
            CompareRange(*file, begins[i], bytes[i], stored[i], out + i);
      }
    });
    for (const Status& status : statuses) OP_REQUIRES_OK(context, status);
  }
};

REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>CheckpointRangesMatch").Device(DEVICE_CPU),
    Guarded<CheckpointRangesMatchOp>);

}  // namespace
}  // namespace rec_estimator
