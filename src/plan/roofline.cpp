// SPDX-License-Identifier: Apache-2.0
#include "plan/roofline.h"

#include <algorithm>
#include <array>
#include <set>

namespace saturate::plan {
namespace {

double bytes_of(const Tape& tape, Value v) { return static_cast<double>(tape.info(v).bytes()); }

// Its rows are taken from or added to a table that no one reads whole.
bool looks_up(std::string_view name) { return name.starts_with("embedding"); }

// Works on elements where they pass, so that another kernel could do it on its way.
bool joins(const Tape::Operation& o) {
  const std::string_view kind = class_of(o.name);
  return o.traits.flops == 0 && (kind == "activations" || kind == "bias gradients" ||
                                 kind == "cross-entropy" || kind == "other");
}

class Groups {
 public:
  explicit Groups(const Tape& tape) : tape_(tape), group_(tape.operations()) {
    const auto n = static_cast<int32_t>(group_.size());
    writer_.assign(static_cast<size_t>(tape.values()), -1);
    for (int32_t i = 0; i < n; ++i) {
      const Tape::Operation& o = tape.operation(static_cast<size_t>(i));
      int32_t last = -1;
      for (const Value v : o.reads)
        if (v) last = std::max(last, writer_[static_cast<size_t>(v.id)]);
      group_[static_cast<size_t>(i)] =
          joins(o) && last >= 0 ? group_[static_cast<size_t>(last)] : i;
      for (const Value v : o.writes)
        if (v) writer_[static_cast<size_t>(v.id)] = i;
    }
    read_by_.resize(writer_.size());
    for (int32_t i = 0; i < n; ++i)
      for (const Value v : tape.operation(static_cast<size_t>(i)).reads)
        if (v) read_by_[static_cast<size_t>(v.id)].insert(group_[static_cast<size_t>(i)]);
  }

  int32_t of(int32_t operation) const { return group_[static_cast<size_t>(operation)]; }

  // What crosses the border of the group for this operation and was not counted in `seen`.
  double crossing(int32_t operation, std::set<int32_t>& seen) const {
    const Tape::Operation& o = tape_.operation(static_cast<size_t>(operation));
    const int32_t group = of(operation);
    double bytes = 0;
    if (looks_up(o.name)) {
      const Value rows = std::string_view(o.name) == "embedding" ? o.writes[0] : o.reads[0];
      return 3 * bytes_of(tape_, rows);
    }
    for (const Value v : o.reads) {
      if (!v) continue;
      const int32_t from = writer_[static_cast<size_t>(v.id)];
      if ((from < 0 || of(from) != group) && seen.insert(v.id).second) bytes += bytes_of(tape_, v);
    }
    for (const Value v : o.writes) {
      if (!v) continue;
      const auto& readers = read_by_[static_cast<size_t>(v.id)];
      const bool leaves =
          tape_.info(v).external || tape_.info(v).kept ||
          std::ranges::any_of(readers, [&](int32_t reader) { return reader != group; });
      if (leaves && seen.insert(v.id).second) bytes += bytes_of(tape_, v);
    }
    return bytes;
  }

 private:
  const Tape& tape_;
  std::vector<int32_t> group_, writer_;     // by operation, by value
  std::vector<std::set<int32_t>> read_by_;  // groups, by value
};

}  // namespace

std::string_view class_of(std::string_view name) {
  struct Kind {
    std::string_view prefix, kind;
  };
  static constexpr std::array kKinds = {
      Kind{"linear_attention", "attention"},
      Kind{"attention", "attention"},
      Kind{"linear", "products"},
      Kind{"grouped_", "products"},
      Kind{"low_rank", "products"},
      Kind{"wide_linear", "products"},
      Kind{"residual_norm", "norms"},
      Kind{"activation", "activations"},
      Kind{"expert_activation", "activations"},
      Kind{"bias_gradient", "bias gradients"},
      Kind{"fp8_quantize", "rounding"},
      Kind{"block_quantize", "rounding"},
      Kind{"cross_entropy", "cross-entropy"},
      Kind{"loss_", "cross-entropy"},
      Kind{"embedding", "embeddings"},
      Kind{"position", "embeddings"},
      Kind{"optimizer", "optimizer"},
      Kind{"route_", "routing"},
      Kind{"sort_by", "routing"},
      Kind{"dispatch_rows", "routing"},
      Kind{"combine_rows", "routing"},
  };
  for (const Kind& k : kKinds)
    if (name.starts_with(k.prefix)) return k.kind;
  return "other";
}

std::vector<double> floors_us(const Machine& m, const Tape& tape) {
  const auto rate = m.compute.tflops.find(tape.compute_type());
  const double tflops =
      rate != m.compute.tflops.end() ? rate->second : m.compute.tflops.begin()->second;
  const Groups groups(tape);
  struct Work {
    double flops_us = 0, bytes = 0;
    std::set<int32_t> seen;
  };
  std::vector<Work> work(tape.operations());
  std::vector<double> floors;
  for (int32_t i = 0; i < static_cast<int32_t>(work.size()); ++i) {
    const Tape::Operation& o = tape.operation(static_cast<size_t>(i));
    if (o.traits.kind != OperationKind::compute) {
      floors.push_back(0);
      continue;
    }
    Work& w = work[static_cast<size_t>(groups.of(i))];
    const auto floor = [&] {
      return std::max(w.flops_us, w.bytes / (m.compute.bandwidth_gbs * 1e3));
    };
    const double before = floor();
    const double part = class_of(o.name) == "attention" ? m.compute.attention : 1.0;
    w.flops_us += o.traits.flops / (tflops * part * 1e6);
    w.bytes += groups.crossing(i, w.seen);
    floors.push_back(floor() - before);
  }
  return floors;
}

}  // namespace saturate::plan
