// SPDX-License-Identifier: Apache-2.0
#include "apps/attention_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"

namespace saturate::apps {
namespace {

std::optional<DType> type_called(const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(t)) return t;
  }
  return std::nullopt;
}

std::optional<AttentionPeer> peer_of(const nlohmann::json& line) {
  if (!line.is_object() || line.value("what", "") != "attention") return std::nullopt;
  const std::optional<DType> type = type_called(line.value("type", ""));
  AttentionPeer p{.name = line.value("implementation", "")};
  if (!type || p.name.empty() || p.name == "saturate") return std::nullopt;
  p.type = *type;
  p.batch = line.at("batch"), p.heads = line.at("heads"), p.length = line.at("length");
  p.head_size = line.at("head_size"), p.causal = line.value("causal", false);
  p.forward_ms = line.at("forward_ms");
  if (const double both = line.value("forward_and_backward_ms", 0.0); both > p.forward_ms)
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
      if (!text.empty()) p = peer_of(nlohmann::json::parse(text));
    } catch (const nlohmann::json::exception& e) {
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
