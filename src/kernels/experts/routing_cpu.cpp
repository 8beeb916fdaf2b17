// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/experts/experts_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrainRows = 256;

// The softmax of a row and its k choices.
template <class T>
struct RoutedRow {
  std::array<T, kMostExperts> p;
  std::array<int32_t, kMostChoices> choice;
  std::array<T, kMostChoices> gate;
  T lse;

  RoutedRow(const T* logits, int64_t experts, int64_t k) {
    const T top = *std::max_element(logits, logits + experts);
    T sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += p[at(e)] = std::exp(logits[e] - top);
    lse = top + std::log(sum);
    for (int64_t e = 0; e < experts; ++e) p[at(e)] /= sum;
    std::array<bool, kMostExperts> taken{};
    T gates = 0;
    for (int64_t j = 0; j < k; ++j) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts; ++e)
        if (!taken[at(e)] && (best < 0 || logits[e] > logits[best])) best = e;
      taken[at(best)] = true;
      choice[at(j)] = static_cast<int32_t>(best);
      gates += gate[at(j)] = p[at(best)];
    }
    for (int64_t j = 0; k > 1 && j < k; ++j) gate[at(j)] /= gates;
  }
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
};

template <class T>
void forward(const RouteTokensArgs& a) {
  const int64_t valid = valid_rows(a.valid, a.rng.first_row, a.rows);
  parallel_for(a.rows, kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int32_t* choices = a.choices + r * a.k;
      T* gates = static_cast<T*>(a.gates) + r * a.k;
      if (r >= valid) {
        std::fill_n(choices, a.k, -1);
        std::fill_n(gates, a.k, T(0));
        continue;
      }
      const RoutedRow<T> row(static_cast<const T*>(a.logits) + r * a.experts, a.experts, a.k);
      std::copy_n(row.choice.begin(), a.k, choices);
      std::copy_n(row.gate.begin(), a.k, gates);
      if (a.random_second && !keeps_second(a, r, static_cast<double>(gates[1]))) choices[1] = -1;
    }
  });
}

template <class T>
std::vector<T> shares_of(const int32_t* counts, int64_t experts) {
  std::vector<T> f(static_cast<size_t>(experts));
  if (counts == nullptr) return f;
  T all = 0;
  for (int64_t e = 0; e < experts; ++e) all += static_cast<T>(counts[e]);
  for (size_t e = 0; e < f.size(); ++e) f[e] = all > 0 ? static_cast<T>(counts[e]) / all : T(0);
  return f;
}

template <class T>
void backward(const RouteTokensBackwardArgs& b) {
  const RouteTokensArgs& a = b.forward;
  const int64_t valid = valid_rows(a.valid, a.rng.first_row, a.rows);
  const T scale = static_cast<T>(b.grad_scale) *
                  (b.device_scale != nullptr ? static_cast<T>(*b.device_scale) : T(1));
  const T balance = static_cast<T>(b.balance_loss) * static_cast<T>(a.experts) * scale;
  const T z = 2 * static_cast<T>(b.z_loss) * scale;
  const std::vector<T> f = shares_of<T>(b.counts, a.experts);
  parallel_for(a.rows, kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* d = static_cast<T*>(b.d_logits) + r * a.experts;
      if (r >= valid) {
        std::fill_n(d, a.experts, T(0));
        continue;
      }
      const RoutedRow<T> row(static_cast<const T*>(a.logits) + r * a.experts, a.experts, a.k);
      const T* d_gates = static_cast<const T*>(b.d_gates) + r * a.k;
      T mean = 0;
      for (size_t e = 0; e < f.size(); ++e) mean += f[e] * row.p[e];
      for (size_t e = 0; e < f.size(); ++e)
        d[e] = row.p[e] * (balance * (f[e] - mean) + z * row.lse);
      if (a.k == 1) {
        const T g = d_gates[0] * row.gate[0];
        for (size_t e = 0; e < f.size(); ++e) d[e] -= g * row.p[e];
        d[row.choice[0]] += g;
        continue;
      }
      T sum = 0;
      for (int64_t j = 0; j < a.k; ++j) sum += d_gates[j] * row.gate[static_cast<size_t>(j)];
      for (int64_t j = 0; j < a.k; ++j) {
        const auto i = static_cast<size_t>(j);
        d[row.choice[i]] += row.gate[i] * (d_gates[j] - sum);
      }
    }
  });
}

template <class T>
void statistics(const RoutingStatisticsArgs& a) {
  const int64_t valid = valid_rows(a.valid, a.first_row, a.rows);
  const std::vector<T> f = shares_of<T>(a.counts, a.experts);
  const auto total = [&](RoutingTotal t) -> double& {
    return a.totals[a.experts + static_cast<int64_t>(t)];
  };
  total(RoutingTotal::tokens) += static_cast<double>(valid);
  for (int64_t r = 0; r < valid; ++r) {
    const RoutedRow<T> row(static_cast<const T*>(a.logits) + r * a.experts, a.experts, a.k);
    for (int64_t j = 0; j < a.k; ++j) {
      const int32_t choice = a.choices[r * a.k + j];
      if (choice >= 0) a.totals[choice] += 1;
      if (choice < 0) total(RoutingTotal::left_out) += 1;
      if (choice >= 0 && a.kept != nullptr && a.kept[r * a.k + j] < 0)
        total(RoutingTotal::dropped) += 1;
    }
    T entropy = 0, balance = 0;
    for (size_t e = 0; e < f.size(); ++e) {
      if (row.p[e] > 0) entropy -= row.p[e] * std::log(row.p[e]);
      balance += f[e] * row.p[e];
    }
    total(RoutingTotal::entropy) += static_cast<double>(entropy);
    total(RoutingTotal::balance) += static_cast<double>(balance) * static_cast<double>(a.experts);
    total(RoutingTotal::z) += static_cast<double>(row.lse * row.lse);
  }
}

}  // namespace

void route_tokens_cpu(const Context&, const RouteTokensArgs& a) {
  a.dtype == DType::f64 ? forward<double>(a) : forward<float>(a);
}
void route_tokens_backward_cpu(const Context&, const RouteTokensBackwardArgs& a) {
  a.forward.dtype == DType::f64 ? backward<double>(a) : backward<float>(a);
}
void routing_statistics_cpu(const Context&, const RoutingStatisticsArgs& a) {
  a.dtype == DType::f64 ? statistics<double>(a) : statistics<float>(a);
}

void limit_choices_cpu(const Context&, const LimitChoicesArgs& a) {
  const int64_t capacity = capacity_of(a);
  std::array<int64_t, kMostExperts> placed{};
  std::fill_n(a.counts, a.experts, 0);
  for (int64_t j = 0; j < a.k; ++j) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const int32_t choice = a.choices[r * a.k + j];
      const bool gets = choice >= 0 && placed[static_cast<size_t>(choice)]++ < capacity;
      if (choice >= 0 && (j == 0 || !a.count_first)) ++a.counts[choice];
      const int64_t own = r - a.first_row;
      if (a.kept != nullptr && own >= 0 && own < a.own_rows)
        a.kept[own * a.k + j] = gets ? choice : -1;
    }
  }
}

void sort_by_expert_cpu(const Context&, const SortByExpertArgs& a) {
  std::fill_n(a.offsets, a.experts + 1, 0);
  const int64_t n = a.rows * a.k;
  const auto own = [&](int64_t i) {
    const int64_t e = a.choices[i] - a.first_expert;
    return a.choices[i] >= 0 && e >= 0 && e < a.experts ? e : -1;
  };
  for (int64_t i = 0; i < n; ++i)
    if (own(i) >= 0) ++a.offsets[own(i) + 1];
  for (int64_t e = 0; e < a.experts; ++e) a.offsets[e + 1] += a.offsets[e];
  std::array<int32_t, kMostExperts> next;
  std::copy_n(a.offsets, a.experts, next.begin());
  for (int64_t i = 0; i < n; ++i)
    a.slots[i] = own(i) >= 0 ? next[static_cast<size_t>(own(i))]++ : -1;
}

}  // namespace saturate::kernels
