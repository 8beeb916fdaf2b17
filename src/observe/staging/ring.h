// SPDX-License-Identifier: Apache-2.0
// Copies from pageable memory through page-locked blocks that several threads fill: what the driver
// does with one thread. When a copy returns, all of its source has been read, as with the driver's
// own, so that a program can tell the two apart by nothing but the time.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace saturate::observe::staging {

// What the ring needs of the CUDA runtime; 0 is success.
class Device {
 public:
  virtual ~Device() = default;
  virtual void* pinned(size_t bytes) = 0;  // null: none is left
  virtual void* make_event() = 0;          // null: none
  virtual int copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual int record(void* event, void* stream) = 0;  // after all that the stream has
  virtual int wait(void* event) = 0;                  // until that has happened
};

// Of one device. copy() is not for several threads at a time.
class Ring {
 public:
  static constexpr size_t kBlock = 4 << 20, kPiece = kBlock / 8;

  // `threads` fill blocks, the one that calls copy() among them; the others live as long as the
  // process, and so must the ring and the device.
  Ring(Device& device, int threads);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // False when pinned memory could not be had; then there is no copy().
  bool ready() const { return ready_; }
  // The copy follows what `stream` has. The device's first error, else 0.
  int copy(void* to, const void* from, size_t bytes, void* stream);

 private:
  static constexpr size_t kBlocks = 4, kAhead = 2, kPieces = kBlock / kPiece;
  struct Block {
    char* memory = nullptr;
    void* event = nullptr;
    bool used = false;
    std::atomic<size_t> filled{0};  // pieces
  };
  bool fill_piece();
  void work();

  Device& device_;
  std::array<Block, kBlocks> blocks_;  // block b of a copy lies in place b % kBlocks
  bool ready_ = false;
  const char* from_ = nullptr;  // of the copy under way
  size_t bytes_ = 0;
  std::atomic<size_t> pieces_{0};  // of it; 0 between copies: then nothing above may be read
  std::atomic<size_t> next_piece_{0};
  std::atomic<size_t> open_{0};     // blocks that may be filled
  std::atomic<uint32_t> begun_{0};  // copies: idle threads wait for the next one
  std::atomic<int> at_work_{0};     // threads that may read what is above
};

}  // namespace saturate::observe::staging
