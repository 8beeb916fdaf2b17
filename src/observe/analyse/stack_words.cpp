// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/stack_words.h"

#include <string_view>
#include <vector>

namespace saturate::observe {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// "torch/utils/data/dataloader.py", "threading.py", "train.py"
std::string short_path(const std::string& file) {
  if (const std::string_view in = path_in_packages(file); !in.empty()) return std::string(in);
  const size_t python = file.rfind("/lib/python3.");
  if (python != std::string::npos)
    if (const size_t at = file.find('/', python + 12); at != std::string::npos)
      return file.substr(at + 1);
  return file.substr(file.rfind('/') + 1);
}

CodePlace place(const Trace& trace, uint32_t stack) {
  const StackNode& n = trace.stacks[stack];
  return {trace.names[n.function], short_path(trace.names[n.file]), n.line, trace.names[n.text]};
}

}  // namespace

StackWords stack_words(const Trace& trace, uint32_t stack) {
  StackWords words;
  std::vector<uint32_t> frames;  // the innermost first
  std::vector<CodeOwner> owners;
  for (uint32_t f = stack; f != kNoStack; f = trace.stacks[f].caller) {
    frames.push_back(f);
    const std::string& file = trace.names[trace.stacks[f].file];
    owners.push_back(owner_of(file));
    // Further out lies what the parent of a forked process was in.
    if (file.ends_with("multiprocessing/process.py") &&
        trace.names[trace.stacks[f].function].ends_with("_bootstrap"))
      break;
  }
  if (frames.empty()) return words;
  if (frames.size() > 1 && is_native_file(trace.names[trace.stacks[frames[0]].file])) {
    words.native = place(trace, frames[0]);
    frames.erase(frames.begin());
    owners.erase(owners.begin());
  }
  const auto next = [&](size_t from, CodeOwner owner) {
    while (from < frames.size() && owners[from] != owner) ++from;
    return from;
  };
  size_t at = next(0, CodeOwner::program);
  if (at == frames.size()) at = next(0, CodeOwner::library);
  if (at == frames.size()) at = 0;
  words.at = place(trace, frames[at]);
  words.file = trace.stacks[frames[at]].file;
  words.node = frames[at];
  words.innermost = place(trace, frames[0]);
  const size_t caller = next(at + 1, CodeOwner::program);
  if (caller < frames.size()) words.caller = place(trace, frames[caller]);
  // The data loader of PyTorch: fetch() runs in the workers, or without any where batches are asked
  // for.
  bool fetches = false, worker = false, waits = false, samples = false;
  for (size_t i = 0; i < frames.size(); ++i) {
    const std::string& file = trace.names[trace.stacks[frames[i]].file];
    if (!has(file, "torch/utils/data/")) continue;
    const std::string& function = trace.names[trace.stacks[frames[i]].function];
    fetches = fetches || file.ends_with("_utils/fetch.py");
    worker = worker || file.ends_with("_utils/worker.py");
    samples = samples || file.ends_with("torch/utils/data/sampler.py");
    waits = waits || function.ends_with("_try_get_data");
    if (function.ends_with("__next__") && i > at && i < caller) words.via = "DataLoader.__next__";
  }
  if (fetches && !worker) words.remark = "num_workers=0: the data are made in the training thread";
  if (samples && !fetches) words.remark = std::string(kSamplerRuns) + ", with workers as without";
  words.idle_worker = worker && !fetches;
  if (words.idle_worker) words.remark = "a loader's worker without work";
  if (waits) words.remark = "it waits for the loader's workers";
  return words;
}

}  // namespace saturate::observe
