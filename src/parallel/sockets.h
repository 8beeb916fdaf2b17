// SPDX-License-Identifier: Apache-2.0
// TCP between ranks in frames {type, sequence, bytes, payload}; values in host byte order, since
// ranks of one job run one build. No authentication: like MPI and NCCL it trusts the network it
// runs on.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace saturate::parallel {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

enum class FrameType : uint32_t { hello = 0x53415431, data, heartbeat, failure, bye };

struct FrameHeader {
  FrameType type = FrameType::heartbeat;
  uint32_t sequence = 0;
  uint64_t bytes = 0;
};
// Senders cut longer data; a longer frame is not ours.
constexpr uint64_t kMaxFrameBytes = uint64_t{16} << 20;

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
};

// Assembles frames from whatever has arrived; never blocks.
class FrameReader {
 public:
  enum class Result { frame, nothing_yet, closed };
  // `frame`: take() is valid. `closed`: end of stream, error, or bytes that are no frame of ours.
  Result read(int fd);
  Frame take();

 private:
  Frame frame_;
  size_t received_ = 0;  // bytes of header and payload so far
};

// Blocks until all is sent. False when the peer is gone or `cancelled` became true.
bool send_frame(int fd, FrameHeader header, const void* payload,
                const std::atomic<bool>& cancelled);

enum class Reach { this_host, any_host };

// Listens on the first free port of [first_port, first_port + ports); first_port 0: any free port.
// Returns the port. Errors: io.
int listen_on(Reach reach, int first_port, int ports, Descriptor& listener);

// One attempt; empty when nobody answers within `timeout_ms`. Errors: io (host name unknown).
Descriptor connect_to(const std::string& host, int port, int timeout_ms);

// This end of a connection as numbers, "10.0.0.3" or "fe80::1". Errors: io.
std::string local_address_of(const Descriptor& connection);

// Waits up to `timeout_ms` for a connection; empty when none came.
Descriptor accept_from(const Descriptor& listener, int timeout_ms);

// Blocking receive of exactly `bytes` within `timeout_ms`; false when less came.
bool receive_exactly(int fd, void* data, size_t bytes, int timeout_ms);

}  // namespace saturate::parallel
