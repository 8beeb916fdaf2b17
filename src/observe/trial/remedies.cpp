// SPDX-License-Identifier: Apache-2.0
#include "observe/trial/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace saturate::observe {
namespace {

constexpr double kShare = 0.05;            // of the time; less is not worth a run
constexpr double kFaultsPerS = 50'000;     // about 1 us each with the zeroing: 5% of a core
constexpr double kBusyCores = 0.85;        // of all cores: threads stand in each other's way
constexpr int64_t kLeastStaged = 1 << 20;  // bytes of a copy that pinned blocks are worth it for
constexpr int kMostWorkers = 8;

class Chooser {
 public:
  Chooser(const Diagnosis& g, const TrialHost& host) : g_(g), host_(host) {}

  std::vector<Remedy> choose() {
    precision();
    memory();
    loader();
    copies();
    threads();
    allocations_of_host();
    others();
    std::stable_sort(chosen_.begin(), chosen_.end(), [](const Remedy& a, const Remedy& b) {
      const auto gain = [](const Remedy& r) { return r.promise ? r.promise->speedup : 0; };
      return gain(a) > gain(b);
    });
    return std::move(chosen_);
  }

 private:
  // The fix when the report calls for it.
  const Fix* called(FixKind kind) const {
    const FixReport& r = g_.fixes;
    for (const auto* list : {&r.worth, &r.not_worth})
      for (const Fix& f : *list)
        if (f.kind == kind && ((r.numbers && list == &r.worth) || f.share >= kShare)) return &f;
    return nullptr;
  }
  const Fix* first_called(std::initializer_list<FixKind> kinds) const {
    for (const FixKind kind : kinds)
      if (const Fix* f = called(kind)) return f;
    return nullptr;
  }
  bool torch() const { return g_.analysis.framework == "PyTorch"; }
  double share(Leaf leaf) const {
    return static_cast<double>(g_.device().budget[leaf]) /
           static_cast<double>(std::max<int64_t>(1, g_.device().budget.total_ns()));
  }
  std::string set_to(const std::string& variable) const {
    const auto at = host_.environment.find(variable);
    return at == host_.environment.end() ? "" : at->second;
  }
  int ranks() const {
    return g_.ranks ? static_cast<int>(std::max<size_t>(1, g_.ranks->ranks.size())) : 1;
  }

  Remedy& add(const char* id, std::string title, std::string why, const Fix* promise) {
    Remedy& r = chosen_.emplace_back();
    r.id = id;
    r.title = std::move(title);
    r.why = std::move(why);
    if (promise != nullptr && g_.fixes.numbers) r.promise = *promise;
    return r;
  }

  void precision() {
    const Fix* f = called(FixKind::precision);
    if (f == nullptr || share(Leaf::matrix) <= 0 || !set_to("NVIDIA_TF32_OVERRIDE").empty()) return;
    Remedy& r = add("tf32", "TF32 for fp32 products", f->evidence, f);
    r.environment = {{"NVIDIA_TF32_OVERRIDE", "1"}};
    if (torch()) r.environment.emplace_back("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1");
    r.changes_results = true;
    r.caveat = "inputs of products keep 10 bits of their fraction instead of 23: compare the loss";
  }

  void memory() {
    const Fix* f = called(FixKind::allocator);
    if (f == nullptr || !torch()) return;
    Remedy& keep = add("keep_memory", "memory kept (no empty_cache)", f->evidence, f);
    keep.python = {"keep"};
    keep.keep = "take torch.cuda.empty_cache() out of the loop";
    keep.caveat = "what is kept is not there for other processes on the GPU";
    const std::string before = set_to("PYTORCH_CUDA_ALLOC_CONF");
    if (before.find("expandable_segments") != before.npos) return;
    // Against memory in pieces. What a program gives back itself is unmapped page by page, which
    // took longer than giving it back in one: no promise.
    Remedy& r = add("expandable_segments", "expandable segments", f->evidence, nullptr);
    r.caveat = "helps where memory is in pieces; slower where the program empties its cache itself";
    r.environment = {{"PYTORCH_CUDA_ALLOC_CONF",
                      (before.empty() ? "" : before + ",") + "expandable_segments:True"}};
  }

  bool pageable_copies() const {
    const auto at = g_.device().copies.find({CopyKind::host_to_device, HostMemory::pageable});
    return at != g_.device().copies.end() && at->second.count > 0 &&
           at->second.bytes / at->second.count >= kLeastStaged;
  }

  void loader() {
    const Fix* waits = called(FixKind::loader);
    const Fix* f = waits != nullptr ? waits : called(FixKind::host_work);
    if (f == nullptr || !torch()) return;
    const int workers = std::clamp(host_.cores / ranks() - 1, 2, kMostWorkers);
    Remedy& r = add("loader_workers", fmt::format("loaders with {} lasting workers", workers),
                    f->evidence, f);
    r.python = {"loader"};
    r.workers = workers;
    r.keep = fmt::format("DataLoader(..., num_workers={}, persistent_workers=True", workers);
    if (pageable_copies()) {
      r.python.push_back("pin");
      r.keep += ", pin_memory=True";
    }
    r.keep += ")";
    r.caveat =
        "samples keep their order; each worker draws random numbers of its own, and keeps its "
        "dataset from one epoch to the next";
  }

  void copies() {
    const Fix* f = called(FixKind::copies);
    if (f == nullptr || !pageable_copies() || host_.staging.empty()) return;
    Remedy& r = add("pinned_copies", "copies through pinned memory", f->evidence, f);
    r.staged = true;
    r.keep = torch() ? "DataLoader(pin_memory=True), or tensor.pin_memory(), then "
                       "tensor.to(device, non_blocking=True)"
                     : "cudaHostAlloc for what is copied, cudaMemcpyAsync on a stream beside";
    r.caveat =
        "tried by several threads that fill pinned blocks: the copy is faster, but not yet beside "
        "the computation, so that pinned memory of the program may bring more";
  }

  void threads() {
    const Fix* cores = called(FixKind::cores);
    const Fix* host = first_called({FixKind::loader, FixKind::host_work});
    double busy = 0;
    for (const Counter& c : g_.counters.values)
      if (std::string_view(c.info->id) == "cpu_cores") busy = c.range.mean / host_.cores;
    const std::string now = set_to("OMP_NUM_THREADS");
    int threads = 0;
    if ((cores != nullptr || (host != nullptr && busy >= kBusyCores)) && now != "1")
      threads = 1;
    else if (host != nullptr && !now.empty() && busy < kBusyCores &&
             std::atoi(now.c_str()) < host_.cores / ranks())
      threads = host_.cores / ranks();
    if (threads == 0) return;
    const Fix* f = cores != nullptr ? cores : host;
    Remedy& r = add("threads",
                    fmt::format("libraries with {} thread{} each", threads, threads > 1 ? "s" : ""),
                    fmt::format("{}; {:.0f}% of {} cores busy, OMP_NUM_THREADS {}", f->evidence,
                                100 * busy, host_.cores, now.empty() ? "not set" : "is " + now),
                    cores);
    for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                 "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS"})
      r.environment.emplace_back(variable, std::to_string(threads));
    r.caveat = "sums in another order: the last bits of results on the CPU may change";
  }

  void allocations_of_host() {
    const Fix* f = first_called({FixKind::host_work, FixKind::loader, FixKind::copies});
    if (f == nullptr || host_.faults_per_s < kFaultsPerS ||
        !set_to("MALLOC_TRIM_THRESHOLD_").empty())
      return;
    Remedy& r =
        add("malloc", "host memory kept by malloc",
            fmt::format("{:.0f} page faults a second: memory is given back to the kernel and "
                        "zeroed again",
                        host_.faults_per_s),
            nullptr);
    r.environment = {{"MALLOC_TRIM_THRESHOLD_", "17179869184"}, {"MALLOC_MMAP_MAX_", "0"}};
    r.caveat = "the process keeps host memory that it has freed";
  }

  void others() {
    if (const Fix* f = called(FixKind::code_load);
        f != nullptr && set_to("CUDA_MODULE_LOADING") != "EAGER") {
      Remedy& r = add("eager_loading", "code loaded at the start", f->evidence, f);
      r.environment = {{"CUDA_MODULE_LOADING", "EAGER"}};
      r.caveat = "the start takes longer, and code that is never used takes memory of the GPU";
    }
    const std::string connections = set_to("CUDA_DEVICE_MAX_CONNECTIONS");
    if (share(Leaf::dependency) >= kShare && std::atoi(connections.c_str()) < 32) {
      Remedy& r = add("connections", "32 connections to the GPU",
                      fmt::format("{:.1f}% of the time issued work waits for other work",
                                  100 * share(Leaf::dependency)),
                      nullptr);
      r.environment = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
      if (connections == "1")
        r.caveat = "it is 1 now, which some programs need for their order of kernels";
    }
    const Fix* host =
        first_called({FixKind::copies, FixKind::graphs, FixKind::host_work, FixKind::syncs});
    if (host != nullptr && !host_.near_cores.empty()) {
      const std::string list = core_list(host_.near_cores);
      Remedy& r =
          add("near_cores", "the cores beside the GPU",
              fmt::format("the process may run on cores of another memory node; those beside "
                          "the GPU are {}",
                          list),
              nullptr);
      r.cores = host_.near_cores;
      r.keep = "taskset -c " + list + " before the command, or numactl";
    }
  }

  const Diagnosis& g_;
  const TrialHost& host_;
  std::vector<Remedy> chosen_;
};

}  // namespace

std::vector<Remedy> choose_remedies(const Diagnosis& diagnosis, const TrialHost& host) {
  return Chooser(diagnosis, host).choose();
}

Remedy together(const std::vector<Remedy>& remedies) {
  Remedy all;
  all.id = "together";
  all.title = "all that gained, together";
  std::set<std::string> set;
  for (const Remedy& r : remedies) {
    for (const auto& [variable, value] : r.environment)
      if (set.insert(variable).second) all.environment.emplace_back(variable, value);
    all.python.insert(all.python.end(), r.python.begin(), r.python.end());
    all.workers = std::max(all.workers, r.workers);
    all.staged = all.staged || r.staged;
    if (all.cores.empty()) all.cores = r.cores;
    all.changes_results = all.changes_results || r.changes_results;
    all.why += (all.why.empty() ? "" : ", ") + r.title;
    if (!r.keep.empty()) all.keep += (all.keep.empty() ? "" : "; ") + r.keep;
  }
  return all;
}

std::string no_use(const Remedy& remedy, const std::vector<std::string>& notes) {
  if (remedy.python.empty()) return "";
  const auto noted = [&](std::string_view start) {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& n) { return n.starts_with(start); });
  };
  if (!noted("python"))
    return "no Python of the program reads PYTHONPATH (python -I or -E take it away)";
  for (const std::string& what : remedy.python) {
    if (what == "keep" && noted("empty_cache")) return "";
    if (what != "loader") continue;
    for (const std::string& n : notes) {
      int workers = 0;
      char kind[16] = "";
      if (std::sscanf(n.c_str(), "loader %d %15s", &workers, kind) == 2 &&
          (workers < remedy.workers || std::string_view(kind) == "new"))
        return "";
    }
  }
  if (remedy.python.front() == "keep") return "the program never calls torch.cuda.empty_cache()";
  return noted("loader iterable")
             ? "its loaders have an IterableDataset, of which each worker would "
               "give everything"
         : noted("loader") ? "its loaders have as many lasting workers already"
                           : "the program makes no torch DataLoader";
}

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int first = -1, last = -1;
    const int got = std::sscanf(text.substr(at, end - at).c_str(), "%d-%d", &first, &last);
    if (got == 1) last = first;
    for (int c = first; got > 0 && first >= 0 && c <= std::min(last, 1 << 16); ++c)
      cores.push_back(c);
    at = end + 1;
  }
  return cores;
}

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[i]);
    if (last > i) text += fmt::format("-{}", cores[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace saturate::observe
