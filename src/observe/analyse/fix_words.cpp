// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fix_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "observe/analyse/fix_bounds.h"
#include "observe/analyse/kernel_words.h"
#include "observe/analyse/names.h"
#include "observe/analyse/stack_words.h"

namespace saturate::observe {
namespace {

// The calls or spans that make up most of some idle leaves, longest first.
std::string main_names(const DeviceAnalysis& d, std::initializer_list<Leaf> leaves) {
  std::map<std::string, NamedTime> sums;
  for (const auto& [key, time] : d.evidence) {
    if (std::find(leaves.begin(), leaves.end(), key.first) == leaves.end() || key.second.empty())
      continue;
    sums[key.second].ns += time.ns;
    sums[key.second].count += time.count;
  }
  std::vector<std::pair<std::string, NamedTime>> sorted(sums.begin(), sums.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(2, sorted.size()); ++i)
    text += fmt::format("{}{} ({} gaps)", i > 0 ? ", " : "", sorted[i].first.substr(0, 60),
                        sorted[i].second.count);
  return text.empty() ? "" : "; in " + text;
}

double share(const DeviceAnalysis& d, std::initializer_list<Leaf> leaves) {
  int64_t ns = 0;
  for (const Leaf leaf : leaves) ns += d.budget[leaf];
  const int64_t total = d.budget.total_ns();
  return total > 0 ? 100.0 * static_cast<double>(ns) / static_cast<double>(total) : 0;
}

// The share of the time in which the device waits for host memory to be pinned or unpinned.
double pinning(const DeviceAnalysis& d) {
  int64_t ns = 0;
  for (const auto& [key, time] : d.evidence)
    if (key.first == Leaf::allocator && pins_memory(key.second)) ns += time.ns;
  return static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
}

// Of the time, what the host's lines show it to spend in all leaves together.
double host_share(const DeviceAnalysis& d, const std::array<double, kLeaves>& ns) {
  const double sum = std::accumulate(ns.begin(), ns.end(), 0.0);
  return sum / static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
}

std::string copies_in(const DeviceAnalysis& d) {
  int64_t bytes = 0, count = 0, small = 0, pageable = 0, ns = 0;
  for (const auto& [key, c] : d.copies) {
    if (key.first != CopyKind::host_to_device) continue;
    bytes += c.bytes;
    count += c.count;
    small += c.small;
    ns += c.total_ns;
    if (key.second == HostMemory::pageable) pageable += c.count;
  }
  if (count == 0) return "no copies to the device";
  const double rate = ns > 0 ? static_cast<double>(bytes) / static_cast<double>(ns) : 0;
  return fmt::format(
      "{} copies to the device, {} each on average, {:.1f} GB/s, {} of them pageable{}", count,
      format_bytes(static_cast<double>(bytes) / static_cast<double>(count)), rate, pageable,
      small * 2 > count ? fmt::format(", {} below 64 KiB: join them", small) : "");
}

}  // namespace

void add_words(Fix& f, const Analysis& analysis, const ClockHold& clock,
               const EditSettings& settings, const Growth& growth) {
  if (analysis.devices.empty()) return;
  const DeviceAnalysis& d = analysis.devices.front();
  const bool torch = analysis.framework == "PyTorch", jax = analysis.framework == "JAX";
  const double busy =
      share(d, {}) + (d.budget.total_ns() > 0 ? 100.0 * static_cast<double>(d.budget.busy_ns()) /
                                                    static_cast<double>(d.budget.total_ns())
                                              : 0);
  const std::string unfilled =
      fmt::format("the device is busy {:.1f}% of the time; {:.1f}% in kernels too small to fill it",
                  busy, share(d, {Leaf::tiny, Leaf::low_grid}));
  const std::string host_pace =
      settings.crowded
          ? "cores or locks are short: the rest of the host takes at least half of what "
            "its fastest tenth takes"
          : "the rest of the host goes at the pace of its fastest tenth, no faster";
  switch (f.kind) {
    case FixKind::graphs: {
      const double gaps =
          share(d, {Leaf::launch, Leaf::launch_latency, Leaf::host_code, Leaf::after_sync});
      f.evidence = fmt::format(
                       "{:.1f}% of the time the device waits for launches or for the host code "
                       "around them; {} launches",
                       gaps, d.launches) +
                   main_names(d, {Leaf::launch});
      if (!f.ceiling && settings.looped > kLooped)
        f.evidence += fmt::format("; {:.0f}% of the operations only repeat the same few short ones",
                                  100 * settings.looped);
      if (f.speedup < kWorth && busy > 90)
        f.evidence = fmt::format("will not help: the device is busy {:.1f}% of the time", busy);
      f.action =
          torch ? "torch.compile(model, mode=\"reduce-overhead\"), or capture the step with "
                  "torch.cuda.graph"
          : jax ? "put the whole step under one jax.jit; a loop of short steps (lax.scan, "
                  "fori_loop): unroll=8 or more, or lax.associative_scan"
                : "capture the step: cudaStreamBeginCapture ... EndCapture, then cudaGraphLaunch";
      if (!f.ceiling && settings.looped > kLooped)
        f.action = fmt::format(
            "compute for all elements, rows or images at once what these few "
            "operations compute for one after the other ({}); where each needs "
            "the one before: {}",
            torch ? "one index for all rows, a batched call, torch.vmap"
            : jax ? "jax.vmap, inside jit"
                  : "one kernel for all",
            f.action);
      f.caveat =
          "needs fixed shapes and no synchronisation inside the step; host code longer than 1 ms "
          "at a time stays";
      f.assumes =
          f.ceiling ? "kernels take as long as now and follow each other without a gap"
          : settings.looped > kLooped
              ? "kernels take as long as now; at most, of operations that repeat the same few only "
                "the first are left"
              : "kernels take as long as now; at most a host that keeps ahead of them, and what "
                "compilers and operations on lists of tensors do besides: short ones are joined";
      if (!f.ceiling && settings.of_model > 0)
        f.assumes += fmt::format(
            "; {:.0f}% of the time is the model's and its backward pass's, "
            "which is all that torch.compile(model) takes",
            100 * settings.of_model);
      else if (!f.ceiling && settings.of_line > 0)
        f.assumes += fmt::format(
            "; at least half of what the line that issues most keeps the device waiting, {:.0f}% "
            "of the time",
            100 * settings.of_line);
      break;
    }
    case FixKind::host_work:
      f.evidence = fmt::format("{:.1f}% of the time the device waits for host code",
                               share(d, {Leaf::host_code, Leaf::after_sync}));
      if (const double sleeps = share(d, {Leaf::blocked, Leaf::runnable}); sleeps >= 1)
        f.evidence += fmt::format(", {:.1f}% for a thread that sleeps or has no core", sleeps);
      for (const Leaf leaf :
           {Leaf::file_write, Leaf::file_read, Leaf::network, Leaf::lock, Leaf::gil})
        if (const double waits = share(d, {leaf}); waits >= 1)
          f.evidence +=
              fmt::format(", {:.1f}% for one that waits: {}", waits, leaf_info(leaf).title) +
              main_names(d, {leaf});
      if (const double fed = 100 * settings.fed * bulk_out_share(d); fed >= 1)
        f.evidence += fmt::format(", {:.1f}% for the copies that bring it its data", fed);
      f.action = torch ? "profile the Python between the launches (py-spy, with_stack=True) and "
                         "move it to workers or out of the loop"
                       : "profile the host code between the launches and move it to another thread "
                         "or out of the loop";
      f.caveat = "counts stretches above 0.1 ms only";
      f.assumes = f.ceiling
                      ? host_pace
                      : "between a third of these stretches and all of them with what goes along: "
                        "a host that keeps ahead of the device, its fastest tenth's pace, or "
                        "a run whose host is slower by two thirds, as runs of one program are";
      break;
    case FixKind::syncs:
      f.evidence =
          fmt::format("{:.1f}% of the time the device is idle after a wait had emptied its queue",
                      share(d, {Leaf::sync, Leaf::after_sync, Leaf::blocking_copy})) +
          main_names(d, {Leaf::sync, Leaf::blocking_copy});
      if (const double reading = 100 * host_share(d, d.host_lines.reading_ns); reading >= 1)
        f.evidence += fmt::format("; {:.1f}% it waits until arrays are read", reading);
      if (f.speedup >= kWorth)
        f.evidence += fmt::format("; a host that ran ahead instead would hide {:.0f}% of the time",
                                  100 * removed(f.speedup));
      f.action = torch ? "drop .item(), .cpu(), print(loss) and torch.cuda.synchronize() from the "
                         "step; read the loss every N steps"
                       : "drop the synchronisations from the step; read results every N steps";
      f.caveat = "the program must not need the value at once";
      f.assumes = f.ceiling ? "with each wait go at most the call, its copy and 5 us of host code"
                            : "values are read at several places of a step: between half of the "
                              "waits and a host that keeps ahead of the device, without the "
                              "kernels that bring the values forth";
      break;
    case FixKind::loader:
      f.evidence =
          fmt::format("{:.1f}% of the time the device waits for data", share(d, {Leaf::loader})) +
          main_names(d, {Leaf::loader});
      if (const double made = 100 * host_share(d, d.host_lines.making_ns); made >= 1)
        f.evidence = (share(d, {Leaf::loader}) < 0.1 ? "" : f.evidence + "; ") +
                     fmt::format(
                         "{:.1f}% of the time the batch is made where the loop asks for "
                         "it, in the thread that launches",
                         made);
      else if (settings.prepared >= 0.01)
        f.evidence += fmt::format(
            "; {:.1f}% its issuing thread makes data itself, in long stretches that end in a copy "
            "to the device",
            100 * settings.prepared);
      if (const auto& lines = d.host_lines.lines;
          !lines.empty() && lines.front().remark.starts_with(kSamplerRuns))
        f.action =
            "let the sampler draw what a batch needs (with replacement, or by sums of the weights "
            "that are formed once), or draw the order of the next epoch in a thread of its own: "
            "num_workers leaves it where it is";
      else
        f.action = torch ? "DataLoader(num_workers=N, persistent_workers=True, "
                           "prefetch_factor=4); if the workers are saturated, cheapen the "
                           "transforms"
                         : "prepare batches in other threads or processes, ahead of the step";
      f.caveat = "as long as workers times cores and storage keep up";
      f.assumes =
          f.ceiling
              ? host_pace
              : "batches that are at least a quarter cheaper, at most there in time; " + host_pace;
      break;
    case FixKind::copies:
      f.evidence = fmt::format(
                       "{:.1f}% of the time is exposed copies to the device, the calls that wait "
                       "for them or what lies between them; ",
                       100 * f.share) +
                   copies_in(d);
      if (const double pins = 100 * pinning(d); pins >= 1)
        f.evidence += fmt::format("; {:.1f}% is pinning host memory in the step", pins);
      f.action =
          jax ? "jax.device_put once for arrays of NumPy that stay the same, one batch ahead for "
                "those that change"
          : torch
              ? "DataLoader(pin_memory=True) and tensor.to(device, non_blocking=True), one batch "
                "ahead on a side stream"
              : "cudaMallocHost buffers and cudaMemcpyAsync on a second stream, one batch ahead";
      f.caveat = "needs two buffers";
      f.assumes = fmt::format(
          "pinned copies at {:.0f} GB/s to the device and {:.0f} back, {}",
          settings.in_bytes_per_ns, settings.out_bytes_per_ns,
          analysis.copy_rates.known() ? "as measured on this machine" : "what the link allows");
      break;
    case FixKind::allocator:
      f.evidence =
          fmt::format("{:.1f}% of the time the device waits for allocation", 100 * f.share) +
          main_names(d, {Leaf::allocator});
      f.action =
          torch ? "drop torch.cuda.empty_cache(); "
                  "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; keep shapes equal"
                : "allocate once before the loop, or use cudaMallocAsync with a release threshold";
      f.caveat =
          "an estimate, not a ceiling: what the driver takes differs from run to run, and kernels "
          "beside a release may be slower too";
      f.assumes =
          "the driver takes from two fifths less to a half more, kernels up to a ninth less";
      break;
    case FixKind::code_load:
      f.evidence =
          fmt::format("{:.1f}% of the time the device waits for code to be loaded or compiled",
                      100 * f.share) +
          main_names(d, {Leaf::code_load});
      f.action =
          "warm up before measuring; CUDA_MODULE_LOADING=EAGER; keep shapes equal so that nothing "
          "is compiled again";
      if (!f.ceiling && host_share(d, d.host_lines.compiling_ns) < 0.01) {
        f.action =
            "find what is made anew in each step (a plan, a kernel), and keep it: a larger cache, "
            "equal shapes and constants";
        f.assumes =
            "between a third of what is loaded and all of it with the host's work around it, which "
            "may be what makes it";
      }
      if (host_share(d, d.host_lines.compiling_ns) < 0.01) break;
      f.action =
          torch ? "keep shapes equal (pad to one length or to few), or mark what varies: "
                  "torch.compile(dynamic=True), torch._dynamo.mark_dynamic; "
                  "TORCH_LOGS=recompiles says why"
          : jax ? "keep shapes and static arguments equal, and call jit once: a lambda or a local "
                  "function is a new one each time; "
                  "jax.config.update(\"jax_explain_cache_misses\", "
                  "True) says why; a cache on the disk (jax_compilation_cache_dir) for the start"
                : "keep shapes and constants equal so that nothing is compiled again";
      f.caveat =
          "what is compiled once, at the start of a long run, costs it less than this part of it";
      f.assumes = "what was compiled is there already";
      break;
    case FixKind::communication:
      f.evidence =
          fmt::format("{:.1f}% of the time is communication with nothing computed beside it",
                      share(d, {Leaf::communication}));
      f.action = torch ? "DDP: gradient_as_bucket_view=True and larger or smaller bucket_cap_mb; "
                         "FSDP: backward_prefetch and forward_prefetch"
                       : "issue collectives on their own stream while the backward pass runs";
      f.caveat =
          "waiting for a slower rank counts as communication here; compare the ranks' traces";
      break;
    case FixKind::precision: {
      if (f.unsure) {
        f.evidence =
            "the last products before the graphs of the steps were of fp32, without tensor cores; "
            "what these graphs hold does not show";
        f.action = jax ? "jax_default_matmul_precision left alone or \"tensorfloat32\"; "
                         "precision=\"highest\" only for the products that need it"
                       : "allow TF32 for the matrix products";
        f.caveat = "rounds inputs";
        f.assumes = fmt::format("the graphs are such products, and TF32 is {:.1f} times as fast",
                                settings.tensor_ratio);
        break;
      }
      const double matrix = share(d, {Leaf::matrix}), tensor = share(d, {Leaf::tensor});
      f.evidence =
          fmt::format("{:.1f}% of the time is matrix kernels without tensor cores, {:.1f}% with",
                      matrix, tensor);
      if (const double doubles = 100 * kernels_share(d, is_double); doubles >= 1)
        f.evidence += "; what computes in float64 stays as it is";
      f.action = torch ? "torch.set_float32_matmul_precision(\"high\"); "
                         "torch.backends.cudnn.allow_tf32 = True"
                       : "allow TF32 for the matrix products";
      f.caveat = "rounds inputs; kernels are classified by their names";
      f.assumes = fmt::format("TF32 is {:.1f} times as fast for them", settings.tensor_ratio);
      break;
    }
    case FixKind::mixed:
      f.evidence = f.unsure ? "the last products before the graphs of the steps were of fp32, in "
                              "TF32; what these graphs hold does not show"
                            : fmt::format(
                                  "{:.1f}% of the time is matrix kernels without tensor cores, "
                                  "{:.1f}% such with fp32 inputs (TF32), {:.1f}% attention in "
                                  "float32, {:.1f}% memory-bound ones",
                                  share(d, {Leaf::matrix}), 100 * kernels_share(d, is_tf32),
                                  100 * kernels_share(d, is_float32_attention),
                                  share(d, {Leaf::memory_bound}));
      f.action = torch ? "torch.autocast(\"cuda\", dtype=torch.bfloat16), for convolutions with "
                         "memory_format=torch.channels_last"
                       : "bf16 inputs for products, and for what lies between them";
      f.caveat = "rounds to 8 bits; weights and optimizer stay in fp32";
      f.assumes =
          f.unsure ? "the graphs are such products and what lies between them, at half of the bytes"
                   : fmt::format(
                         "at least half of what TF32 brings, at most products {:.1f} times as "
                         "fast, twice where they are TF32 already, attention in float32 {:.0f} "
                         "times, half the bytes between them and no conversions of layout",
                         settings.half_ratio, settings.attention_at_most);
      break;
    case FixKind::fusion:
      f.evidence = fmt::format("{:.1f}% of the time is memory-bound kernels and {:.1f}% tiny ones",
                               share(d, {Leaf::memory_bound}), share(d, {Leaf::tiny}));
      f.action = torch ? "torch.compile(model); a fused optimizer: AdamW(..., fused=True)"
                       : "fuse neighbouring elementwise kernels";
      f.caveat =
          "what lies between kernels has to be written where another kernel reads it, as the "
          "backward pass may; the capture does not show who reads what";
      f.assumes =
          "from one launch for each run of kernels that work element by element to one pass over "
          "memory for each run of any that memory bounds, in three quarters of what its longest "
          "kernel "
          "takes; no kernel of another kind is joined";
      break;
    case FixKind::transfers: {
      int64_t count = 0, small = 0;
      for (const auto& [key, c] : d.copies) {
        count += key.first == CopyKind::host_to_device ? c.count : 0;
        small += key.first == CopyKind::host_to_device ? c.small : 0;
      }
      f.evidence =
          fmt::format("{} of {} copies to the device carry less than 64 KiB", small, count);
      f.action = torch
                     ? "collate a batch into one tensor (or few) and move that; keep constants and "
                       "masks on the device"
                     : "pack what a step needs into one buffer and copy that";
      f.caveat = "counts runs of small copies without a kernel between them";
      break;
    }
    case FixKind::cores:
      f.evidence = fmt::format(
          "{:.1f}% of the time the device waits while its thread is ready but on no core",
          share(d, {Leaf::runnable}));
      f.action = torch
                     ? "fewer DataLoader workers and threads in them (OMP_NUM_THREADS=1), or more "
                       "cores; see the cgroup's CPU limit, and the cores that workers inherit"
                     : "fewer busy threads beside the one that launches, or more cores; see the "
                       "cgroup's CPU limit";
      f.caveat = "known only where the run was watched";
      f.assumes = host_pace;
      break;
    case FixKind::clocks:
      f.evidence = clock.evidence.empty() ? "no counters say that the clocks were held down"
                                          : clock.evidence;
      f.action = clock.heat ? "cool it: air flow, dust, fans, neighbours in the rack"
                 : clock.supply
                     ? "check the power supply and its cables: nvidia-smi -q -d PERFORMANCE"
                 : clock.settings
                     ? "take the fixed clocks away: sudo nvidia-smi -rgc; sudo nvidia-smi -rac"
                     : "compare the power limit with the board's default (nvidia-smi -q -d POWER); "
                       "raise it with sudo nvidia-smi -pl WATTS if it is lower";
      f.caveat =
          "memory, links and the host are taken as they are; at its default limit a chip that "
          "multiplies all the time is meant to be held by it";
      break;
    case FixKind::layout:
      f.evidence = fmt::format(
          "{:.1f}% of the time is kernels that only change the order of memory between others",
          100 * f.share);
      f.action = torch ? "model.to(memory_format=torch.channels_last), and the input as well"
                       : "keep tensors in the order that the kernels between them want";
      f.caveat = "layers without a kernel for that order convert again";
      f.assumes = "the other kernels take as long as now";
      break;
    case FixKind::recompute:
      f.evidence = fmt::format(
          "{:.1f}% of the time kernels of the forward pass run again, between kernels of the "
          "backward pass{}",
          100 * f.share, f.share > 0 ? ", as checkpointing makes them" : "");
      f.action = torch ? "no checkpointing (torch.utils.checkpoint, gradient_checkpointing), or of "
                         "fewer layers"
                       : "keep the activations, or those of some layers";
      f.caveat = "takes memory: a checkpointed layer keeps its input alone";
      f.assumes =
          "from half of these kernels to a quarter more: with those before the first kernel "
          "of the backward pass, and what runs beside them";
      break;
    case FixKind::weight_casts:
      f.evidence = fmt::format(
          "{:.1f}% of the time is kernels that only round to 16 bits{}",
          100 * kernels_share(d, is_rounding),
          f.speedup > 1 ? ", directly before products and again for each, where nothing trains: by "
                          "their numbers of elements at least those of weights, which stay as they "
                          "are"
                        : "");
      f.action =
          torch
              ? "round the weights once, when the model is loaded: model.to(torch.bfloat16), or of "
                "the layers with products; autocast keeps what it rounds within one of its blocks, "
                "and only of weights that require gradients"
              : "keep the weights in 16 bits";
      f.caveat =
          "which tensor a kernel reads does not show; norms and the like may want fp32 weights";
      f.assumes =
          "from half of those kernels to all that round just before a product and a host that "
          "keeps ahead of the device, and a tenth more";
      break;
    case FixKind::product_types: {
      const double attention = 100 * kernels_share(d, is_float32_attention),
                   whole = 100 * kernels_share(d, is_integer_product);
      const bool integers = whole > attention;
      f.evidence =
          integers ? fmt::format(
                         "{:.1f}% of the time is products of whole numbers, which no "
                         "library has fast kernels for",
                         whole)
                   : fmt::format(
                         "{:.1f}% of the time is attention with inputs of fp32{}", attention,
                         settings.half_products ? ", while most other products have 16 bits" : "");
      f.action =
          integers ? "keep the numbers as float32 for the product: sums of whole numbers below "
                     "2^24 are the same (of 0 to 2048 also in float16, with sums in float32)"
          : torch
              ? "give attention queries, keys and values in the type of the model: something "
                "before it is float32 (tables of a rotary embedding, a norm, a scale) and makes "
                "its inputs so; q.dtype at the call shows it"
              : "give attention its inputs in the type of the other products";
      f.caveat = integers ? "larger sums are rounded" : "rounds to 16 bits, as the model does";
      f.assumes =
          integers
              ? fmt::format("from {:.1f} times as fast to {:.1f}, tensor cores, and a tenth more",
                            settings.integer_ratio, settings.tensor_ratio)
              : fmt::format(
                    "kernels of 16 bits are {:.0f} to {:.0f} times as fast: their inputs of fp32 "
                    "take three products at half of the rate; a tenth more with the casts around",
                    settings.attention_surely, settings.attention_at_most);
      break;
    }
    case FixKind::device_copies:
      f.evidence = fmt::format(
          "{:.1f}% of the time large buffers are copied within the device, before kernels that "
          "write a part of them",
          100 * f.share);
      f.action = jax ? "donate the buffer to the function that changes it: jax.jit(f, "
                       "donate_argnums=...), and use what it returns alone"
                     : "change the buffer where it lies";
      if (settings.scattered) {
        f.evidence = fmt::format(
            "{:.1f}% of the time the weights of recurrent layers are copied "
            "into one block, in every call",
            100 * f.share);
        f.action =
            "module.flatten_parameters() once its weights have been assigned, moved or "
            "loaded";
        f.caveat = "weights that are views of other tensors stay where they are";
        f.assumes =
            "from half of these copies to all of them, with the fill before them and a host "
            "that keeps ahead of the device; and a tenth more";
        break;
      }
      f.caveat = "not where the old contents are still needed";
      f.assumes = "all of these copies go, and the host keeps ahead of the device";
      break;
    case FixKind::kernel_copies:
      f.evidence = fmt::format(
          "{:.1f}% of the time kernels only copy: to other strides, several tensors into one, or "
          "one several times",
          100 * kernels_share(d, is_copy));
      if (f.unsure) {
        f.evidence += fmt::format("; in {:.1f}% rows are picked by their indices",
                                  100 * kernels_share(d, is_gather));
        f.action =
            "indices in place of rows in another order; no copy of what stays as it is, such "
            "as what the beams of a text share, and none of what is picked again later";
        f.caveat = "brings nothing where rows have to be looked up: in tables, in lists of samples";
        f.assumes = "all of these copies and picks go, and the device's other work stays";
        break;
      }
      f.action =
          torch
              ? "read it where it lies: a view or expand() in place of repeat(), contiguous() and "
                "reshape() of expanded tensors; a buffer of full size that is written in place of "
                "torch.cat each step; scaled_dot_product_attention(enable_gqa=True) for heads "
                "that share keys"
              : "read it where it lies, or write it there at once in the order that is wanted";
      f.caveat = "a kernel that takes no such strides copies for itself; some copies have to be";
      f.assumes = fmt::format(
          "from half of these copies to all of them, with what reads them taking a {}th of its "
          "time "
          "where they repeat what it reads, and a tenth more",
          kMostRepeats);
      break;
    case FixKind::one_attention:
      f.evidence = fmt::format(
          "{:.1f}% of the time is softmax{}", 100 * kernels_share(d, is_softmax),
          f.speedup > 1 ? " between two products, with what scales, masks or drops beside it: an "
                          "attention that writes the weight of every pair and reads it again"
                        : "");
      f.action =
          torch
              ? "torch.nn.functional.scaled_dot_product_attention in place of matmul, softmax and "
                "matmul (attn_implementation=\"sdpa\" of transformers; "
                "nn.MultiheadAttention(..., need_weights=False)), in 16 bits"
              : "an attention kernel in place of two products and a softmax";
      f.caveat = "who wants the weights themselves needs them written";
      f.assumes =
          "from half of what lies between the products to all of it and three quarters of these, "
          "for "
          "a kernel of attention leaves out what a causal mask hides and does not write the "
          "weights; "
          "and a tenth more";
      break;
    case FixKind::float64:
      f.evidence = f.unsure ? "the last products before the graphs of the steps were of float64; "
                              "what these graphs hold does not show"
                            : fmt::format("{:.1f}% of the time is kernels that compute in float64",
                                          100 * kernels_share(d, is_double));
      f.action = fmt::format(
          "make it float32 where it begins: arrays of NumPy are float64 unless they are told{}; "
          "and "
          "let products take TF32",
          torch ? " (x.astype(np.float32), torch.from_numpy(x).float(); not "
                  "torch.set_default_dtype(torch.float64))"
          : jax ? " (x.astype(np.float32); or jax_enable_x64 off)"
                : "");
      f.caveat = "7 digits instead of 16; sums of very many may want more";
      f.assumes = fmt::format(
          "half of the bytes; products {:.1f} to {:.1f} times as fast, in TF32{}, and a tenth more",
          std::max(2.0, settings.double_ratio / 2), std::max(2.0, settings.double_ratio),
          kernels_share(d, is_double_by_code) < 0.01
              ? ""
              : fmt::format(
                    "; 2.0 to {:.1f} times what its code alone tells, for arithmetic may bound it",
                    std::max(2.0, settings.double_ratio)));
      break;
    case FixKind::transforms:
      f.evidence = fmt::format(
          "{:.1f}% of the time is Fourier transforms whose length has a large prime factor: they "
          "take a detour by longer ones (Bluestein's)",
          100 * kernels_share(d, is_detour_transform));
      f.action =
          "pad with zeros to a length of small factors (2, 3, 5, 7): scipy.fft.next_fast_len() or "
          "a "
          "power of two";
      f.caveat = "a padded transform has other frequencies; a convolution stays the same";
      f.assumes = "these kernels take from three quarters of their time to none of it";
      break;
    case FixKind::sorts:
      f.evidence =
          fmt::format("{:.1f}% of the time is sorting, or merging what a sort brought together",
                      100 * kernels_share(d, is_sort));
      f.action =
          torch
              ? "keep what comes out of it: a sparse matrix in rows (to_sparse_csr()) or coalesced "
                "once, torch.unique and argsort before the loop; topk for a few of many; randint "
                "in place of randperm(n)[:k]; an embedding's gradient sorts its indices"
          : jax ? "draw with replacement (jax.random.randint, choice(replace=True)) in place of "
                  "permutation(n)[:k]; lax.top_k for a few of many; sort once before the loop"
                : "keep what comes out of it, pick a few of many without a full sort, draw with "
                  "replacement in place of permuting";
      f.caveat = "an order that is new in each step has to be made";
      f.assumes =
          "these kernels take from three quarters of their time to none of it, and a tenth more";
      break;
    case FixKind::slow_kernels: {
      SlowWords words = slow_words(d);
      f.evidence = std::move(words.evidence);
      f.action = std::move(words.action);
      f.caveat = std::move(words.caveat);
      f.assumes = "these kernels take from half of their time to none of it, and a tenth more";
      break;
    }
    case FixKind::fewer_bytes:
      f.evidence = copies_in(d);
      f.action = torch ? "send what was read: pictures as uint8, ids as int32 or int16, numbers as "
                         "bfloat16, and convert on the device (.to(device).float().div_(255)); "
                         "leave out what the step does not use"
                       : "send the smallest type that holds the values, and convert on the device";
      f.caveat = "brings nothing where the bytes are what the step needs";
      f.assumes = "a quarter of the bytes, pinned and beside the computation";
      break;
    case FixKind::attention: {
      const double part = f.share;
      f.evidence = fmt::format(
          "{:.1f}% of the time is attention in kernels that read a mask of numbers where they are "
          "given one, even one of zeros; with and without one they have the same names",
          100 * part);
      f.action = torch ? "attn_mask=None where nothing is masked, is_causal=True in place of a "
                         "triangular mask, nested tensors or variable lengths in place of padding"
                       : "no mask where nothing is masked, the kernel's own causal mode in place "
                         "of a triangular one";
      f.caveat = "brings nothing where no mask is passed: look at the call";
      f.assumes = fmt::format(
          "without a mask the kernels take at least half of what they take now, {:.2f}x; without "
          "a causal one at least a quarter",
          1 / (1 - part * (1 - 1 / settings.mask_ratio)));
      break;
    }
    case FixKind::micro_batches:
      f.evidence = fmt::format("the weights change after {} micro-batches; {}",
                               settings.micro_batches, unfilled);
      f.action = fmt::format(
          "batches {} times as large, and gradients added up over as many fewer (Trainer: "
          "per_device_train_batch_size and gradient_accumulation_steps)",
          settings.micro_batches);
      f.caveat =
          "memory must hold the activations of all; rows of several lengths may need more padding";
      f.assumes =
          "the host issues one of them alone; kernels take as long as all of them now, at most "
          "small ones as long as one's";
      break;
    case FixKind::growth:
      f.evidence = "steps do not grow";
      if (growth.found)
        f.evidence = fmt::format(
            "the step time grew {:.2f}x from the first to the last quarter: {} from {:.3g} to "
            "{:.3g} "
            "ms a step",
            analysis.steps.drift, leaf_info(growth.leaf).title, 1e-6 * growth.leaf_early_ns,
            1e-6 * growth.leaf_late_ns);
      f.action =
          is_busy(growth.leaf)
              ? "search for what the device gets more of: a history on the GPU, hooks that pile "
                "up, "
                "a graph kept alive by a loss that was not detached"
              : "search for what grows in the loop: a list that is walked or copied each step, a "
                "cache, hooks that pile up, losses kept with their graphs";
      f.caveat = "the longer the run, the more it brings";
      f.assumes = fmt::format(
          "from half of what a first quarter's step of {:.3g} ms brings to a first one of {:.3g}, "
          "in "
          "a run whose steps are as long as its last ones are now",
          1e-6 * growth.early_ns, 1e-6 * growth.first_ns);
      break;
    case FixKind::processes:
      f.evidence = unfilled;
      f.action =
          "nvidia-cuda-mps-control -d, then two processes on the GPU: several runs of a search, or "
          "ranks that share it";
      f.caveat =
          "gain in work per second of two processes together; each has a step no faster, memory "
          "for both must suffice, and so must the host's cores";
      f.assumes =
          "from kernels that share nothing to small ones (few blocks, or short) that find room "
          "beside others";
      break;
    case FixKind::batch:
      f.evidence = unfilled;
      f.action = torch ? "double the batch size of the DataLoader" : "double the batch size";
      f.caveat =
          "gain in samples per second, not in time per step; memory must suffice, and training "
          "changes";
      f.assumes = "from kernels that take twice as long to small ones that take as long as now";
      break;
  }
}

double bulk_out_share(const DeviceAnalysis& d) {
  int64_t all = 0, large = 0;
  for (const auto& [key, c] : d.copies) {
    if (key.first != CopyKind::device_to_host) continue;
    all += c.total_ns;
    large += c.total_ns - c.small_ns;
  }
  return all > 0 ? 0.01 * share(d, {Leaf::copy_out, Leaf::copy_out_pageable}) *
                       static_cast<double>(large) / static_cast<double>(all)
                 : 0;
}

double attributed_share(FixKind kind, const Analysis& analysis, const ClockHold& clock) {
  if (analysis.devices.empty()) return 0;
  const DeviceAnalysis& d = analysis.devices.front();
  const auto of = [&](std::initializer_list<Leaf> leaves) { return share(d, leaves) / 100; };
  const auto part = [&](const Budget& budget, std::initializer_list<Leaf> leaves) {
    int64_t ns = 0;
    for (const Leaf leaf : leaves) ns += budget[leaf];
    const int64_t total = d.budget.total_ns();
    return total > 0 ? static_cast<double>(ns) / static_cast<double>(total) : 0;
  };
  const auto without_copies = [&](std::initializer_list<Leaf> leaves) {
    return of(leaves) - part(d.between_copies, leaves);
  };
  const double reading = host_share(d, d.host_lines.reading_ns);
  switch (kind) {
    case FixKind::graphs:
      return without_copies({Leaf::launch, Leaf::launch_latency, Leaf::host_code, Leaf::blocked,
                             Leaf::file_read, Leaf::file_write, Leaf::network, Leaf::lock,
                             Leaf::gil, Leaf::runnable}) -
             part(d.long_host, {Leaf::host_code, Leaf::blocked, Leaf::file_read, Leaf::file_write,
                                Leaf::network, Leaf::lock, Leaf::gil, Leaf::runnable}) -
             part(d.after_wait, {Leaf::launch, Leaf::launch_latency}) - reading;
    case FixKind::host_work:
      // Less what is the loader's or a compiler's, which lies in such stretches.
      return std::max(0.0, part(d.long_host, {Leaf::host_code, Leaf::after_sync, Leaf::blocked,
                                              Leaf::file_read, Leaf::file_write, Leaf::network,
                                              Leaf::lock, Leaf::gil, Leaf::runnable}) -
                               host_share(d, d.host_lines.making_ns) -
                               host_share(d, d.host_lines.compiling_ns) - reading);
    case FixKind::syncs:
      return reading + without_copies({Leaf::sync, Leaf::after_sync, Leaf::blocking_copy}) +
             part(d.after_wait, {Leaf::launch, Leaf::launch_latency});
    case FixKind::loader:
      return of({Leaf::loader}) + host_share(d, d.host_lines.making_ns) -
             d.host_lines.making_ns[static_cast<size_t>(Leaf::loader)] /
                 static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
    case FixKind::copies:
      return of({Leaf::copy_in, Leaf::copy_in_pageable, Leaf::blocking_copy}) + bulk_out_share(d) +
             pinning(d) +
             part(d.between_copies,
                  {Leaf::launch, Leaf::launch_latency, Leaf::host_code, Leaf::sync,
                   Leaf::after_sync, Leaf::other_call, Leaf::allocator});
    case FixKind::allocator:
      return of({Leaf::allocator}) - pinning(d);
    case FixKind::code_load:
      return of({Leaf::code_load}) + host_share(d, d.host_lines.compiling_ns) -
             d.host_lines.compiling_ns[static_cast<size_t>(Leaf::code_load)] /
                 static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
    case FixKind::communication:
      return of({Leaf::communication});
    case FixKind::precision:
      return of({Leaf::matrix});
    case FixKind::mixed:
      return of({Leaf::matrix}) + kernels_share(d, is_tf32) +
             kernels_share(d, is_float32_attention);
    case FixKind::fusion:
      return of({Leaf::memory_bound, Leaf::tiny});
    case FixKind::transfers:
      return part(d.between_copies,
                  {Leaf::launch, Leaf::launch_latency, Leaf::host_code, Leaf::sync,
                   Leaf::after_sync, Leaf::blocking_copy, Leaf::other_call});
    case FixKind::cores:
      return of({Leaf::runnable});
    case FixKind::clocks:
      return (1 - clock.speed) * of({Leaf::tensor, Leaf::matrix, Leaf::other_kernel, Leaf::graph,
                                     Leaf::low_grid, Leaf::tiny});
    case FixKind::layout:
      return kernels_share(d, is_layout_change);
    case FixKind::attention:
      return kernels_share(d, can_read_mask);
    case FixKind::micro_batches:
    case FixKind::growth:
    case FixKind::recompute:
    case FixKind::weight_casts:
    case FixKind::product_types:
    case FixKind::device_copies:
    case FixKind::kernel_copies:
    case FixKind::one_attention:
    case FixKind::float64:
    case FixKind::transforms:
    case FixKind::sorts:
    case FixKind::slow_kernels:
    case FixKind::fewer_bytes:
      return 0;
    case FixKind::processes:
    case FixKind::batch:
      return static_cast<double>(d.unfilled_ns) /
             static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
  }
  return 0;
}

}  // namespace saturate::observe
