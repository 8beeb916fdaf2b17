// SPDX-License-Identifier: Apache-2.0
#include "offsets.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/features.h"
#include "runtime/memory.h"
#include "runtime/stream.h"
#include "tensor.h"
#if SATURATE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace saturate::python {
namespace {

// While it lives this thread may allocate though a stream is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }

 private:
#if SATURATE_WITH_CUDA
  void exchange() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
#else
  void exchange() {}
#endif
};

struct Table {
  int64_t sequences = -1;
  const int32_t* data = nullptr;
};

Buffer make(Device device, int64_t sequences, int64_t length) {
  std::vector<int32_t> host(static_cast<size_t>(sequences) + 1);
  for (int64_t i = 0; i <= sequences; ++i)
    host[static_cast<size_t>(i)] = static_cast<int32_t>(i * length);
  const RelaxedCapture relaxed;
  const DeviceScope scope(device);
  Buffer buffer(device, host.size() * sizeof(int32_t));
  const Stream stream(device);
  copy_to_device(stream, buffer.data(), host.data(), buffer.bytes());
  stream.synchronize();
  return buffer;
}

}  // namespace

const int32_t* uniform_offsets(Device device, int64_t sequences, int64_t length) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (length > 0 && sequences > most / length)
    throw Error(Errc::invalid_argument, "attention",
                fmt::format("{} sequences of {} rows are more than 2^31 - 1 rows; split the batch",
                            sequences, length));
  // Never destroyed: the driver may be gone when static objects are.
  static auto& mutex = *new std::mutex;
  static auto& tables = *new std::map<std::pair<int, int64_t>, Table>;
  static auto& kept = *new std::vector<Buffer>;
  const std::lock_guard lock(mutex);
  Table& table = tables[{device.is_cuda() ? device.index : -1, length}];
  if (table.sequences < sequences) {
    int64_t capacity = std::max<int64_t>({sequences, 2 * table.sequences, 63});
    if (length > 0) capacity = std::max(sequences, std::min(capacity, most / length));
    Buffer buffer = make(device, capacity, length);
    table = {capacity, buffer.as<int32_t>()};
    kept.push_back(std::move(buffer));
  }
  return table.data;
}

}  // namespace saturate::python
