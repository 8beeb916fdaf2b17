// SPDX-License-Identifier: Apache-2.0
#include "apps/attention_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace saturate::apps {
namespace {

std::optional<DType> type_called(const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(t)) return t;
  }
  return std::nullopt;
}

std::optional<AttentionPeer> peer_of(const std::string& text) {
  const Json line = parse_json(text, "the line");
  JsonFields f(line, "bench", "the line");
  if (f.text_or("what", "") != "attention") return std::nullopt;
  const std::optional<DType> type = type_called(f.text_or("type", ""));
  AttentionPeer p{.name = f.text_or("implementation", "")};
  if (!type || p.name.empty() || p.name == "saturate") return std::nullopt;
  p.type = *type;
  p.batch = f.integer("batch"), p.heads = f.integer("heads"), p.length = f.integer("length");
  p.head_size = f.integer("head_size"), p.causal = f.boolean_or("causal", false);
  p.forward_ms = f.number("forward_ms");
  if (const double both = f.number_or("forward_and_backward_ms", 0); both > p.forward_ms)
    p.backward_ms = both - p.forward_ms;
  return p;
}

}  // namespace

std::vector<AttentionPeer> read_attention_peers(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw Error(Errc::io, "bench", "cannot read " + path + " (--peers)");
  std::vector<AttentionPeer> peers;
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    std::optional<AttentionPeer> p;
    try {
      if (!text.empty()) p = peer_of(text);
    } catch (const Error& e) {
      throw Error(Errc::invalid_argument, "bench",
                  fmt::format("{}:{}: not a line of bench/peers/pytorch_attention.py ({})", path,
                              number, e.what()));
    }
    if (!p || !(p->forward_ms > 0)) continue;
    const auto same = std::find_if(peers.begin(), peers.end(), [&](const AttentionPeer& x) {
      return x.name == p->name && x.type == p->type && x.batch == p->batch && x.heads == p->heads &&
             x.length == p->length && x.head_size == p->head_size && x.causal == p->causal;
    });
    same == peers.end() ? peers.push_back(*p) : void(*same = *p);
  }
  return peers;
}

}  // namespace saturate::apps
