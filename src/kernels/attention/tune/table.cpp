// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/tune/table.h"

#include <fmt/format.h>

#include <vector>

#include "kernels/attention/features.h"
#include "kernels/tune/tuned_file.h"

namespace saturate::kernels {
namespace {

constexpr const char* kKind = "attention";

int64_t mean(int64_t rows, int64_t sequences) noexcept {
  return sequences > 0 ? (rows + sequences - 1) / sequences : 0;
}

double work_of(const AttentionKey& k) noexcept {
  return static_cast<double>(k.sequences * k.heads) * static_cast<double>(k.queries) *
         static_cast<double>(k.keys);
}

const char* name_of(AttentionPass pass) noexcept {
  return pass == AttentionPass::backward ? "backward" : "forward";
}

std::string entry_text(const AttentionKey& k, const AttentionChoice& c) {
  const Json json = {{"pass", name_of(k.pass)},
                     {"type", name_of(k.dtype)},
                     {"head_sizes", Json::Array{k.head_size, k.v_head_size}},
                     {"heads", Json::Array{k.heads, k.kv_heads}},
                     {"sequences", Json::Array{k.sequences}},
                     {"lengths", Json::Array{k.queries, k.keys, k.longest}},
                     {"features", Json::Array{k.features}},
                     {"causal", k.causal},
                     {"dropout", k.dropout},
                     {"impl", c.impl},
                     {"ms", c.ms},
                     {"default_ms", c.default_ms}};
  return json.dump();
}

void read_entry(TunedEntry& f, AttentionTable& table) {
  constexpr std::string_view kPasses[] = {"forward", "backward"};
  AttentionKey k;
  k.pass = f.choice("pass", kPasses) == 1 ? AttentionPass::backward : AttentionPass::forward;
  k.dtype = f.type("type");
  const auto take = [&](std::string_view key, std::vector<int64_t*> to, int64_t least,
                        std::string_view rule) {
    const std::vector<int64_t> numbers = f.whole_numbers(key, to.size(), least, rule);
    for (size_t i = 0; i < numbers.size(); ++i) *to[i] = numbers[i];
  };
  int64_t features = 0;
  take("head_sizes", {&k.head_size, &k.v_head_size}, 1, "two whole numbers from 1");
  take("heads", {&k.heads, &k.kv_heads}, 1, "two whole numbers from 1");
  take("sequences", {&k.sequences}, 0, "one whole number from 0");
  take("lengths", {&k.queries, &k.keys, &k.longest}, 0, "three whole numbers from 0");
  take("features", {&features}, 0, "one whole number from 0");
  k.features = static_cast<uint32_t>(features);
  k.causal = f.boolean("causal");
  k.dropout = f.boolean("dropout");
  table.set(k, {f.text("impl"), f.not_negative("ms"), f.not_negative("default_ms")});
}

}  // namespace

AttentionKey attention_key(const AttentionArgs& a, AttentionPass pass) noexcept {
  return {.pass = pass,
          .dtype = a.dtype,
          .head_size = a.head_size,
          .v_head_size = attention_v_head_size(a),
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .sequences = a.sequences,
          .queries = mean(a.q_rows, a.sequences),
          .keys = mean(a.k_rows, a.sequences),
          .longest = a.max_q > a.max_k ? a.max_q : a.max_k,
          .features = features_of(a),
          .causal = a.causal,
          .dropout = a.dropout > 0.0f};
}

std::string text_of(const AttentionKey& k) {
  std::string text = fmt::format("{} {} {}x{}x{}x{}", name_of(k.dtype), name_of(k.pass),
                                 k.sequences, k.heads, k.queries, k.head_size);
  if (k.v_head_size != k.head_size) text += fmt::format(" values of {}", k.v_head_size);
  if (k.kv_heads != k.heads) text += fmt::format(" {} key heads", k.kv_heads);
  if (k.keys != k.queries) text += fmt::format(" {} keys", k.keys);
  if (k.longest != k.keys || k.longest != k.queries) text += fmt::format(" up to {}", k.longest);
  if (k.causal) text += " causal";
  if (k.dropout) text += " dropout";
  if (k.features != 0) text += fmt::format(" features {}", k.features);
  return text;
}

AttentionKey class_of(const AttentionKey& key) noexcept {
  AttentionKey c = key;
  c.heads = key.kv_heads > 0 ? key.heads / key.kv_heads : 0;
  c.kv_heads = 1;
  c.sequences = shape_class(key.sequences * key.heads);
  c.queries = shape_class(key.queries);
  c.keys = shape_class(key.keys);
  c.longest = shape_class(key.longest);
  return c;
}

namespace {

AttentionKey without_longest(AttentionKey shape_class) noexcept {
  shape_class.longest = -1;
  return shape_class;
}

}  // namespace

void AttentionTable::set(const AttentionKey& key, AttentionChoice choice) {
  exact_.insert_or_assign(key, std::move(choice));
  for (const AttentionKey& shape_class : {class_of(key), without_longest(class_of(key))}) {
    const auto [at, fresh] = representative_.try_emplace(shape_class, key);
    const double now = work_of(at->second), other = work_of(key);
    // The order in which entries come must not matter, or two files with one content would differ.
    if (!fresh && (other > now || (other == now && key < at->second))) at->second = key;
  }
}

const AttentionChoice* AttentionTable::find(const AttentionKey& key) const noexcept {
  if (const auto at = exact_.find(key); at != exact_.end()) return &at->second;
  auto near = representative_.find(class_of(key));
  if (near == representative_.end()) near = representative_.find(without_longest(class_of(key)));
  return near == representative_.end() ? nullptr : &exact_.find(near->second)->second;
}

std::string attention_table_path(const std::string& folder, const TuneMachine& machine) {
  return tuned_file_path(folder, kKind, machine);
}

std::string to_json(const TuneMachine& machine, const AttentionTable& table) {
  std::vector<std::string> entries;
  for (const auto& [key, choice] : table.entries()) entries.push_back(entry_text(key, choice));
  return tuned_file_text(kKind, machine, entries);
}

ReadAttentionTable read_attention_table(const std::string& path, const TuneMachine& machine) {
  ReadAttentionTable result;
  result.problem = read_tuned_file(path, kKind, machine, result.exists,
                                   [&](TunedEntry& e) { read_entry(e, result.table); });
  if (!result.problem.empty()) result.table = {};
  return result;
}

void merge_attention_table(const std::string& path, const TuneMachine& machine,
                           const AttentionTable& found) {
  ReadAttentionTable now;
  update_tuned_file(
      path,
      [&] {
        now = read_attention_table(path, machine);
        return now.problem;
      },
      [&] {
        for (const auto& [key, choice] : found.entries()) now.table.set(key, choice);
        return to_json(machine, now.table);
      });
}

}  // namespace saturate::kernels
