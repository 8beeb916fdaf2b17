// SPDX-License-Identifier: Apache-2.0
#include "observe/report/rooflines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/svg.h"
#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

constexpr double kWidth = 960, kHeight = 360, kLeft = 60, kBottom = 30;

// Logarithmic axes, whole powers of ten.
struct Axes {
  double x0, x1, y0, y1;  // exponents
  double x(double value) const {
    return kLeft + (kWidth - kLeft) * (std::log10(value) - x0) / (x1 - x0);
  }
  double y(double value) const { return kHeight * (y1 - std::log10(value)) / (y1 - y0); }
};

struct Dot {
  std::string title;
  double intensity, tflops, share_of_time;
  bool hollow;
};

std::string power_label(int exponent) {
  if (exponent >= 0 && exponent <= 4) return fmt::format("{:.0f}", std::pow(10, exponent));
  if (exponent < 0 && exponent >= -3) return fmt::format("{:g}", std::pow(10, exponent));
  return fmt::format("1e{}", exponent);
}

void draw_grid(Svg& svg, const Axes& a) {
  constexpr const char* kFaint = "stroke=\"#8884\"";
  for (int e = static_cast<int>(a.x0); e <= static_cast<int>(a.x1); ++e) {
    const double x = a.x(std::pow(10, e));
    svg.path(fmt::format("M{:.1f} 0V{}", x, kHeight), kFaint);
    svg.text(x, kHeight + 14, Svg::Anchor::middle, power_label(e));
  }
  for (int e = static_cast<int>(a.y0); e <= static_cast<int>(a.y1); ++e) {
    const double y = a.y(std::pow(10, e));
    svg.path(fmt::format("M{} {:.1f}H{}", kLeft, y, kWidth), kFaint);
    svg.text(kLeft - 6, y + 4, Svg::Anchor::end, power_label(e));
  }
}

void draw_roofs(Svg& svg, const DevicePeaks& p,
                const std::vector<std::pair<double, std::string>>& peaks, const Axes& a) {
  for (const auto& [tflops, name] : peaks) {
    const double ridge = tflops * 1e3 / p.memory, low = std::pow(10, a.x0), y = a.y(tflops);
    svg.path(fmt::format("M{:.1f} {:.1f}L{:.1f} {:.1f}H{}", a.x(low), a.y(low * p.memory * 1e-3),
                         a.x(ridge), y, kWidth),
             "fill=\"none\" stroke=\"#c0392b\"");
    svg.text(kWidth, y - 4, Svg::Anchor::end, fmt::format("{}: {:g} TFLOP/s", name, tflops));
  }
  const double middle = std::pow(10, a.x0 + 0.2);
  svg.text(a.x(middle) + 14, a.y(middle * p.memory * 1e-3) + 4, Svg::Anchor::start,
           fmt::format("{:g} GB/s", p.memory));
}

std::string chart(const DevicePeaks& p, const std::vector<Dot>& dots,
                  const std::vector<std::pair<double, std::string>>& peaks) {
  Axes a{-1, 3, 0, 0};
  double low = 1, high = 1;
  for (const Dot& d : dots) {
    a.x0 = std::min(a.x0, std::floor(std::log10(d.intensity)));
    a.x1 = std::max(a.x1, std::ceil(std::log10(d.intensity)));
    low = std::min(low, d.tflops);
    high = std::max(high, d.tflops);
  }
  for (const auto& [tflops, name] : peaks) high = std::max(high, 1.5 * tflops);
  a.x0 = std::max(a.x0, -6.0);
  a.x1 = std::min(a.x1, 9.0);
  a.y0 = std::max(std::floor(std::log10(low)), -6.0);
  a.y1 = std::min(std::ceil(std::log10(high)), 9.0);
  Svg svg(0, -12, kWidth + 20, kHeight + kBottom + 12, "roofline");
  draw_grid(svg, a);
  draw_roofs(svg, p, peaks, a);
  for (const Dot& d : dots)
    svg.circle(a.x(d.intensity), a.y(d.tflops), 3 + 22 * std::sqrt(d.share_of_time),
               fmt::format("fill=\"{}\" fill-opacity=\"0.7\" stroke=\"#1f5fa8\"",
                           d.hollow ? "none" : "#1f5fa8"),
               d.title);
  svg.text(kWidth, kHeight + 28, Svg::Anchor::end, "operations a byte");
  return svg.text(kLeft + 4, 12, Svg::Anchor::start, "TFLOP/s").str();
}

const char* unit_name(Precision precision, bool tensor) {
  switch (precision) {
    case Precision::f16:
      return "16-bit tensor cores";
    case Precision::f8:
      return "8-bit tensor cores";
    case Precision::f32:
      return tensor ? "TF32" : "fp32";
    default:
      return "fp32";
  }
}

}  // namespace

std::string kernel_speed(const KernelStat& kernel, const DevicePeaks* peaks) {
  const Roofline r = roofline(kernel, peaks);
  if (r.gb_per_s <= 0) return "";
  const bool product = kernel.precision != Precision::unknown;
  if (product && (r.compute_bound || r.share <= 0)) return fmt::format("{:.3g} TFLOP/s", r.tflops);
  return fmt::format("{:.0f} GB/s", r.gb_per_s);
}

std::string kernel_rate(const KernelStat& kernel, const DevicePeaks* peaks) {
  const std::string speed = kernel_speed(kernel, peaks);
  if (speed.empty()) return "-";
  const double share = roofline(kernel, peaks).share;
  return share > 0 ? fmt::format("{}, {:.0f}% of its roof", speed, 100 * share) : speed;
}

std::string roofline_note(const Diagnosis& g, const DeviceAnalysis& d) {
  if (d.kernels.empty()) return "";
  if (!g.analysis.shapes)
    return g.analysis.framework == "PyTorch" && g.analysis.source == kKinetoSource
               ? "no FLOP/s and rooflines: the trace has no shapes; record it with "
                 "record_shapes=True"
               : "no FLOP/s and rooflines of kernels: the capture has no shapes; a torch.profiler "
                 "trace with record_shapes=True has them";
  if (device_peaks(d.info.name) == nullptr)
    return "no shares of a roof: the peaks of this device are not known here";
  return "";
}

double copy_peak(CopyKind kind, const DevicePeaks* peaks) {
  if (peaks == nullptr) return 0;
  if (kind == CopyKind::host_to_device || kind == CopyKind::device_to_host) return peaks->link;
  return kind == CopyKind::device_to_device ? peaks->memory / 2 : 0;
}

std::optional<RunRate> run_rate(const Counters& counters) {
  std::optional<RunRate> best;
  for (const auto& [gpu, name] : counters.gpus) {
    const DevicePeaks* peaks = device_peaks(name);
    if (peaks == nullptr) continue;
    std::optional<double> tensor, memory;
    for (const Counter& c : counters.values) {
      if (c.gpu != gpu) continue;
      if (std::string_view(c.info->id) == "tensor_active") tensor = c.range.mean;
      if (std::string_view(c.info->id) == "dram_active") memory = c.range.mean;
    }
    if (!tensor || !memory) continue;
    const RunRate rate{name, *tensor / 100 * peaks->tensor16, *memory / 100 * peaks->memory};
    if (!best || rate.tflops > best->tflops) best = rate;
  }
  return best;
}

std::string roofline_html(const Diagnosis& g) {
  const DeviceAnalysis& d = g.device();
  const std::optional<RunRate> run = run_rate(g.counters);
  const DevicePeaks* peaks = device_peaks(d.info.name);
  if (peaks == nullptr && run) peaks = device_peaks(run->device);
  std::vector<Dot> dots;
  std::vector<std::pair<double, std::string>> roof;
  const auto add_roof = [&](double tflops, const std::string& name) {
    if (tflops <= 0) return;
    for (const auto& [other, seen] : roof)
      if (seen == name) return;
    roof.emplace_back(tflops, name);
  };
  int64_t sum = 0;
  for (const KernelStat& k : d.kernels) sum += k.total_ns;
  for (const KernelStat& k : d.kernels) {
    const Roofline r = roofline(k, peaks);
    if (peaks == nullptr || r.tflops <= 0 || r.gb_per_s <= 0) continue;
    const bool tensor = classify_kernel(k.name) == KernelClass::tensor;
    add_roof(peak_tflops(*peaks, k.precision, tensor), unit_name(k.precision, tensor));
    const double share =
        static_cast<double>(k.work_ns) / static_cast<double>(std::max<int64_t>(1, sum));
    dots.push_back({fmt::format("{}: {}, {:.1f}% of the kernels' time", k.name.substr(0, 120),
                                kernel_rate(k, peaks), 100 * share),
                    k.flops / k.bytes, r.tflops, share, false});
  }
  if (run && run->tflops > 0 && run->gb_per_s > 0 && peaks != nullptr) {
    add_roof(peaks->tensor16, unit_name(Precision::f16, true));
    dots.push_back({fmt::format("the whole run: at most {:.0f} TFLOP/s and {:.0f} GB/s",
                                run->tflops, run->gb_per_s),
                    run->tflops * 1e3 / run->gb_per_s, run->tflops, 0.2, true});
  }
  if (dots.empty() || peaks == nullptr) return "";
  std::string html = "<h2>Roofline</h2>\n" + chart(*peaks, dots, roof);
  html +=
      "<p class=\"note\">Each dot a kernel, its area the time. Operations and least bytes from the "
      "shapes of operators; above a roof caches helped.";
  if (run)
    html += fmt::format(
        " The ring is the whole run, from the activity of tensor cores and memory that the GPU "
        "counts: at most {:.0f} TFLOP/s of 16-bit products and {:.0f} GB/s, both upper estimates.",
        run->tflops, run->gb_per_s);
  return html + "</p>\n";
}

}  // namespace saturate::observe
