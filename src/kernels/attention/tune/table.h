// SPDX-License-Identifier: Apache-2.0
// What `saturate tune attention` found, as a file and as a lookup: for a shape of attention and a
// direction, the implementation that won. The file's rules are those of kernels/tune.
//
// Where several kernels can run a shape (tiles of Hopper, of mma.sync, of the features' kernels, of
// whole short sequences), the order of the list decides without a table. A lookup measures nothing
// and touches no GPU, so calls under capture of a graph choose as all others do.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/tune/machine.h"

namespace saturate::kernels {

enum class AttentionPass : uint8_t { forward, backward };

// Everything a measured choice depends on. Lengths are means over the sequences, rounded up: what
// the host knows of packed ones. How rows lie in memory is left out: an implementation that cannot
// read them refuses, and the list decides.
struct AttentionKey {
  AttentionPass pass = AttentionPass::forward;
  DType dtype = DType::f32;
  int64_t head_size = 0, v_head_size = 0;
  int64_t heads = 0, kv_heads = 0;
  int64_t sequences = 0, queries = 0, keys = 0, longest = 0;
  uint32_t features = 0;  // features.h
  bool causal = false, dropout = false;
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};
// No pointer of the arguments is followed.
AttentionKey attention_key(const AttentionArgs& args, AttentionPass pass) noexcept;
std::string text_of(const AttentionKey& key);  // "bf16 forward 32x12x1024x64 causal"

// Shapes of a class differ by at most 1.42 in sequences times heads and in each length; head sizes,
// the number of query heads to a key head, type and features are equal.
AttentionKey class_of(const AttentionKey& key) noexcept;

struct AttentionChoice {
  std::string impl;       // a name of the direction's list
  double ms = 0;          // median when it was measured
  double default_ms = 0;  // of what runs without a table
  friend bool operator==(const AttentionChoice&, const AttentionChoice&) = default;
};

/// Entries with a lookup by problem. Plain data: const use from several threads is safe.
class AttentionTable {
 public:
  void set(const AttentionKey& key, AttentionChoice choice);
  // The choice measured for this very shape, else that of its class (of several that with the most
  // work), else that of shapes which differ from the class in the longest sequence only (what it
  // names may refuse then), else null.
  const AttentionChoice* find(const AttentionKey& key) const noexcept;
  const std::map<AttentionKey, AttentionChoice>& entries() const noexcept { return exact_; }
  bool empty() const noexcept { return exact_.empty(); }

 private:
  std::map<AttentionKey, AttentionChoice> exact_;
  std::map<AttentionKey, AttentionKey> representative_;  // class -> exact key
};

// "<folder>/attention-nvidia-h200-9.0.json"
std::string attention_table_path(const std::string& folder, const TuneMachine& machine);
std::string to_json(const TuneMachine& machine, const AttentionTable& table);

struct ReadAttentionTable {
  AttentionTable table;  // empty when there is a problem
  std::string problem;   // "" or one line: file, what is wrong, remedy
  bool exists = false;
};
// As read_gemm_table and merge_gemm_table.
ReadAttentionTable read_attention_table(const std::string& path, const TuneMachine& machine);
void merge_attention_table(const std::string& path, const TuneMachine& machine,
                           const AttentionTable& found);

}  // namespace saturate::kernels
