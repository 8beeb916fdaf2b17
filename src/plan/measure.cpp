// SPDX-License-Identifier: Apache-2.0
#include "plan/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul_plan.h"
#include "runtime/replay.h"
#include "train/throughput.h"

namespace saturate::plan {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Microseconds of one call of `body` among `calls` in a row, replayed as a graph on a GPU.
double time_us(const Stream& stream, int calls, const std::function<void()>& body) {
  Replay replay(true);
  const auto all = [&] {
    for (int i = 0; i < calls; ++i) body();
  };
  for (int i = 0; i < 3; ++i) replay.enqueue(stream, all);
  stream.synchronize();
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    replay.enqueue(stream, all);
    stream.synchronize();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                    calls);
  }
  return median(times);
}

double product_us(const Context& ctx, const Stream& stream, DType type, int64_t n, int calls) {
  const Buffer a = train::random_buffer(ctx, stream, n * n, type, 1);
  const Buffer d(ctx.device, static_cast<size_t>(n * n) * size_of(type));
  const kernels::MatmulArgs args{.a = a.data(),
                                 .b = a.data(),
                                 .d = d.data(),
                                 .m = n,
                                 .n = n,
                                 .k = n,
                                 .lda = n,
                                 .ldb = n,
                                 .ldc = n,
                                 .ldd = n,
                                 .ab_type = type,
                                 .d_type = type};
  const kernels::MatmulPlan plan = kernels::plan_matmul(ctx, {}, args);
  return time_us(stream, calls, [&] { plan.run(ctx, args); });
}

double cast_us(const Context& ctx, const Stream& stream, int64_t count, int calls) {
  const Buffer x = train::random_buffer(ctx, stream, count, DType::f32, 1);
  const Buffer y(ctx.device, static_cast<size_t>(count) * 4);
  return time_us(stream, calls, [&] {
    kernels::cast(
        ctx,
        {.x = x.data(), .y = y.data(), .count = count, .x_type = DType::f32, .y_type = DType::f32});
  });
}

std::vector<DType> product_types(Device device) {
  if (!device.is_cuda()) return {DType::f32};
  if (device_info(device).compute_major < 8) return {DType::f32, DType::f16};
  return {DType::f32, DType::bf16, DType::f16};
}

}  // namespace

Machine measure_device(Device device) {
  const DeviceInfo info = device_info(device);
  const bool gpu = device.is_cuda();
  const Stream stream(device);
  const Buffer workspace(device, kernels::matmul_workspace_bytes(device, DType::f32));
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  Machine m;
  m.name = "this machine, measured";
  m.device = info.name;
  m.gpu = gpu;
  m.memory_bytes = static_cast<int64_t>(info.free_bytes > 0 ? info.free_bytes : info.memory_bytes);
  m.devices_per_host = gpu ? std::max(1, cuda_device_count())
                           : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int64_t large = gpu ? 4096 : 512, small = gpu ? 512 : 64;
  const auto flops = [](int64_t n) { return 2.0 * static_cast<double>(n * n * n); };
  Compute& c = m.compute;
  // NCCL takes multiprocessors that products want: beside a collective a product takes about as much
  // longer as the collective lasts (decision 52). Not measured here, which needs a second rank.
  if (gpu) c.beside_collectives = 0.1;
  c.launch_us = cast_us(ctx, stream, 1, 100);
  for (const DType type : product_types(device)) {
    const double us = product_us(ctx, stream, type, large, gpu ? 10 : 2);
    c.tflops[type] = flops(large) / us * 1e-6;
    // What a small product takes beyond its launch, as work of that rate.
    const double more = product_us(ctx, stream, type, small, 20) - c.launch_us;
    c.half_gflop = std::max(0.0, more * c.tflops[type] * 1e-3 - flops(small) * 1e-9);
  }
  const int64_t many = gpu ? int64_t{1} << 26 : int64_t{1} << 23, few = int64_t{1} << 16;
  c.bandwidth_gbs = 8.0 * static_cast<double>(many) / cast_us(ctx, stream, many, 3) * 1e-3;
  const double more = cast_us(ctx, stream, few, 50) - c.launch_us;
  c.half_mb = std::max(0.0, more * c.bandwidth_gbs * 1e-3 - 8.0 * static_cast<double>(few) * 1e-6);
  return m;
}

std::vector<LinkTable> measure_links(parallel::Communicator& ranks, const parallel::Group& group,
                                     Device device) {
  using parallel::Collective;
  using parallel::CollectiveKind;
  const int n = group.size(), mine = group.position(ranks.rank());
  const int64_t largest = device.is_cuda() ? int64_t{256} << 20 : int64_t{4} << 20;
  const Stream stream(device);
  const Context ctx{device, stream.native(), nullptr, 0};
  const Buffer in(device, static_cast<size_t>(largest)), out(device, static_cast<size_t>(largest));
  fill_bytes(stream, in.data(), 0, in.bytes());
  fill_bytes(stream, out.data(), 0, out.bytes());
  stream.synchronize();
  std::vector<LinkTable> tables;
  for (const auto kind :
       {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
        CollectiveKind::all_to_all, CollectiveKind::send_receive}) {
    LinkTable table{.kind = kind, .ranks = n};
    for (int64_t bytes = 8192; bytes <= largest; bytes *= 4) {
      const int64_t whole = bytes / 4, part = whole / n;
      Collective c{.kind = kind, .group = group, .dtype = DType::f32, .count = whole};
      if (kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_gather)
        c.count = part;
      if (kind == CollectiveKind::all_to_all || kind == CollectiveKind::send_receive) {
        c.count = 0;
        const bool ring = kind == CollectiveKind::send_receive;
        c.send_counts.assign(static_cast<size_t>(n), ring ? 0 : part);
        c.receive_counts = c.send_counts;
        if (ring) {
          c.send_counts[static_cast<size_t>((mine + 1) % n)] = whole;
          c.receive_counts[static_cast<size_t>((mine + n - 1) % n)] = whole;
        }
      }
      ranks.barrier();
      const double us =
          time_us(stream, 4, [&] { ranks.wait(ranks.start(c, in.data(), out.data(), ctx), ctx); });
      table.bytes.push_back(static_cast<double>(bytes));
      table.us.push_back(ranks.all_reduce_max(us));
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

void replace_tables(Link& link, const std::vector<LinkTable>& tables) {
  for (const LinkTable& t : tables) {
    std::erase_if(link.tables,
                  [&](const LinkTable& old) { return old.kind == t.kind && old.ranks == t.ranks; });
    link.tables.push_back(t);
    if (t.kind != parallel::CollectiveKind::send_receive) continue;
    // Its bytes are those that a rank sends.
    link.latency_us = t.us.front();
    link.gbs = t.bytes.back() / t.us.back() * 1e-3;
  }
}

LinkTables measure_all_links(parallel::Communicator& ranks, int local, Device device) {
  const int hosts = ranks.size() / local;
  std::vector<int> mine(static_cast<size_t>(local)), across(static_cast<size_t>(hosts));
  std::iota(mine.begin(), mine.end(), ranks.rank() / local * local);
  for (int h = 0; h < hosts; ++h) across[static_cast<size_t>(h)] = h * local + ranks.rank() % local;
  LinkTables t;
  if (local > 1)
    t.inside = measure_links(ranks, hosts > 1 ? ranks.make_group(mine) : ranks.world(), device);
  if (hosts > 1)
    t.between = measure_links(ranks, local > 1 ? ranks.make_group(across) : ranks.world(), device);
  return t;
}

void replace_links(Machine& m, const LinkTables& links, int local, int hosts) {
  m.devices_per_host = std::max(m.devices_per_host, local);
  replace_tables(m.inside, links.inside);
  replace_tables(m.between, links.between);
  // All ranks of a host crossed at once, each as if it had an adapter.
  if (hosts > 1) m.between.adapters = local;
}

}  // namespace saturate::plan
