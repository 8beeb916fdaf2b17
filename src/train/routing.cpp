// SPDX-License-Identifier: Apache-2.0
#include "train/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/experts/routing.h"

namespace saturate::train {
namespace {

using kernels::kRoutingBlocks;
using kernels::RoutingTotal;

int64_t width_of(const model::ModelConfig& c) { return c.experts + kernels::kRoutingTotals; }

// Of a layer, by its number among those of the encoder and then of the decoder.
std::string layer_name(const model::ModelConfig& c, int64_t layer) {
  return layer < c.encoder_layers ? fmt::format("encoder {}", layer)
                                  : fmt::format("decoder {}", layer - c.encoder_layers);
}

RoutingRow row_of(const model::ModelConfig& c, const std::vector<double>& sums) {
  const auto total = [&](RoutingTotal t) {
    return sums[static_cast<size_t>(c.experts + static_cast<int64_t>(t))];
  };
  const double tokens = total(RoutingTotal::tokens);
  double choices = 0;
  for (int64_t e = 0; e < c.experts; ++e) choices += sums[static_cast<size_t>(e)];
  RoutingRow row{
      .left_out = total(RoutingTotal::left_out) / tokens,
      .dropped = total(RoutingTotal::dropped) / choices,
      .entropy = total(RoutingTotal::entropy) / tokens / std::log(static_cast<double>(c.experts)),
      .balance = total(RoutingTotal::balance) / tokens,
      .z = total(RoutingTotal::z) / tokens};
  for (int64_t e = 0; e < c.experts; ++e)
    row.shares.push_back(sums[static_cast<size_t>(e)] / choices);
  return row;
}

}  // namespace

size_t RoutingTotals::bytes(const model::ModelConfig& c) noexcept {
  if (c.experts == 0) return 0;
  return static_cast<size_t>((c.encoder_layers + c.decoder_layers) * kRoutingBlocks * width_of(c)) *
         sizeof(double);
}

RoutingTotals::RoutingTotals(const model::ModelConfig& config, Device device, const Stream& stream)
    : config_(config) {
  if (config.experts == 0) return;
  counts_ = Buffer(device, bytes(config));
  fill_bytes(stream, counts_.data(), 0, counts_.bytes());
}

std::vector<RoutingRow> RoutingTotals::take(int64_t step, const Stream& stream,
                                            parallel::Communicator& ranks) {
  if (config_.experts == 0) return {};
  std::vector<double> counts(counts_.bytes() / sizeof(double));
  if (ranks.size() > 1) {
    const Context ctx{stream.device(), stream.native()};
    ranks.wait(ranks.start({.group = ranks.world(),
                            .dtype = DType::f64,
                            .count = static_cast<int64_t>(counts.size())},
                           nullptr, counts_.data(), ctx),
               ctx);
  }
  copy_to_host(stream, counts.data(), counts_.data(), counts_.bytes());
  fill_bytes(stream, counts_.data(), 0, counts_.bytes());
  stream.synchronize();
  const auto width = static_cast<size_t>(width_of(config_));
  std::vector<RoutingRow> rows;
  for (int64_t layer = 0; layer < config_.encoder_layers + config_.decoder_layers; ++layer) {
    std::vector<double> sums(width);
    const size_t first = static_cast<size_t>(layer * kRoutingBlocks) * width;
    for (size_t i = 0; i < static_cast<size_t>(kRoutingBlocks) * width; ++i)
      sums[i % width] += counts[first + i];
    if (sums[static_cast<size_t>(config_.experts)] == 0) continue;
    rows.push_back(row_of(config_, sums));
    rows.back().step = step;
    rows.back().layer = layer_name(config_, layer);
  }
  return rows;
}

std::string routing_text(const std::vector<RoutingRow>& rows) {
  const auto busiest = [](const RoutingRow& r) {
    return *std::ranges::max_element(r.shares) * static_cast<double>(r.shares.size());
  };
  const RoutingRow& worst = *std::ranges::max_element(
      rows, [&](const RoutingRow& a, const RoutingRow& b) { return busiest(a) < busiest(b); });
  double dropped = 0;
  for (const RoutingRow& r : rows) dropped += r.dropped / static_cast<double>(rows.size());
  return fmt::format("busiest expert {:.2f} times its share ({}), {:.1f}% dropped", busiest(worst),
                     worst.layer, 100 * dropped);
}

}  // namespace saturate::train
