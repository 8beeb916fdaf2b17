// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gloo/allgatherv.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"
#include "parallel/host_communicator.h"
#include "parallel/host_sum.h"

namespace saturate::parallel {
namespace {

// Sums are made in parts of this many bytes, which bounds the memory they need beside the data.
constexpr int64_t kPartBytes = int64_t{4} << 20;

// Where the ranks of a group leave what the others need to connect. Every rank stores the same
// number of times, so storing is the exchange: all give theirs to all, and those of the group stay.
class ChannelStore final : public gloo::rendezvous::Store {
 public:
  ChannelStore(ControlChannel& channel, const Group& group) : channel_(channel), group_(group) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    for (int root = 0; root < channel_.size(); ++root) {
      std::vector<char> name(key.begin(), key.end()), blob = data;
      for (std::vector<char>* part : {&name, &blob}) {
        int64_t bytes = std::ssize(*part);
        channel_.broadcast(&bytes, sizeof bytes, root);
        part->resize(static_cast<size_t>(bytes));
        channel_.broadcast(part->data(), bytes, root);
      }
      if (group_.position(root) >= 0) stored_[{name.begin(), name.end()}] = blob;
    }
  }
  std::vector<char> get(const std::string& key) override { return stored_.at(key); }
  void wait(const std::vector<std::string>&) override {}

 private:
  ControlChannel& channel_;
  const Group& group_;
  std::map<std::string, std::vector<char>> stored_;
};

// While it lives, a write of this thread to the socket of a rank that has gone is an error (EPIPE),
// not a SIGPIPE: Gloo's writes raise it, and a process that does not handle it would end without
// saying who was lost. Threads that are started meanwhile stay so.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    pending_before_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now{};
    while (!pending_before_ && sigtimedwait(&sigpipe_, nullptr, &now) == -1 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  bool pending_before_ = false;
  sigset_t sigpipe_, before_;
};

class GlooTransport final : public HostTransport {
 public:
  explicit GlooTransport(ControlChannel& channel) : channel_(channel) {
    guarded([&] {
      gloo::transport::tcp::attr attributes;
      attributes.hostname = channel.local_address();
      device_ = gloo::transport::tcp::CreateDevice(attributes);
    });
  }

  const char* name() const noexcept override { return "gloo"; }

  void connect(const Group& group) override {
    ChannelStore store(channel_, group);
    auto context =
        std::make_shared<gloo::rendezvous::Context>(group.position(channel_.rank()), group.size());
    // The control channel says when a rank is lost. Some of Gloo's waits take its kNoTimeout for 0.
    context->setTimeout(std::chrono::hours(24 * 365));
    guarded([&] { context->connectFullMesh(store, device_); });
    groups_.push_back({std::move(context), std::vector<uint32_t>(group.ranks.size())});
  }

  void run(const Collective& c, const void* input, void* output) override {
    Member& group = groups_[static_cast<size_t>(c.group.id)];
    const auto* in = static_cast<const char*>(input);
    auto* out = static_cast<char*>(output);
    const auto bytes = c.count * static_cast<int64_t>(size_of(c.dtype));
    if (c.group.size() == 1) return alone(c, in, out);
    guarded([&] {
      switch (c.kind) {
        case CollectiveKind::all_reduce:
          return all_reduce(group, in ? in : out, out, c.count, c.dtype);
        case CollectiveKind::reduce_scatter:
          return reduce_scatter(group, in, out, c.count, c.dtype);
        case CollectiveKind::all_gather:
          return all_gather(group, in, out,
                            std::vector<size_t>(c.group.ranks.size(), static_cast<size_t>(bytes)));
        case CollectiveKind::broadcast: {
          gloo::BroadcastOptions options(group.context);
          options.setOutput(out, static_cast<size_t>(bytes));
          options.setRoot(c.root);
          return gloo::broadcast(options);
        }
        case CollectiveKind::all_to_all:
        case CollectiveKind::send_receive:
          return exchange(group, c, in, out);
      }
    });
  }

 private:
  struct Member {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::vector<uint32_t> exchanges;  // with each position so far: the number that joins both ends
    int rank() const { return context->rank; }
    int size() const { return context->size; }
  };

  template <class Body>
  static void guarded(const Body& body) {
    const WithoutSigpipe inside;
    try {
      body();
    } catch (const Error&) {  // of the control channel
      throw;
    } catch (const std::exception& e) {
      throw Error(Errc::collective, "gloo", e.what());
    }
  }

  static void alone(const Collective& c, const char* in, char* out) {
    if (in != nullptr && c.kind != CollectiveKind::broadcast && c.elements() > 0)
      std::memcpy(out, in, static_cast<size_t>(c.elements()) * size_of(c.dtype));
  }

  static void all_gather(Member& group, const char* in, char* out, std::vector<size_t> bytes) {
    gloo::AllgathervOptions options(group.context);
    options.setInput(const_cast<char*>(in), bytes[static_cast<size_t>(group.rank())]);
    options.setOutput(out, std::move(bytes));
    gloo::allgatherv(options);
  }

  // scratch = the sum over the ranks, in their order, of piece `rank` of each one's data; pieces lie
  // at piece_bytes of the data. Scratch holds one piece of every rank.
  void sum_pieces(Member& group, const char* data, const std::vector<int64_t>& piece_bytes,
                  DType dtype) {
    const int64_t own = piece_bytes[static_cast<size_t>(group.rank())];
    scratch_.resize(static_cast<size_t>(own * group.size()));
    gloo::AlltoallvOptions options(group.context);
    options.setInput(const_cast<char*>(data), piece_bytes);
    options.setOutput(scratch_.data(),
                      std::vector<int64_t>(static_cast<size_t>(group.size()), own));
    gloo::alltoallv(options);
    const int64_t count = own / static_cast<int64_t>(size_of(dtype));
    for (int j = 1; j < group.size(); ++j)
      add_into(dtype, scratch_.data(), scratch_.data() + j * own, count);
  }

  void all_reduce(Member& group, const char* in, char* out, int64_t count, DType dtype) {
    const auto element = static_cast<int64_t>(size_of(dtype));
    const int64_t part = kPartBytes / element, n = group.size();
    for (int64_t done = 0; done < count; done += part) {
      const int64_t here = std::min(part, count - done);
      std::vector<int64_t> bytes;
      for (int64_t j = 0; j < n; ++j)
        bytes.push_back((here * (j + 1) / n - here * j / n) * element);
      sum_pieces(group, in + done * element, bytes, dtype);
      all_gather(group, scratch_.data(), out + done * element, {bytes.begin(), bytes.end()});
    }
  }

  // A part of every rank's piece at a time; the pieces lie `count` elements apart, so they are
  // brought together first.
  void reduce_scatter(Member& group, const char* in, char* out, int64_t count, DType dtype) {
    const auto element = static_cast<int64_t>(size_of(dtype));
    const int64_t part = std::max<int64_t>(1, kPartBytes / element / group.size());
    std::vector<char> gathered;
    for (int64_t done = 0; done < count; done += part) {
      const int64_t bytes = std::min(part, count - done) * element;
      gathered.resize(static_cast<size_t>(bytes * group.size()));
      for (int j = 0; j < group.size(); ++j)
        std::memcpy(gathered.data() + j * bytes, in + (j * count + done) * element,
                    static_cast<size_t>(bytes));
      sum_pieces(group, gathered.data(),
                 std::vector<int64_t>(static_cast<size_t>(group.size()), bytes), dtype);
      std::memcpy(out + done * element, scratch_.data(), static_cast<size_t>(bytes));
    }
  }

  void exchange(Member& group, const Collective& c, const char* in, char* out) {
    // Above the prefixes of Gloo's own collectives.
    constexpr uint64_t kSlots = uint64_t{0x40} << 56;
    using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
    std::vector<Buffer> sending, receiving;
    const auto start = [&](std::vector<Buffer>& to, const char* data, size_t bytes) {
      to.push_back(group.context->createUnboundBuffer(const_cast<char*>(data), bytes));
      return to.back().get();
    };
    for (int j = 0; j < group.size(); ++j) {
      const auto position = static_cast<size_t>(j);
      const size_t outgoing = static_cast<size_t>(c.send_counts[position]) * size_of(c.dtype);
      const size_t incoming = static_cast<size_t>(c.receive_counts[position]) * size_of(c.dtype);
      if (j == group.rank()) {
        if (outgoing > 0) std::memcpy(out, in, outgoing);
      } else if (outgoing + incoming > 0) {
        const uint64_t slot = kSlots + group.exchanges[position]++;
        if (incoming > 0) start(receiving, out, incoming)->recv(j, slot);
        if (outgoing > 0) start(sending, in, outgoing)->send(j, slot);
      }
      in += outgoing;
      out += incoming;
    }
    for (Buffer& b : receiving) b->waitRecv();
    for (Buffer& b : sending) b->waitSend();
  }

  ControlChannel& channel_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::vector<Member> groups_;  // by the group's id
  std::vector<char> scratch_;
};

}  // namespace

std::unique_ptr<HostTransport> make_gloo_transport(ControlChannel& channel) {
  return std::make_unique<GlooTransport>(channel);
}

}  // namespace saturate::parallel
