// SPDX-License-Identifier: Apache-2.0
#include "parallel/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/exit_code.h"

namespace saturate::parallel {
namespace {

[[noreturn]] void refuse(const Collective& c, const std::string& rule) {
  throw Error(Errc::invalid_argument, name_of(c.kind), describe(c) + ": " + rule);
}

// Values of one rank's list as numbers, for the way to the others.
std::vector<int64_t> packed(const std::vector<Collective>& list) {
  std::vector<int64_t> out;
  const auto put = [&](const auto& values) {
    out.push_back(std::ssize(values));
    out.insert(out.end(), values.begin(), values.end());
  };
  for (const Collective& c : list) {
    out.insert(out.end(), {static_cast<int64_t>(c.kind), static_cast<int64_t>(c.dtype), c.count,
                           static_cast<int64_t>(c.root)});
    put(c.group.ranks);
    put(c.send_counts);
    put(c.receive_counts);
  }
  return out;
}

std::vector<Collective> unpacked(const std::vector<int64_t>& in) {
  std::vector<Collective> list;
  for (auto at = in.begin(); at != in.end();) {
    const auto next = [&] { return *at++; };
    const auto get = [&](auto& values) {
      const int64_t n = next();
      values.assign(at, at + n);
      at += n;
    };
    Collective& c = list.emplace_back();
    c.kind = static_cast<CollectiveKind>(next());
    c.dtype = static_cast<DType>(next());
    c.count = next();
    c.root = static_cast<int>(next());
    get(c.group.ranks);
    get(c.send_counts);
    get(c.receive_counts);
  }
  return list;
}

// FNV-1a over whole numbers, cut to what a double holds exactly.
double digest_of(const std::vector<int64_t>& values) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const int64_t v : values) h = (h ^ static_cast<uint64_t>(v)) * 0x100000001b3ull;
  return static_cast<double>(h >> 12);
}

}  // namespace

Communicator::Communicator(Device device, int rank, int size) : device_(device), rank_(rank) {
  world_.ranks.resize(static_cast<size_t>(size));
  std::iota(world_.ranks.begin(), world_.ranks.end(), 0);
}

Group Communicator::make_group(std::vector<int> ranks) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ascending || !std::binary_search(ranks.begin(), ranks.end(), rank_) || ranks.front() < 0 ||
      ranks.back() >= size())
    throw Error(Errc::invalid_argument, "make_group",
                fmt::format("rank {} of {} asks for a group of ranks {}: ascending ranks with its "
                            "own among them are needed",
                            rank_, size(), fmt::join(ranks, ", ")));
  const Group group{++groups_, std::move(ranks)};
  connect(group);
  return group;
}

Ticket Communicator::start(const Collective& c, const void* input, void* output,
                           const Context& compute) {
  if (!(compute.device == device_))
    refuse(c, fmt::format("data on {} is given, on {} it is needed", to_string(compute.device),
                          to_string(device_)));
  const bool parts = c.kind == CollectiveKind::all_to_all || c.kind == CollectiveKind::send_receive;
  const size_t counts = parts ? c.group.ranks.size() : 0;
  const auto negative = [](int64_t n) { return n < 0; };
  if (c.group.position(rank_) < 0) refuse(c, fmt::format("rank {} is not in the group", rank_));
  if (c.send_counts.size() != counts || c.receive_counts.size() != counts ||
      std::any_of(c.send_counts.begin(), c.send_counts.end(), negative) ||
      std::any_of(c.receive_counts.begin(), c.receive_counts.end(), negative))
    refuse(c, fmt::format("{} counts to send and to receive are needed, each 0 or more", counts));
  if (c.count < 0 || c.root < 0 || c.root >= c.group.size())
    refuse(c, fmt::format("count {} and root {} are given: 0 or more, and a position in the group",
                          c.count, c.root));
  if (c.elements() == 0 && c.kind != CollectiveKind::all_to_all) return {};
  return run(c, input, output, compute);
}

ChannelCommunicator::ChannelCommunicator(Device device, int rank, int size)
    : Communicator(device, rank, size), exceptions_at_start_(std::uncaught_exceptions()) {}

void ChannelCommunicator::broadcast(void* data, int64_t bytes, int root) {
  if (root < 0 || root >= size() || bytes < 0)
    throw Error(
        Errc::invalid_argument, "broadcast",
        fmt::format("{} bytes from rank {}: ranks 0 to {} are here", bytes, root, size() - 1));
  channel_->broadcast(data, bytes, root);
}

double ChannelCommunicator::all_reduce_sum(double value) {
  channel_->all_reduce(&value, 1, DType::f64, ReduceOp::sum);
  return value;
}

double ChannelCommunicator::all_reduce_max(double value) {
  channel_->all_reduce(&value, 1, DType::f64, ReduceOp::max);
  return value;
}

void ChannelCommunicator::set_step(int64_t step) noexcept { channel_->activity().set_step(step); }

void ChannelCommunicator::set_action(const char* action, Pace pace) noexcept {
  channel_->activity().set_action(action, pace);
}

void ChannelCommunicator::report_failure(const std::exception& cause) {
  const auto* error = dynamic_cast<const Error*>(&cause);
  const bool echo = error && error->code() == Errc::collective;
  channel_->report_failure(cause.what(), echo ? FailureOrigin::echo : FailureOrigin::here,
                           exit_code_of(cause));
}

bool ChannelCommunicator::unwinding() {
  const bool passing = std::uncaught_exceptions() > exceptions_at_start_;
  if (passing && channel_)
    channel_->report_failure("an exception ended its work", FailureOrigin::here);
  return passing;
}

void require_matching(Communicator& ranks, const std::vector<Collective>& mine) {
  const std::vector<int64_t> own = packed(mine);
  const bool simple = std::all_of(mine.begin(), mine.end(), [&](const Collective& c) {
    return c.group.ranks == ranks.world().ranks && c.send_counts.empty();
  });
  // A digest of their own where the lists must travel makes the maximum differ from the minimum.
  const double digest = simple ? digest_of(own) : -1.0 - ranks.rank();
  if (ranks.all_reduce_max(digest) == -ranks.all_reduce_max(-digest)) return;
  std::vector<std::vector<Collective>> lists;
  for (int root = 0; root < ranks.size(); ++root) {
    std::vector<int64_t> list = own;
    int64_t length = std::ssize(list);
    ranks.broadcast(&length, sizeof length, root);
    list.resize(static_cast<size_t>(length));
    ranks.broadcast(list.data(), length * static_cast<int64_t>(sizeof(int64_t)), root);
    lists.push_back(unpacked(list));
  }
  if (const std::string text = mismatch_of(lists); !text.empty())
    throw Error(Errc::invalid_argument, "collectives",
                text + ". Start all ranks with the same program and the same settings");
}

}  // namespace saturate::parallel
