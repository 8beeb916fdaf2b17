// SPDX-License-Identifier: Apache-2.0
#include "parallel/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "base/error.h"

namespace saturate::parallel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPorts = 8;
constexpr int kHelloTimeoutMs = 2000;
constexpr int kConnectTimeoutMs = 1000;
constexpr auto kLongestPause = std::chrono::milliseconds(400);
const std::atomic<bool> kNeverCancelled = false;

// Sent by the connecting rank, answered by rank 0, and sent again as confirmation: rank 0 then
// knows that this connection was not given up in the meantime.
struct Hello {
  uint32_t magic = static_cast<uint32_t>(FrameType::hello);
  int32_t rank = 0, size = 0;
  int32_t on_gpu = 0, unused = 0;  // ranks on different kinds of device make different calls
  uint64_t token = 0;              // equal for the ranks of one job only
  DeviceKind device() const { return on_gpu != 0 ? DeviceKind::cuda : DeviceKind::cpu; }
};

// Where rank 0 listens; crosses through the exchange.
struct Endpoint {
  char host[256] = {};
  int32_t port = 0, unused = 0;
  uint64_t token = 0;
};

// FNV-1a, 64 bit.
uint64_t hash_of(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

bool send_hello(const Descriptor& s, const Hello& hello) {
  return send_frame(s.get(), {FrameType::hello, 0, sizeof hello}, &hello, kNeverCancelled);
}

bool receive_hello(const Descriptor& s, Hello& hello) {
  FrameHeader header;
  return receive_exactly(s.get(), &header, sizeof header, kHelloTimeoutMs) &&
         header.type == FrameType::hello && header.bytes == sizeof hello &&
         receive_exactly(s.get(), &hello, sizeof hello, kHelloTimeoutMs) &&
         hello.magic == static_cast<uint32_t>(FrameType::hello);
}

std::string rank_list(const std::vector<size_t>& ranks) {
  constexpr size_t kShown = 10;
  return fmt::format(
      "{}{}",
      fmt::join(ranks.begin(),
                ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kShown)), ", "),
      ranks.size() > kShown ? ", ..." : "");
}

std::string missing_ranks(const std::vector<Descriptor>& connections) {
  std::vector<size_t> missing;
  for (size_t r = 1; r < connections.size(); ++r)
    if (!connections[r]) missing.push_back(r);
  return rank_list(missing);
}

const char* name_of(DeviceKind kind) { return kind == DeviceKind::cuda ? "a GPU" : "the CPU"; }

[[noreturn]] void refuse_devices(const std::string& theirs, DeviceKind their_device,
                                 const std::string& ours, DeviceKind our_device) {
  throw Error(Errc::invalid_argument, "control_channel",
              fmt::format("{} on {} and {} on {}: ranks of one job train on one kind of device; "
                          "start all with the same train.device",
                          ours, name_of(our_device), theirs, name_of(their_device)));
}

std::vector<Descriptor> accept_all(const LaunchInfo& launch, DeviceKind device,
                                   const Descriptor& listener, uint64_t token, double timeout_s) {
  std::vector<Descriptor> connections(static_cast<size_t>(launch.size));
  std::vector<size_t> on_other_device;  // they leave once they have heard where rank 0 is
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  for (int have = 1; have < launch.size;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0)
      throw Error(
          Errc::io, "control_channel",
          fmt::format(
              "{} of {} ranks reached rank 0 within {} s; missing: {}. Were all started, and "
              "do firewalls let them through to rank 0?",
              have, launch.size, timeout_s, missing_ranks(connections)));
    Descriptor s = accept_from(listener, static_cast<int>(left));
    Hello hello, confirm;
    if (!s || !receive_hello(s, hello) || hello.token != token) continue;
    if (hello.size != launch.size || hello.rank < 1 || hello.rank >= launch.size)
      throw Error(
          Errc::invalid_argument, "control_channel",
          fmt::format(
              "a process says it is rank {} of {}, but rank 0 was told {} ranks: start all with "
              "one command",
              hello.rank, hello.size, launch.size));
    const Hello answer{
        .rank = 0, .size = launch.size, .on_gpu = device == DeviceKind::cuda, .token = token};
    if (!send_hello(s, answer)) continue;
    if (hello.device() != device) {
      const auto rank = static_cast<size_t>(hello.rank);
      if (std::ranges::find(on_other_device, rank) != on_other_device.end()) continue;
      on_other_device.push_back(rank);
      ++have;
      continue;
    }
    if (!receive_hello(s, confirm) || confirm.rank != hello.rank) continue;
    Descriptor& slot = connections[static_cast<size_t>(hello.rank)];
    if (slot)
      throw Error(
          Errc::invalid_argument, "control_channel",
          fmt::format("two processes say they are rank {}: every process needs its own RANK",
                      hello.rank));
    slot = std::move(s);
    ++have;
  }
  if (!on_other_device.empty()) {
    std::ranges::sort(on_other_device);
    refuse_devices(
        fmt::format("{} {} {}", on_other_device.size() == 1 ? "rank" : "ranks",
                    rank_list(on_other_device), on_other_device.size() == 1 ? "is" : "are"),
        device == DeviceKind::cpu ? DeviceKind::cuda : DeviceKind::cpu, "rank 0 is", device);
  }
  return connections;
}

Descriptor reach_rank_0(const LaunchInfo& launch, DeviceKind device, const std::string& host,
                        int first_port, int ports, uint64_t token, double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  auto pause = std::chrono::milliseconds(20);
  do {
    for (int port = first_port; port < first_port + ports; ++port) {
      Descriptor s = connect_to(host, port, kConnectTimeoutMs);
      const Hello mine{.rank = launch.rank,
                       .size = launch.size,
                       .on_gpu = device == DeviceKind::cuda,
                       .token = token};
      Hello answer;
      if (!s || !send_hello(s, mine) || !receive_hello(s, answer) || answer.token != token ||
          answer.rank != 0)
        continue;
      if (answer.device() != device)
        refuse_devices("rank 0 is", answer.device(), fmt::format("rank {} is", launch.rank),
                       device);
      if (send_hello(s, mine)) return s;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  } while (Clock::now() < deadline);
  throw Error(
      Errc::io, "control_channel",
      fmt::format(
          "rank {} found no rank 0 at {}, ports {} to {}, within {} s. Was rank 0 started, and do "
          "firewalls let this host through to it?",
          launch.rank, host, first_port, first_port + ports - 1, timeout_s));
}

Endpoint exchanged_endpoint(const LaunchInfo& launch, Descriptor& listener,
                            const Exchange& exchange) {
  Endpoint endpoint;
  if (launch.rank == 0) {
    endpoint.port =
        listen_on(launch.one_host() ? Reach::this_host : Reach::any_host, 0, 1, listener);
    std::random_device entropy;
    endpoint.token = uint64_t{entropy()} << 32 | entropy();
    if (launch.one_host())
      std::strcpy(endpoint.host, "127.0.0.1");
    else if (gethostname(endpoint.host, sizeof endpoint.host - 1) != 0)
      throw Error(Errc::io, "control_channel",
                  "this host has no name that the other ranks could reach");
  }
  exchange(&endpoint, sizeof endpoint);
  return endpoint;
}

}  // namespace

std::vector<Descriptor> meet(const LaunchInfo& launch, DeviceKind device, double timeout_s,
                             const Exchange& exchange) {
  Descriptor listener;
  std::string host = launch.one_host() ? "127.0.0.1" : launch.rendezvous_host;
  int port = launch.rendezvous_port, ports = kPorts;
  uint64_t token = hash_of(fmt::format("{}:{}", launch.job, port));
  if (exchange) {
    const Endpoint endpoint = exchanged_endpoint(launch, listener, exchange);
    host = endpoint.host;
    port = endpoint.port;
    ports = 1;
    token = endpoint.token;
  } else if (host.empty() || port < 1) {
    throw Error(
        Errc::invalid_argument, "control_channel",
        fmt::format(
            "{} ranks were started by {}, but nothing says where rank 0 is: set MASTER_ADDR and "
            "MASTER_PORT",
            launch.size, launch.source));
  } else if (launch.rank == 0) {
    listen_on(launch.one_host() ? Reach::this_host : Reach::any_host, port, ports, listener);
  }
  if (launch.rank == 0) return accept_all(launch, device, listener, token, timeout_s);
  std::vector<Descriptor> connections;
  connections.push_back(reach_rank_0(launch, device, host, port, ports, token, timeout_s));
  return connections;
}

}  // namespace saturate::parallel
