// SPDX-License-Identifier: Apache-2.0
// Implementations of matmul that come in several configurations, named by text: what the tuner
// measures and the table names. One without configurations is only in matmul's own list.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/gemm/matmul_impl.h"

namespace saturate::kernels {

enum class Search { quick, exhaustive };

// How far a piece of work is: done of total. Called from the thread that waits for it.
using TuneProgress = std::function<void(size_t done, size_t total)>;

struct ConfiguredImpl {
  const char* name;
  Fit (*fits)(const Context&, const MatmulArgs&) noexcept;
  // Names of what can be tried, the likeliest first; empty when there is nothing to choose.
  std::vector<std::string> (*configurations)(const Context&, const MatmulArgs&, Search);
  // Makes many ready at once (compiles in parallel); null where that costs nothing. What fails here
  // fails again in ready(), with its reason.
  void (*prepare)(const Context&, const MatmulArgs&, std::span<const std::string>,
                  const TuneProgress&);
  // Whether `config` can run this problem here; the first call may take seconds and load code,
  // later ones are a lookup. Not during a capture the first time.
  Fit (*ready)(const Context&, const MatmulArgs&, const std::string& config);
  // What runs it as matmul() would. Only after ready().
  PreparedMatmul (*prepared)(const Context&, const MatmulArgs&, const std::string& config);
  // Milliseconds by a model, without timing; negative where there is none.
  double (*predict)(const Context&, const MatmulArgs&, const std::string& config);
};

std::span<const ConfiguredImpl> configured_impls() noexcept;
const ConfiguredImpl* find_configured(std::string_view name) noexcept;

}  // namespace saturate::kernels
