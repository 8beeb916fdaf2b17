// SPDX-License-Identifier: Apache-2.0
#include "train/frozen.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace saturate::train {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// What a pattern may have meant: every name, every group of names ("encoder.layers.*") and every
// last part ("*.bias").
std::string nearest_pattern(const std::string& pattern, const ParameterStore& store) {
  std::set<std::string> known;
  for (const ParameterSpec& p : store.specs()) {
    known.insert(p.name);
    for (size_t dot = 0; (dot = p.name.find('.', dot)) != std::string::npos; ++dot) {
      known.insert(p.name.substr(0, dot) + ".*");
      known.insert("*" + p.name.substr(dot));
    }
  }
  const std::vector<std::string_view> views(known.begin(), known.end());
  return did_you_mean(pattern, views);
}

[[noreturn]] void refuse_unmatched(const std::string& pattern, const ParameterStore& store) {
  std::string why = nearest_pattern(pattern, store);
  for (const char* table : {"encoder.embed.weight", "decoder.embed.weight", "output.weight"}) {
    if (matches(pattern, table))
      why = fmt::format("; {} is tied to {}: name that", table, store.specs().front().name);
  }
  throw Error(Errc::invalid_argument, "config",
              fmt::format("optimizer.freeze: no parameter of this model is called {}{} (from {} to "
                          "{}; a checkpoint's training/optimizer.safetensors lists all)",
                          pattern, why, store.specs().front().name, store.specs().back().name));
}

}  // namespace

void freeze_parameters(ParameterStore& store, std::span<const std::string> patterns) {
  const auto& specs = store.specs();
  const bool whole = store.added() == std::ssize(specs);  // else a stage's: others may match
  for (const std::string& pattern : patterns) {
    bool used = false;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!matches(pattern, specs[i].name)) continue;
      store.freeze({static_cast<int32_t>(i)});
      used = true;
    }
    if (!used && whole) refuse_unmatched(pattern, store);
  }
  if (whole && store.trainable_count() == 0) {
    throw Error(Errc::invalid_argument, "config",
                fmt::format("optimizer.freeze = {} leaves nothing to train; take a pattern out",
                            fmt::join(patterns, ", ")));
  }
}

std::vector<std::string> frozen_names(const ParameterStore& store) {
  std::vector<std::string> names;
  for (const ParameterSpec& p : store.specs()) {
    if (p.frozen) names.push_back(p.name);
  }
  return names;
}

}  // namespace saturate::train
