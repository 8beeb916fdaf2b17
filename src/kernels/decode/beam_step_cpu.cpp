// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/decode/beam_step_impl.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
struct Candidate {
  T score;
  int64_t order;  // breaks ties: the smaller first
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.order < b.order;
  }
};

// The best `limit` candidates so far, best first. Not a number never enters.
template <class T>
class Best {
 public:
  explicit Best(int64_t limit) : limit_(static_cast<size_t>(limit)) {}
  int64_t size() const { return static_cast<int64_t>(size_); }
  const Candidate<T>& operator[](int64_t i) const { return best_[static_cast<size_t>(i)]; }
  void add(T score, int64_t order) {
    if (std::isnan(score)) return;
    size_t i = size_;
    best_[i] = {score, order};
    for (; i > 0 && best_[i] < best_[i - 1]; --i) std::swap(best_[i], best_[i - 1]);
    size_ = std::min(size_ + 1, limit_);
  }

 private:
  size_t limit_, size_ = 0;
  std::array<Candidate<T>, kMaxBeam + 1> best_;  // the last place is where a new one comes in
};

template <class T>
struct Step {
  static constexpr T kNever = -std::numeric_limits<T>::infinity();
  const BeamStepArgs& a;
  T* scores() const { return static_cast<T*>(a.state.scores); }

  // Scores and ids of the best extensions of one row; id -1 where there is none.
  void extend(int64_t row) const {
    T* to = static_cast<T*>(a.candidate_scores) + row * a.beam;
    int32_t* ids = a.candidate_ids + row * a.beam;
    std::fill_n(to, a.beam, kNever);
    std::fill_n(ids, a.beam, -1);
    if (a.state.finished[row] != 0 || scores()[row] == kNever) return;
    const T* z = static_cast<const T*>(a.logits) + row * a.ld;
    const T top = *std::max_element(z, z + a.vocab);
    const T sum = lane_sum<T>(a.vocab, [z, top](int64_t c) { return vector_exp(z[c] - top); });
    const T shift = scores()[row] - (top + std::log(sum));
    Best<T> best(a.beam);
    if (a.state.positions[row] + 1 >= a.state.limits[row / a.beam]) {
      best.add(z[a.eos], a.eos);
    } else {
      for (int64_t c = 0; c < a.vocab; ++c) {
        if (c != a.banned) best.add(z[c], c);
      }
    }
    for (int64_t k = 0; k < best.size(); ++k) {
      to[k] = best[k].score + shift;
      ids[k] = std::isnan(to[k]) ? -1 : static_cast<int32_t>(best[k].order);
    }
  }

  void merge(int64_t s) const {
    const BeamState& b = a.state;
    const int64_t first = s * a.beam, t = b.positions[first];
    const auto ended = [&](int64_t k) { return b.finished[first + k] != 0; };
    bool open = false;
    for (int64_t k = 0; k < a.beam; ++k) open = open || !ended(k);
    if (!open) return;
    Best<T> best(a.beam);
    for (int64_t i = 0; i < a.beam * a.beam; ++i) {
      const int64_t parent = i / a.beam;
      if (ended(parent)) {
        if (i % a.beam == 0) best.add(scores()[first + parent], i);
      } else if (a.candidate_ids[first * a.beam + i] >= 0) {
        best.add(static_cast<const T*>(a.candidate_scores)[first * a.beam + i], i);
      }
    }
    std::vector<int64_t> parents(static_cast<size_t>(a.beam), 0);
    std::array<int32_t, kMaxBeam> finished, lengths;
    std::copy_n(b.finished + first, a.beam, finished.begin());
    std::copy_n(b.lengths + first, a.beam, lengths.begin());
    for (int64_t k = 0; k < a.beam; ++k) {
      const bool chosen = k < best.size();
      const int64_t i = chosen ? best[k].order : 0, parent = i / a.beam, row = first + k;
      const bool kept = chosen && finished[static_cast<size_t>(parent)] != 0;
      const int32_t token = chosen && !kept ? a.candidate_ids[first * a.beam + i] : a.eos;
      parents[static_cast<size_t>(k)] = first + parent;
      b.ids[row] = token;
      b.positions[row] = static_cast<int32_t>(t + 1);
      b.finished[row] = token == a.eos ? 1 : 0;
      b.lengths[row] = kept ? lengths[static_cast<size_t>(parent)] : static_cast<int32_t>(t + 1);
      scores()[row] = chosen ? best[k].score : kNever;
      if (token != a.eos) b.tokens[b.starts[row] + t + 1] = token;
    }
    move_histories(first, t, parents);
    finish(s);
  }

  void move_histories(int64_t first, int64_t t, const std::vector<int64_t>& parents) const {
    const BeamState& b = a.state;
    std::array<int32_t, kMaxBeam> column;
    for (int64_t j = 0; j <= t; ++j) {
      for (size_t k = 0; k < parents.size(); ++k) {
        const int32_t own = b.starts[parents[k]] + static_cast<int32_t>(j);
        column[k] = j == t ? own : b.slots[own];
      }
      for (size_t k = 0; k < parents.size(); ++k) {
        b.slots[b.starts[first + static_cast<int64_t>(k)] + j] = column[k];
      }
    }
  }

  void finish(int64_t s) const {
    const BeamState& b = a.state;
    const int64_t first = s * a.beam;
    const T power = static_cast<T>(a.length_penalty);
    int64_t best = first;
    T best_ended = kNever, best_open = kNever;
    bool open = false;
    for (int64_t row = first; row < first + a.beam; ++row) {
      // Log-probabilities only fall: an open hypothesis is worth most at the greatest length.
      const bool ended = b.finished[row] != 0;
      const auto length = static_cast<T>(ended ? b.lengths[row] : b.limits[s]);
      const T value = scores()[row] / std::pow(length, power);
      open = open || !ended;
      if (!ended) best_open = std::max(best_open, value);
      if (ended && value > best_ended) {
        best_ended = value;
        best = row;
      }
    }
    if (open && !(best_ended >= best_open && best_ended > kNever)) return;
    std::fill_n(b.finished + first, a.beam, 1);
    int32_t* result = a.result + s * a.result_stride;
    for (int32_t j = 1; j < b.lengths[best]; ++j) {
      result[j] = b.tokens[b.slots[b.starts[best] + j]];
    }
    std::atomic_ref(result[0]).store(b.lengths[best], std::memory_order_release);
  }
};

template <class T>
void run(const BeamStepArgs& args) {
  const Step<T> step{args};
  parallel_for(args.sentences * args.beam, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) step.extend(row);
  });
  parallel_for(args.sentences, 16, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) step.merge(s);
  });
}

}  // namespace

void beam_step_cpu(const Context&, const BeamStepArgs& a) {
  a.dtype == DType::f64 ? run<double>(a) : run<float>(a);
}

}  // namespace saturate::kernels
