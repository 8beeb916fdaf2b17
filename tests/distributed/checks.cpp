// SPDX-License-Identifier: Apache-2.0
#include "distributed/checks.h"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "base/philox.h"
#include "runtime/memory.h"

namespace saturate::distributed {
namespace {

constexpr int64_t kGuard = 64;

// Rank r holds (r + 1) * (i % 1000): the sum is exact in fp32 up to 180 ranks.
template <class T>
std::vector<T> ramp(int64_t count, double factor) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(factor * static_cast<double>(i % 1000));
  return values;
}

double triangle(int n) { return n * (n + 1) / 2.0; }

template <class T>
void check_sums(parallel::Communicator& c, Device device, DType dtype) {
  const Stream compute(device);
  const std::vector<int64_t> sizes = {1, 3, 1000, 65'537, 1'000'003};
  std::vector<Buffer> buffers;
  std::vector<std::vector<T>> inputs;
  for (const int64_t n : sizes) {
    inputs.push_back(ramp<T>(n + 2 * kGuard, c.rank() + 1));
    buffers.emplace_back(device, inputs.back().size() * sizeof(T));
  }
  // Fill and start alternate, so a start that overtakes the fill before it gives wrong sums.
  for (size_t k = 0; k < sizes.size(); ++k) {
    copy_to_device(compute, buffers[k].data(), inputs[k].data(), buffers[k].bytes());
    c.begin_all_reduce(buffers[k].as<T>() + kGuard, sizes[k], dtype, compute);
  }
  Buffer other(device, size_t{8} << 20);
  for (int i = 0; i < 8; ++i) fill_bytes(compute, other.data(), i, other.bytes());
  c.wait(compute);
  for (size_t k = 0; k < sizes.size(); ++k) {
    std::vector<T> got(inputs[k].size());
    copy_to_host(compute, got.data(), buffers[k].data(), buffers[k].bytes());
    compute.synchronize();
    for (size_t i = 0; i < got.size(); ++i) {
      const bool guard = i < kGuard || i >= got.size() - kGuard;
      const double factor = guard ? c.rank() + 1 : triangle(c.size());
      if (got[i] == static_cast<T>(factor * static_cast<double>(i % 1000))) continue;
      require(false, fmt::format("{} sum of {} elements: element {} is {}", name_of(dtype),
                                 sizes[k], static_cast<int64_t>(i) - kGuard, got[i]));
    }
  }
}

void check_repeatable(parallel::Communicator& c, Device device) {
  const Stream compute(device);
  const size_t count = 300'001;
  std::vector<float> input(count), first(count), again(count);
  for (size_t i = 0; i < count; ++i)
    input[i] =
        static_cast<float>(random_block(static_cast<uint64_t>(c.rank()), 0, 0, i).x[0]) * 0x1p-20f -
        1000.0f;
  Buffer buffer(device, count * sizeof(float));
  for (std::vector<float>* result : {&first, &again}) {
    copy_to_device(compute, buffer.data(), input.data(), buffer.bytes());
    c.begin_all_reduce(buffer.data(), static_cast<int64_t>(count), DType::f32, compute);
    c.wait(compute);
    copy_to_host(compute, result->data(), buffer.data(), buffer.bytes());
    compute.synchronize();
  }
  require(std::memcmp(first.data(), again.data(), buffer.bytes()) == 0,
          "the same sum gave other bits");
  std::vector<float> of_rank_0 = first;
  c.broadcast(of_rank_0.data(), static_cast<int64_t>(buffer.bytes()), 0);
  require(std::memcmp(first.data(), of_rank_0.data(), buffer.bytes()) == 0,
          "ranks hold other bits of one sum");
}

void check_host(parallel::Communicator& c) {
  require(c.all_reduce_sum(c.rank() + 1) == triangle(c.size()), "host sum");
  require(c.all_reduce_max(-c.rank()) == 0, "host maximum");
  for (int root = 0; root < c.size(); ++root) {
    std::string text = fmt::format("rank {}", c.rank());
    text.resize(10'000, '.');
    c.broadcast(text.data(), static_cast<int64_t>(text.size()), root);
    require(text.starts_with(fmt::format("rank {}.", root)), "host broadcast");
  }
  c.barrier();
}

}  // namespace

void require(bool holds, const std::string& text) {
  if (!holds) throw std::runtime_error("check failed: " + text);
}

void check_collectives(parallel::Communicator& communicator, Device device) {
  check_host(communicator);
  check_sums<float>(communicator, device, DType::f32);
  check_sums<double>(communicator, device, DType::f64);
  check_repeatable(communicator, device);
  check_host(communicator);
}

void check_captured(parallel::Communicator& c, Device device) {
  const Stream compute(device);
  const int64_t count = 3'000'000, half = 1'234'567;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  Buffer input(device, bytes), gradients(device, bytes), output(device, bytes);
  {
    // NCCL connects lazily; the capture must find it connected.
    fill_bytes(compute, gradients.data(), 0, bytes);
    c.begin_all_reduce(gradients.data(), count, DType::f32, compute);
    c.wait(compute);
    compute.synchronize();
  }
  const Graph graph = Graph::capture(compute, [&] {
    copy_on_device(compute, gradients.data(), input.data(), bytes);
    c.begin_all_reduce(gradients.data(), half, DType::f32, compute);
    fill_bytes(compute, output.data(), 255, bytes);  // computation beside the collective
    c.begin_all_reduce(gradients.as<float>() + half, count - half, DType::f32, compute);
    c.wait(compute);
    copy_on_device(compute, output.data(), gradients.data(), bytes);
  });
  for (int replay = 1; replay <= 5; ++replay) {
    const auto mine = ramp<float>(count, (c.rank() + 1) * replay);
    std::vector<float> got(mine.size());
    copy_to_device(compute, input.data(), mine.data(), bytes);
    graph.launch(compute);
    copy_to_host(compute, got.data(), output.data(), bytes);
    compute.synchronize();
    const auto expected = ramp<float>(count, triangle(c.size()) * replay);
    require(got == expected, fmt::format("replay {} of the captured all-reduce", replay));
  }
}

void step_until_failure(parallel::Communicator& c, Device device, int victim,
                        const std::function<void()>& at_step_5) {
  const Stream compute(device);
  Buffer buffer(device, size_t{1} << 20);
  for (int64_t step = 0;; ++step) {
    c.set_step(step);
    if (step == 5 && c.rank() == victim) at_step_5();
    fill_bytes(compute, buffer.data(), 0, buffer.bytes());
    c.begin_all_reduce(buffer.data(), int64_t{1} << 18, DType::f32, compute);
    c.wait(compute);
    compute.synchronize();
  }
}

}  // namespace saturate::distributed
