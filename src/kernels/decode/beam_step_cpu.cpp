// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/decode/beam_row_cpu.h"
#include "kernels/decode/beam_step_impl.h"
#include "kernels/decode/token_draw_cpu.h"
#include "kernels/decode/token_phrases_cpu.h"
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

// The best `limit` candidates so far, best first. Not a number and minus infinity never enter.
template <class T>
class Best {
 public:
  explicit Best(int64_t limit) : limit_(static_cast<size_t>(limit)) {}
  int64_t size() const { return static_cast<int64_t>(size_); }
  bool is_full() const { return size_ == limit_; }
  const Candidate<T>& operator[](int64_t i) const { return best_[static_cast<size_t>(i)]; }
  void add(T score, int64_t order) {
    if (!(score > -std::numeric_limits<T>::infinity())) return;
    size_t i = size_;
    best_[i] = {score, order};
    for (; i > 0 && best_[i] < best_[i - 1]; --i) std::swap(best_[i], best_[i - 1]);
    size_ = std::min(size_ + 1, limit_);
  }

 private:
  size_t limit_, size_ = 0;
  std::array<Candidate<T>, kMaxBeam + 1> best_;  // the last place is where a new one comes in
};

// What a row of a sentence with phrases may become.
template <class T>
struct Offer {
  T score;
  int64_t parent;  // row of the sentence
  int32_t token;
  int64_t owed;  // tokens that are still to come for the phrases
};

template <class T>
struct Step {
  static constexpr T kNever = -std::numeric_limits<T>::infinity();
  const BeamStepArgs& a;
  std::vector<std::vector<Offer<T>>> offers = {};  // by row, of sentences with phrases
  T* scores() const { return static_cast<T*>(a.state.scores); }

  bool owes(int64_t s) const { return a.phrases != nullptr && a.phrases[s].count > 0; }

  // Scores and ids of the best extensions of one row; id -1 where there is none.
  void extend(int64_t row) {
    T* to = static_cast<T*>(a.candidate_scores) + row * a.beam;
    int32_t* ids = a.candidate_ids + row * a.beam;
    std::fill_n(to, a.beam, kNever);
    std::fill_n(ids, a.beam, -1);
    if (a.state.finished[row] != 0 || scores()[row] == kNever) return;
    const BeamSentence& sentence = a.state.sentences[row / a.beam];
    const int64_t t = a.state.positions[row];
    if (t < sentence.prefix) {  // of rows with a score none has been another's parent
      to[0] = scores()[row];
      ids[0] = a.state.tokens[a.state.starts[row / a.beam * a.beam] + t + 1];
      return;
    }
    const LogitsRow<T> logits = logits_row<T>(a, a.logits, row);
    T* const z = logits.z;
    if (a.log_sums == nullptr) apply_sentence_rules(a, row, logits);
    const std::vector<T> tops = largest_of_stretches(logits);
    const T sum =
        a.log_sums == nullptr ? log_sum(logits, tops) : static_cast<const T*>(a.log_sums)[row];
    const T shift = scores()[row] - sum;
    if (owes(row / a.beam)) return offer(row, logits, tops, shift);
    Best<T> best(candidates_of(sentence, a.beam, t));
    if (t + 1 >= sentence.limit) {
      const T* const end = logits.logit(a.eos);
      if (end != nullptr) best.add(*end, end - z);
    } else if (sentence.drawn != 0) {
      if (T* const banned = a.banned < 0 ? nullptr : logits.logit(a.banned)) *banned = kNever;
      const int32_t likeliest = likeliest_token(z, logits.count);
      if (likeliest >= 0 && std::isfinite(z[likeliest])) {
        const int32_t column =
            draw_token(z, logits.count, z[likeliest], draw_of(sentence, a.beam, row % a.beam),
                       static_cast<int32_t>(t));
        best.add(z[column], column);
      }
    } else {
      add_best(logits, tops, best);
    }
    for (int64_t k = 0; k < best.size(); ++k) {
      to[k] = best[k].score + shift;
      ids[k] = to[k] > kNever ? logits.id(best[k].order) : -1;
    }
  }

  // What may follow without leaving too little room for the phrases, with its score.
  void offer(int64_t row, const LogitsRow<T>& logits, const std::vector<T>& tops, T shift) {
    const BeamSentence& sentence = a.state.sentences[row / a.beam];
    const TokenPhrases& phrases = a.phrases[row / a.beam];
    const int64_t t = a.state.positions[row],
                  room = sentence.limit - (t + 2);  // behind the next token
    std::vector<int32_t> translation;
    for (int64_t j = 0; j < t; ++j) translation.push_back(said_token(a.state, row, j));
    const OwedPhrases now(phrases, translation);
    std::vector<int32_t> tokens = now.next();
    T* const end = logits.logit(a.eos);
    if (now.tokens() > 0) {
      if (end != nullptr) *end = kNever;
    } else if (room < 0) {
      tokens.push_back(a.eos);
    }
    if (room >= now.tokens_after_others()) {
      Best<T> best(a.beam);
      add_best(logits, tops, best);
      for (int64_t k = 0; k < best.size(); ++k) tokens.push_back(logits.id(best[k].order));
    }
    std::ranges::sort(tokens);
    const auto rest = std::ranges::unique(tokens);
    tokens.erase(rest.begin(), rest.end());
    for (const int32_t token : tokens) {
      const T* const z = logits.logit(token);
      const T score = z == nullptr ? kNever : *z + shift;
      if (!(score > kNever)) continue;
      translation.push_back(token);
      const int64_t owed = OwedPhrases(phrases, translation).tokens();
      translation.pop_back();
      if (token == a.eos || owed <= room)
        offers[static_cast<size_t>(row)].push_back({score, row % a.beam, token, owed});
    }
  }

  // Stretches that hold nothing better than what there is are passed over: of equals the first stays.
  void add_best(const LogitsRow<T>& row, const std::vector<T>& tops, Best<T>& best) const {
    for (size_t i = 0; i < tops.size(); ++i) {
      if (best.is_full() && !(tops[i] > best[best.size() - 1].score)) continue;
      const int64_t first = static_cast<int64_t>(i) * kStretch;
      for (int64_t c = first; c < std::min(first + kStretch, row.count); ++c) {
        if (row.id(c) != a.banned) best.add(row.z[c], c);
      }
    }
  }

  // What a row becomes: extended by candidate `i` of its sentence, or what is left of an ended one.
  struct Choice {
    bool chosen = false;
    int64_t i = 0;
    T score = kNever, penalty = 0;
    int32_t token = -1;  // of one that is extended
    int64_t owed = 0;    // tokens for phrases, behind it
  };

  // The best of the candidates of rows [begin, end) of the sentence, one for each `step`-th row from
  // `to` on.
  void choose(int64_t first, int64_t begin, int64_t end, int64_t count, int64_t to, int64_t step,
              float diversity, std::array<Choice, kMaxBeam>& chosen) const {
    const BeamState& b = a.state;
    const auto lost = [&](int32_t id) {  // to earlier groups
      const auto same = [id, this](const Choice& c) { return c.token == id && id != a.eos; };
      return static_cast<T>(diversity) *
             static_cast<T>(std::count_if(chosen.begin(), chosen.begin() + begin, same));
    };
    Best<T> best(count);
    for (int64_t i = begin * a.beam; i < end * a.beam; ++i) {
      const int64_t parent = i / a.beam;
      const int32_t id = a.candidate_ids[first * a.beam + i];
      if (b.finished[first + parent] != 0) {
        if (i % a.beam == 0) best.add(scores()[first + parent], i);
      } else if (id >= 0) {
        const T score = static_cast<const T*>(a.candidate_scores)[first * a.beam + i];
        best.add(diversity > 0.0f ? score - lost(id) : score, i);
      }
    }
    for (int64_t n = 0; n < best.size(); ++n) {
      const int64_t i = best[n].order, parent = i / a.beam;
      Choice& c = chosen[static_cast<size_t>(to + n * step)];
      c = {true, i, best[n].score, static_cast<const T*>(b.penalties)[first + parent], -1};
      if (b.finished[first + parent] != 0) continue;
      c.token = a.candidate_ids[first * a.beam + i];
    }
    if (!(diversity > 0.0f)) return;
    for (int64_t n = 0; n < best.size(); ++n) {
      Choice& c = chosen[static_cast<size_t>(to + n * step)];
      if (c.token >= 0) c.penalty += lost(c.token);
    }
  }

  T worth_of(T score, int64_t length, const BeamSentence& s) const {
    return score > kNever
               ? score / std::pow(static_cast<T>(length), static_cast<T>(s.length_penalty))
               : kNever;
  }

  // Ended hypotheses that a sentence with phrases keeps for certain, and that end its search.
  int64_t ends_kept(const BeamSentence& s) const {
    return std::min<int64_t>(s.wanted, std::max<int64_t>(1, a.beam / 2));
  }

  // The same as choose() among what the rows of a sentence with phrases offer.
  void choose_in_turn(int64_t first, const BeamSentence& sentence,
                      std::array<Choice, kMaxBeam>& chosen) const {
    const BeamState& b = a.state;
    struct Ended {
      T worth;
      int64_t row;
    };
    std::vector<Ended> ended;
    std::vector<Offer<T>> all;
    for (int64_t k = 0; k < a.beam; ++k) {
      const int64_t row = first + k;
      if (b.finished[row] != 0) {
        const T worth = worth_of(scores()[row], b.lengths[row] - sentence.prefix, sentence);
        if (worth > kNever) ended.push_back({worth, k});
      } else {
        const auto& own = offers[static_cast<size_t>(row)];
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    std::ranges::stable_sort(ended, std::greater(), &Ended::worth);
    std::ranges::sort(all, [](const Offer<T>& x, const Offer<T>& y) {
      return std::tie(x.owed, y.score, x.parent, x.token) <
             std::tie(y.owed, x.score, y.parent, y.token);
    });
    int64_t to = 0;
    const auto keep = [&](const Ended& e) {
      chosen[static_cast<size_t>(to++)] = {true, e.row * a.beam, scores()[first + e.row], 0, -1, 0};
    };
    const auto kept = std::min(static_cast<size_t>(ends_kept(sentence)), ended.size());
    for (size_t i = 0; i < kept; ++i) keep(ended[i]);
    // By rank among those that owe as many.
    std::vector<std::pair<int64_t, size_t>> turns;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool same = i > 0 && all[i].owed == all[i - 1].owed;
      turns.emplace_back(same ? turns.back().first + 1 : 0, i);
    }
    std::ranges::sort(turns);
    for (const auto& [rank, i] : turns) {
      if (to == a.beam) break;
      const Offer<T>& o = all[i];
      chosen[static_cast<size_t>(to++)] = {true, o.parent * a.beam, o.score, 0, o.token, o.owed};
    }
    for (size_t i = kept; i < ended.size() && to < a.beam; ++i) keep(ended[i]);
  }

  void merge(int64_t s) const {
    const BeamState& b = a.state;
    const int64_t first = s * a.beam, t = b.positions[first];
    const auto ended = [&](int64_t k) { return b.finished[first + k] != 0; };
    bool open = false;
    for (int64_t k = 0; k < a.beam; ++k) open = open || !ended(k);
    if (!open) return;
    const BeamSentence& sentence = b.sentences[s];
    const int64_t groups = sentence.groups, width = width_of(sentence, a.beam);
    std::array<Choice, kMaxBeam> choices;
    const bool in_turn = owes(s) && t >= sentence.prefix;
    if (in_turn) {
      choose_in_turn(first, sentence, choices);
    } else if (goes_apart(sentence, t)) {
      choose(first, 0, 1, groups, 0, width, 0.0f, choices);
    } else {
      for (int64_t g = 0; g < groups; ++g)
        choose(first, g * width, (g + 1) * width, width, g * width, 1, sentence.diversity, choices);
    }
    std::vector<int64_t> parents(static_cast<size_t>(a.beam), 0);
    std::array<int32_t, kMaxBeam> lengths;
    std::copy_n(b.lengths + first, a.beam, lengths.begin());
    for (int64_t k = 0; k < a.beam; ++k) {
      const Choice& c = choices[static_cast<size_t>(k)];
      const int64_t parent = c.i / a.beam, row = first + k;
      const bool kept = c.chosen && c.token < 0;
      const int32_t token = c.token >= 0 ? c.token : a.eos;
      parents[static_cast<size_t>(k)] = first + parent;
      b.ids[row] = token;
      b.positions[row] = static_cast<int32_t>(t + 1);
      b.finished[row] = token == a.eos ? 1 : 0;
      b.lengths[row] = kept ? lengths[static_cast<size_t>(parent)] : static_cast<int32_t>(t + 1);
      scores()[row] = c.score;
      static_cast<T*>(b.penalties)[row] = c.penalty;
      if (token == a.eos) continue;
      b.tokens[b.starts[row] + t + 1] = token;
      static_cast<T*>(b.sums)[b.starts[row] + t + 1] = c.score + c.penalty;
    }
    move_histories(first, t, parents);
    finish(s, in_turn ? &choices : nullptr);
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

  // `in_turn`: how the rows of a sentence with phrases were chosen.
  void finish(int64_t s, const std::array<Choice, kMaxBeam>* in_turn) const {
    const BeamState& b = a.state;
    const BeamSentence& sentence = b.sentences[s];
    const int64_t first = s * a.beam, width = width_of(sentence, a.beam);
    std::array<T, kMaxBeam> worth;
    for (int64_t k = 0; k < a.beam; ++k) {
      // Log-probabilities only fall: an open hypothesis is worth most at the greatest length.
      const int64_t row = first + k;
      const int32_t open_length = in_turn != nullptr ? b.positions[row] : sentence.limit;
      const int32_t length =
          (b.finished[row] != 0 ? b.lengths[row] : open_length) - sentence.prefix;
      // Within the prefix there are rows without a score and lengths below one.
      worth[static_cast<size_t>(k)] = worth_of(scores()[row], length, sentence);
    }
    const int64_t wanted = in_turn != nullptr
                               ? ends_kept(sentence)
                               : (sentence.wanted + sentence.groups - 1) / sentence.groups;
    for (int64_t g = 0; g < sentence.groups; ++g) {
      T best_open = kNever;
      int64_t open = 0, known = 0;
      for (int64_t k = g * width; k < (g + 1) * width; ++k) {
        if (b.finished[first + k] != 0) continue;
        ++open;
        if (in_turn != nullptr && (*in_turn)[static_cast<size_t>(k)].owed > 0) continue;
        best_open = std::max(best_open, worth[static_cast<size_t>(k)]);
      }
      for (int64_t k = g * width; k < (g + 1) * width; ++k) {
        const T value = worth[static_cast<size_t>(k)];
        known += b.finished[first + k] != 0 && value >= best_open && value > kNever ? 1 : 0;
      }
      if (open > 0 && known < wanted) return;
    }
    int32_t written = 0;
    for (int64_t k = 0; k < a.beam; ++k) {
      if (b.finished[first + k] != 0 && worth[static_cast<size_t>(k)] > kNever)
        write(first + k, sentence.result, written++);
    }
    std::fill_n(b.finished + first, a.beam, 1);
    std::atomic_ref(a.result.done[sentence.result])
        .store(written > 0 ? written : -1, std::memory_order_release);
  }

  // An ended hypothesis as number k of its part of the result.
  void write(int64_t row, int64_t part, int64_t k) const {
    const BeamState& b = a.state;
    const int64_t at = (part * a.beam + k) * a.result.stride;
    T* sums = static_cast<T*>(a.result.sums) + at;
    a.result.tokens[at] = b.lengths[row];
    sums[0] = scores()[row] + static_cast<const T*>(b.penalties)[row];
    if (a.result.slots != nullptr)
      std::copy_n(b.slots + b.starts[row], b.lengths[row], a.result.slots + at);
    for (int64_t j = 1; j < b.lengths[row]; ++j) {
      const int32_t slot = b.slots[b.starts[row] + j];
      a.result.tokens[at + j] = b.tokens[slot];
      sums[j] = static_cast<const T*>(b.sums)[slot];
    }
  }
};

template <class T>
void run(const BeamStepArgs& args) {
  Step<T> step{args};
  if (args.phrases != nullptr) step.offers.resize(static_cast<size_t>(args.sentences * args.beam));
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
