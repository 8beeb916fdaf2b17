// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "apps/commands.h"
#include "base/cache_folder.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/table.h"
#include "kernels/gemm/tune/tune_gemm.h"
#include "runtime/context.h"
#include "runtime/memory.h"

namespace saturate::apps {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::GemmKey;
using kernels::Transpose;

struct Shape {
  int64_t m, n, k;
};

// Cubes for f32; the matrix products of the models in the benchmarks for the 16-bit types.
std::vector<std::string> default_shapes(DType type) {
  if (type == DType::f32) {
    return {"512x512x512", "1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "8192x8192x8192"};
  }
  return {"2048x2048x2048",  "4096x4096x4096",  "8192x8192x8192", "16384x3072x1024",
          "16384x4096x1024", "16384x1024x4096", "32768x768x3072", "32768x3072x768",
          "32768x50304x768", "25088x512x2048",  "25088x2048x512", "25088x32000x512"};
}

Shape parse_shape(const std::string& text) {
  Shape s{};
  int used = 0;
  long long m = 0, n = 0, k = 0;
  if (std::sscanf(text.c_str(), "%lldx%lldx%lld%n", &m, &n, &k, &used) != 3 ||
      static_cast<size_t>(used) != text.size() || std::min({m, n, k}) < 1 ||
      std::max({m, n, k}) > (1 << 24)) {
    throw Error(
        Errc::invalid_argument, "tune",
        fmt::format("'{}' is no shape; give MxNxK with sizes from 1 to 16777216, for example "
                    "4096x4096x4096",
                    text));
  }
  s = {m, n, k};
  return s;
}

// The products a linear layer makes of y (m, n) = x (m, k) W^T (n, k): forward NT, gradient of its
// input NN, alone and added to another, gradient of its weights TN in fp32.
std::vector<GemmKey> training_keys(Shape s, DType type, bool tf32) {
  GemmKey forward{.ab_type = type,
                  .d_type = type,
                  .tb = Transpose::yes,
                  .tf32 = tf32,
                  .aligned = true,
                  .m = s.m,
                  .n = s.n,
                  .k = s.k};
  GemmKey input = forward, weight = forward;
  input.tb = weight.tb = Transpose::no;
  input.n = s.k, input.k = s.n;
  weight.ta = Transpose::yes;
  weight.d_type = DType::f32;
  weight.m = s.n, weight.n = s.k, weight.k = s.m;
  GemmKey input_added = input;  // where several layers read one input
  input_added.accumulates = true;
  return {forward, input, input_added, weight};
}

void add_keys(const TuneOptions& o, Shape s, DType type, std::vector<GemmKey>& keys) {
  std::vector<GemmKey> found;
  if (o.layout == "training") {
    found = training_keys(s, type, o.tf32);
  } else {
    found.push_back({.ab_type = type,
                     .d_type = type,
                     .ta = o.layout[0] == 'T' ? Transpose::yes : Transpose::no,
                     .tb = o.layout[1] == 'T' ? Transpose::yes : Transpose::no,
                     .tf32 = o.tf32,
                     .m = s.m,
                     .n = s.n,
                     .k = s.k});
  }
  for (GemmKey& key : found) {
    const int64_t unit = 16 / static_cast<int64_t>(size_of(type));
    const int64_t row_a = key.ta == Transpose::yes ? key.m : key.k;
    const int64_t row_b = key.tb == Transpose::yes ? key.k : key.n;
    key.aligned = row_a % unit == 0 && row_b % unit == 0 && key.n % unit == 0;
    key.bias =
        o.bias && key.ta == Transpose::no && (key.tb == Transpose::yes || o.layout != "training");
    keys.push_back(key);
  }
}

DType type_of(const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(t)) return t;
  }
  throw Error(Errc::invalid_argument, "tune", fmt::format("no type '{}': f32, bf16 or f16", name));
}

// Every parameter set with the reason of its refusal, then how many each rule refused.
void explain(const kernels::ChipLimits& chip, const std::string& where) {
  std::map<std::string, int> rules;
  int valid = 0;
  for (const kernels::TileSet& t : kernels::tile_grid()) {
    const std::string why = kernels::tile_refusal(t, chip);
    fmt::print("{}: {}\n", text_of(t), why.empty() ? "valid" : why);
    if (why.empty()) {
      ++valid;
      continue;
    }
    std::string rule;  // its numbers as N
    for (const char c : why) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit) rule += c;
      if (digit && !rule.ends_with('N')) rule += 'N';
    }
    ++rules[rule];
  }
  fmt::print("\n{} of {} parameter sets are valid on {}\n", valid, kernels::tile_grid().size(),
             where);
  for (const auto& [rule, count] : rules) fmt::print("  {:6} refused: {}\n", count, rule);
}

// Progress over all problems: each counts the same, compiling and measuring half each.
class Progress {
 public:
  explicit Progress(size_t problems) : problems_(problems) {}
  void start(size_t index, const GemmKey& key) {
    index_ = index;
    name_ = text_of(key);
  }
  void show(std::string_view phase, size_t done, size_t total) {
    const Clock::time_point now = Clock::now();
    // One line that changes on a terminal, a line every five seconds in a file.
    if (now - shown_ < std::chrono::milliseconds(terminal_ ? 200 : 5000)) return;
    shown_ = now;
    const double part = total ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    const double here =
        phase == "measuring" ? 0.5 + 0.5 * part : (phase == "checking" ? 0.45 : 0.4 * part);
    const double all = (static_cast<double>(index_) + here) / static_cast<double>(problems_);
    const double elapsed = std::chrono::duration<double>(now - begin_).count();
    const std::string left =
        all > 0.02 ? format_duration(elapsed * (1 - all) / all) + " left" : "estimating";
    const std::string line = fmt::format("[{}/{}] {}: {} {}/{}, {}", index_ + 1, problems_, name_,
                                         phase, done, total, left);
    if (!terminal_) return log_info(line);
    fmt::print(stderr, "\r\x1b[2K{}", line);
  }

  // Before anything else is printed.
  void end_line() const {
    if (terminal_) fmt::print(stderr, "\r\x1b[2K");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  size_t problems_, index_ = 0;
  std::string name_;
  Clock::time_point begin_ = Clock::now(), shown_{};
};

double tflops(const GemmKey& k, double ms) {
  return 2e-9 * static_cast<double>(k.m) * static_cast<double>(k.n) * static_cast<double>(k.k) / ms;
}

// One line a problem: what won, what runs without the table, and how good the model's own pick was.
std::string result_json(const kernels::TuneResult& r) {
  double model_best = -1, model_ms = 0, best_modelled = 0;
  std::string model_pick;
  for (const kernels::TuneRow& row : r.rows) {
    if (row.predicted_ms < 0) continue;
    if (best_modelled == 0 || row.ms < best_modelled) best_modelled = row.ms;
    if (model_best >= 0 && row.predicted_ms >= model_best) continue;
    model_best = row.predicted_ms;
    model_ms = row.ms;
    model_pick = row.config;
  }
  std::string modelled;
  if (model_best >= 0) {
    modelled = fmt::format(R"(,"tiled_best_ms":{:.5f},"model_pick":"{}","model_pick_ms":{:.5f})",
                           best_modelled, model_pick, model_ms);
  }
  return fmt::format(
      R"({{"what":"tune gemm","problem":"{}","impl":"{}","config":"{}","ms":{:.5f},"tflops":{:.2f},)"
      R"("default_ms":{:.5f},"gain":{:.3f},"candidates":{},"refused":{},"compile_s":{:.1f},)"
      R"("measure_s":{:.1f}{}}})",
      text_of(r.key), r.choice.impl, r.choice.config, r.choice.ms, tflops(r.key, r.choice.ms),
      r.choice.default_ms, r.choice.default_ms / r.choice.ms, r.rows.size(), r.refused.size(),
      r.compile_seconds, r.measure_seconds, modelled);
}

}  // namespace

int run_tune(const TuneOptions& o) {
  if (o.what == "attention") return run_tune_attention(o);
  const DType type = type_of(o.dtype);
  std::vector<GemmKey> keys;
  const std::vector<std::string> shapes = o.shapes.empty() ? default_shapes(type) : o.shapes;
  for (const std::string& s : shapes) add_keys(o, parse_shape(s), type, keys);
  if (o.explain && cuda_device_count() == 0) {
    explain({}, "an H200 (there is no GPU here)");
    return 0;
  }
  const Device device = parse_device(o.device);
  if (!device.is_cuda()) {
    throw Error(Errc::unsupported, "tune",
                "only GPUs are tuned and none is used here; `saturate info` says what was found, "
                "--explain lists the parameter sets without one");
  }
  use_device(device);
  const kernels::TuneMachine machine = kernels::tune_machine(device);
  if (o.explain) {
    explain(kernels::chip_limits(device), machine.gpu);
    return 0;
  }
  if (const Fit fit = kernels::nvrtc_fits(); !fit) {
    log_warning(fmt::format("[tune] only what is compiled already is measured: {}", fit.reason));
  }
  if (o.output.empty() && user_cache_folder().empty()) {
    throw Error(Errc::invalid_argument, "tune",
                "no folder for the table: set SATURATE_CACHE or HOME, or give --output FILE");
  }
  const std::string path =
      o.output.empty() ? kernels::gemm_table_path(user_cache_folder(), machine) : o.output;
  const Stream stream(device);
  const Buffer workspace(device, kWorkspaceBytes);
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  const auto search = o.exhaustive ? kernels::Search::exhaustive : kernels::Search::quick;
  Progress progress(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    progress.start(i, keys[i]);
    const auto show = [&](std::string_view phase, size_t done, size_t total) {
      progress.show(phase, done, total);
    };
    kernels::TuneResult result;
    try {
      result = kernels::tune_gemm(ctx, stream, keys[i], search, show);
    } catch (const Error& e) {
      if (e.code() != Errc::out_of_memory) throw;
      log_warning(fmt::format("[tune] {} is passed over: {}", text_of(keys[i]), e.what()));
      continue;
    }
    progress.end_line();
    kernels::GemmTable found;
    found.set(keys[i], result.choice);
    kernels::merge_gemm_table(path, machine,
                              found);  // at once: an interrupt loses one problem only
    fmt::print("{}\n", result_json(result));
    std::fflush(stdout);
    if (!o.all) continue;
    for (const kernels::TuneRow& r : result.rows) {
      fmt::print(
          R"({{"what":"tune gemm candidate","problem":"{}","impl":"{}","config":"{}","ms":{:.5f},)"
          R"("samples":{},"predicted_ms":{:.5f}}})"
          "\n",
          text_of(keys[i]), r.impl, r.config, r.ms, r.samples, r.predicted_ms);
    }
    for (const kernels::TuneRefusal& r : result.refused) {
      fmt::print(
          R"({{"what":"tune gemm refusal","problem":"{}","impl":"{}","config":"{}","reason":"{}"}})"
          "\n",
          text_of(keys[i]), r.impl, r.config, r.reason);
    }
  }
  log_info(fmt::format("{} {} in {}; training and `saturate bench` use them", keys.size(),
                       keys.size() == 1 ? "choice" : "choices", path));
  return 0;
}

}  // namespace saturate::apps
