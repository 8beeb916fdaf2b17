// SPDX-License-Identifier: Apache-2.0
// The part of a CUDA runtime that libsaturate_staging.so stands before: copies at once, and counts.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {
std::map<const char*, size_t> pinned;
int copies = 0, from_pinned = 0;
}  // namespace

extern "C" {
int fake_capturing = 0;
int fake_copies() { return copies; }
int fake_from_pinned() { return from_pinned; }
int cudaPointerGetAttributes(int* all, const void* address) {
  const auto* at = static_cast<const char*>(address);
  const auto after = pinned.upper_bound(at);
  const auto found = after == pinned.begin() ? pinned.end() : std::prev(after);
  all[0] = found != pinned.end() && at < found->first + found->second ? 1 : 0;
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  int attributes[2];
  cudaPointerGetAttributes(attributes, from);
  from_pinned += attributes[0];
  ++copies;
  std::memcpy(to, from, bytes);
  return 0;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
int cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  pinned[static_cast<char*>(*memory = std::malloc(bytes))] = bytes;
  return 0;
}
int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = &pinned;
  return 0;
}
int cudaEventRecord(void*, void*) { return 0; }
int cudaEventSynchronize(void*) { return 0; }
int cudaStreamSynchronize(void*) { return 0; }
int cudaStreamIsCapturing(void*, int* capturing) {
  *capturing = fake_capturing;
  return 0;
}
int cudaGetDevice(int* device) { return *device = 0; }
int cudaGetLastError() { return 0; }
}
