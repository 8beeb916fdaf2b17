// SPDX-License-Identifier: Apache-2.0
#include "distributed/checks.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/half.h"
#include "base/philox.h"
#include "runtime/memory.h"

namespace saturate::distributed {
namespace {

using parallel::Collective;
using parallel::CollectiveKind;
using parallel::Group;

Context context_of(const Stream& stream) { return {stream.device(), stream.native()}; }

void all_reduce(parallel::Communicator& c, void* data, int64_t count, const Context& ctx) {
  c.wait(c.start({.group = c.world(), .count = count}, nullptr, data, ctx), ctx);
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

template <class T>
void put(std::vector<std::byte>& to, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

std::vector<std::byte> encoded(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> bytes;
  for (const double v : values) {
    if (dtype == DType::f64) put(bytes, v);
    if (dtype == DType::f32) put(bytes, static_cast<float>(v));
    if (dtype == DType::bf16) put(bytes, to_bf16(static_cast<float>(v)));
    if (dtype == DType::f16) put(bytes, to_f16(static_cast<float>(v)));
    if (dtype == DType::i32) put(bytes, static_cast<int32_t>(v));
  }
  return bytes;
}

double triangle(int n) { return n * (n + 1) / 2.0; }

// Element i of what the rank at `position` gives: small, so that sums are exact in every type.
double given(int position, int64_t i, int round) {
  return static_cast<double>((position * 7 + i * 3 + round) % 11);
}

// One collective with its memory. Guards of 0xAB lie around the output.
struct Case {
  static constexpr size_t kGuard = 256;
  Collective c;
  int64_t count;
  int position;
  Buffer input, output;

  Case(Collective shape, int rank, Device device)
      : c(std::move(shape)), count(c.count), position(c.group.position(rank)) {
    for (int j = 0; by_parts() && j < c.group.size(); ++j) {
      c.count = 0;
      c.send_counts.push_back(flow(position, j));
      c.receive_counts.push_back(flow(j, position));
    }
    input = Buffer(device, given_bytes(0).size() + kGuard);
    output = Buffer(device, expected_bytes(0).size() + 2 * kGuard);
  }
  bool by_parts() const {
    return c.kind == CollectiveKind::all_to_all || c.kind == CollectiveKind::send_receive;
  }
  bool in_place() const {
    return c.kind == CollectiveKind::broadcast ||
           (c.kind == CollectiveKind::all_reduce && count % 2 == 0);  // apart as well
  }
  // Elements that go from one position to another: between some none; an exchange is a ring.
  int64_t flow(int from, int to) const {
    if (c.kind == CollectiveKind::all_to_all) return (from + 2 * to) % 3 * count;
    return to == (from + 1) % c.group.size() ? count : 0;
  }
  int64_t flow_before(int from, int to) const {
    int64_t sum = 0;
    for (int j = 0; j < to; ++j) sum += flow(from, j);
    return sum;
  }

  std::vector<std::byte> given_bytes(int round) const {
    int64_t length = count * (c.kind == CollectiveKind::reduce_scatter ? c.group.size() : 1);
    if (by_parts()) length = flow_before(position, c.group.size());
    std::vector<double> values;
    for (int64_t i = 0; i < length; ++i) values.push_back(given(position, i, round));
    return encoded(values, c.dtype);
  }
  std::vector<std::byte> expected_bytes(int round) const {
    const int n = c.group.size();
    std::vector<double> values;
    const auto from = [&](int j, int64_t first, int64_t length) {
      for (int64_t i = 0; i < length; ++i) values.push_back(given(j, first + i, round));
    };
    const int64_t first = c.kind == CollectiveKind::reduce_scatter ? position * count : 0;
    switch (c.kind) {
      case CollectiveKind::all_reduce:
      case CollectiveKind::reduce_scatter:
        values.resize(at(count));
        for (int j = 0; j < n; ++j)
          for (int64_t i = 0; i < count; ++i) values[at(i)] += given(j, first + i, round);
        break;
      case CollectiveKind::broadcast:
        from(c.root, 0, count);
        break;
      case CollectiveKind::all_gather:
        for (int j = 0; j < n; ++j) from(j, 0, count);
        break;
      case CollectiveKind::all_to_all:
      case CollectiveKind::send_receive:
        for (int j = 0; j < n; ++j) from(j, flow_before(j, position), flow(j, position));
    }
    return encoded(values, c.dtype);
  }

  void fill(const Stream& stream, int round) {
    const auto mine = given_bytes(round);
    fill_bytes(stream, output.data(), 0xAB, output.bytes());
    copy_to_device(stream, in_place() ? output.as<char>() + kGuard : input.as<char>(), mine.data(),
                   mine.size());
    stream.synchronize();
  }
  parallel::Ticket start(parallel::Communicator& ranks, const Context& ctx) {
    return ranks.start(c, in_place() ? nullptr : input.data(), output.as<char>() + kGuard, ctx);
  }
  void check(const Stream& stream, int round) {
    std::vector<std::byte> got(output.bytes()), expected(kGuard, std::byte{0xAB});
    copy_to_host(stream, got.data(), output.data(), got.size());
    stream.synchronize();
    const auto inner = expected_bytes(round);
    expected.insert(expected.end(), inner.begin(), inner.end());
    expected.insert(expected.end(), kGuard, std::byte{0xAB});
    const auto differs = std::mismatch(got.begin(), got.end(), expected.begin()).first;
    require(differs == got.end(),
            fmt::format("{}, round {}: byte {} of {} differs", describe(c), round,
                        differs - got.begin() - static_cast<std::ptrdiff_t>(kGuard), inner.size()));
  }
};

// Every kind, type and some sizes over all ranks and over groups of them.
std::vector<Case> all_cases(parallel::Communicator& ranks, Device device) {
  std::vector<int> parity;
  for (int r = ranks.rank() % 2; r < ranks.size(); r += 2) parity.push_back(r);
  const std::vector<Group> groups = {ranks.world(), ranks.make_group(parity),
                                     ranks.make_group({ranks.rank()})};
  std::vector<Case> cases;
  for (const Group& group : groups)
    for (int kind = 0; kind <= static_cast<int>(CollectiveKind::send_receive); ++kind)
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32})
        for (const int64_t count : {0, 1, 3, 1000, 65'537})
          cases.emplace_back(Collective{.kind = static_cast<CollectiveKind>(kind),
                                        .group = group,
                                        .dtype = dtype,
                                        .count = count,
                                        .root = group.size() - 1},
                             ranks.rank(), device);
  return cases;
}

void enqueue(std::vector<Case>& cases, parallel::Communicator& ranks, const Context& ctx) {
  std::vector<parallel::Ticket> tickets;
  for (Case& one : cases) tickets.push_back(one.start(ranks, ctx));
  for (const parallel::Ticket t : tickets) ranks.wait(t, ctx);
}

void check_kinds(parallel::Communicator& ranks, Device device) {
  const Stream compute(device);
  auto cases = all_cases(ranks, device);
  for (Case& one : cases) one.fill(compute, 0);
  enqueue(cases, ranks, context_of(compute));
  for (Case& one : cases) one.check(compute, 0);
}

// Fill and start alternate, so a start that overtakes the fill before it gives wrong sums.
void check_order(parallel::Communicator& ranks, Device device) {
  const Stream compute(device);
  const Context ctx = context_of(compute);
  std::vector<Buffer> buffers;
  std::vector<parallel::Ticket> tickets;
  const std::vector<int64_t> sizes = {1, 3, 1000, 65'537, 1'000'003};
  for (const int64_t n : sizes) {
    const std::vector<float> mine(at(n), static_cast<float>(ranks.rank() + 1));
    buffers.emplace_back(device, mine.size() * sizeof(float));
    copy_to_device(compute, buffers.back().data(), mine.data(), buffers.back().bytes());
    tickets.push_back(
        ranks.start({.group = ranks.world(), .count = n}, nullptr, buffers.back().data(), ctx));
  }
  Buffer other(device, size_t{8} << 20);
  for (int i = 0; i < 8; ++i) fill_bytes(compute, other.data(), i, other.bytes());
  for (size_t k = 0; k < sizes.size(); ++k) {
    ranks.wait(tickets[k], ctx);
    std::vector<float> got(at(sizes[k]));
    copy_to_host(compute, got.data(), buffers[k].data(), buffers[k].bytes());
    compute.synchronize();
    const float sum = static_cast<float>(triangle(ranks.size()));
    require(got == std::vector<float>(got.size(), sum),
            fmt::format("sum of {} elements, some of {} in flight", sizes[k], sizes.size()));
  }
}

// What cannot be started is refused before it reaches a transport; what does not fit, on all ranks.
void check_refusals(parallel::Communicator& ranks, Device device) {
  const Stream compute(device);
  const auto refused = [](const auto& call, const std::string& part) {
    std::string what = "went on";
    try {
      call();
    } catch (const Error& e) {
      what = e.code() == Errc::invalid_argument ? e.what() : "another kind of error";
    }
    require(what.find(part) != std::string::npos, fmt::format("'{}' lacks '{}'", what, part));
  };
  const auto start = [&](const Collective& c) {
    refused([&] { ranks.start(c, nullptr, nullptr, context_of(compute)); }, "all_reduce of ");
  };
  start({.group = ranks.world(), .count = -1});
  start({.group = ranks.world(), .count = 1, .root = ranks.size()});
  start({.group = {0, {ranks.rank() + 1}}, .count = 1});
  start({.group = ranks.world(), .count = 1, .send_counts = {1}, .receive_counts = {1}});
  refused([&] { ranks.make_group({}); }, "ascending ranks");
  refused([&] { ranks.make_group({ranks.rank(), ranks.rank()}); }, "ascending ranks");

  std::vector<Collective> list(3, Collective{.group = ranks.world(), .count = 5});
  require_matching(ranks, list);
  if (ranks.rank() == 1) list[1].dtype = DType::f64;
  refused([&] { require_matching(ranks, list); },
          "entry 1 of rank 0 is all_reduce of 5 f32 over ranks 0, 1");
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
    all_reduce(c, buffer.data(), static_cast<int64_t>(count), context_of(compute));
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
  check_kinds(communicator, device);
  check_order(communicator, device);
  check_refusals(communicator, device);
  check_repeatable(communicator, device);
  check_host(communicator);
}

void check_captured(parallel::Communicator& ranks, Device device) {
  const Stream compute(device);
  auto cases = all_cases(ranks, device);
  Buffer beside(device, size_t{8} << 20);
  const auto body = [&] {
    enqueue(cases, ranks, context_of(compute));
    fill_bytes(compute, beside.data(), 255, beside.bytes());  // the graph goes on after the join
  };
  for (Case& one : cases) one.fill(compute, 0);
  body();  // NCCL connects lazily; the capture must find it connected
  compute.synchronize();
  const Graph graph = Graph::capture(compute, body);
  for (int replay = 1; replay <= 5; ++replay) {
    for (Case& one : cases) one.fill(compute, replay);
    graph.launch(compute);
    for (Case& one : cases) one.check(compute, replay);
  }
}

void step_along_axis(parallel::Communicator& c, parallel::MeshAxis axis, int victim,
                     const std::string& what) {
  using parallel::MeshAxis;
  const std::map<MeshAxis, CollectiveKind> kinds = {{MeshAxis::tp, CollectiveKind::reduce_scatter},
                                                    {MeshAxis::cp, CollectiveKind::all_gather},
                                                    {MeshAxis::dp, CollectiveKind::all_reduce},
                                                    {MeshAxis::pp, CollectiveKind::send_receive},
                                                    {MeshAxis::ep, CollectiveKind::all_to_all}};
  parallel::MeshExtents extents{.dp = 2};
  if (axis == MeshAxis::cp) extents.cp = 2;
  if (axis == MeshAxis::pp) extents.pp = 2;
  if (axis == MeshAxis::ep) extents.ep = 2;
  if (extents.cp * extents.pp == 1) extents.tp = 2;
  Group group = c.make_group(parallel::Mesh(c.size(), extents).group(std::array{axis}, c.rank()));
  group.axes = name_of(axis);
  const Device cpu;
  const Stream compute(cpu);
  Case one({.kind = kinds.at(axis), .group = group, .count = 1000}, c.rank(), cpu);
  one.fill(compute, 0);
  c.set_action("training", parallel::Pace::steady);
  for (int64_t step = 0;; ++step) {
    c.set_step(step);
    c.all_reduce_sum(0);  // as the norm of the gradients joins all ranks of a step
    c.wait(one.start(c, context_of(compute)), context_of(compute));
    if (step == 5 && c.rank() == victim) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));  // a heartbeat tells where it is
      fmt::print(stderr, "event {}\n", now_s());
      std::fflush(stderr);  // a file is not written to at once
      if (what == "kill") kill(getpid(), SIGKILL);
      if (what == "stop") kill(getpid(), SIGSTOP);
      throw Error(Errc::io, "checkpoint", "no space left on /data");
    }
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
    all_reduce(c, buffer.data(), int64_t{1} << 18, context_of(compute));
    compute.synchronize();
  }
}

}  // namespace saturate::distributed
