// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "observe/analyse/fix_edits.h"
#include "observe/analyse/fix_words.h"
#include "observe/analyse/fixes.h"
#include "observe/analyse/growth.h"

namespace saturate::observe {

// Whether it takes out operations that are marked one by one, which no leaf of the budget holds alone:
// the replay then says their share.
constexpr bool is_of_marked_kernels(FixKind kind) {
  return kind == FixKind::recompute || kind == FixKind::weight_casts ||
         kind == FixKind::product_types || kind == FixKind::device_copies ||
         kind == FixKind::kernel_copies || kind == FixKind::one_attention ||
         kind == FixKind::float64 || kind == FixKind::transforms || kind == FixKind::sorts ||
         kind == FixKind::slow_kernels;
}

// What each fix brings to one capture, with its range and its words. Borrows what it is given.
class FixFinder {
 public:
  FixFinder(const Replay& replay, const Analysis& analysis, const ClockHold& clock);
  double base_ns() const { return base_; }  // a step of the unchanged replay
  const Growth& growth() const { return growth_; }
  Fix find(FixKind kind) const;  // without `own`, `shared` and words
  void add_words_to(Fix& f) const { add_words(f, analysis_, clock_, settings_, growth_); }
  // Nanoseconds of a step with all of `kinds` applied.
  double step(std::span<const FixKind> kinds, Assume assume) const;

 private:
  bool mostly_long_host() const;
  void set_as_measured(Fix& f, double surely) const;
  void set_fusion(Fix& f, double surely, double likely) const;
  void set_reads(Fix& f) const;
  bool of_arrays() const;
  bool fused_already() const;
  double busy_ns() const;
  double fused_ns(std::vector<FixKind> kinds) const;
  void set_unsure(Fix& f) const;
  void set_mixed(Fix& f, double surely, double at_most) const;
  bool paced() const;
  void widen_by_deliveries(Fix& f) const;
  bool waits_much() const;
  double without_stock(double speedup) const;
  double allocation_ns() const;
  double growth_gain(double ns) const;
  double one_program_ns() const;
  void set_growth(Fix& f) const;
  void set_graphs(Fix& f, double surely_ns, double at_most_ns, double joined_ns) const;
  void set_recompute(Fix& f, double surely_ns) const;
  void set_sure_part(Fix& f, double surely_ns, double at_most_ns, double least = kWorth) const;
  void set_device_copies(Fix& f, double surely_ns) const;
  bool loads_in_each_step() const;
  bool compiles() const;

  const Replay& replay_;
  const Analysis& analysis_;
  const ClockHold& clock_;
  EditSettings settings_;
  Growth growth_;
  double base_;
};

}  // namespace saturate::observe
