// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/decode/beam_step_impl.h"
#include "kernels/decode/ranking.cuh"
#include "kernels/decode/token_draw.cuh"
#include "kernels/decode/token_rules.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Rules come before draws.
template <bool kDraws>
union BeamScratch {
  RuleScratch rules;
  DrawScratch draw;
};
template <>
union BeamScratch<false> {
  RuleScratch rules;
};

// One block, one row: log-sum-exp and the best extensions. Every thread knows its best column; the
// block takes the best of these, and the thread that held it looks through its columns again for
// the next. So a row is read once, and a 1/threads of it once more for each candidate.
template <class T, int N, bool kDraws>
__global__ void __launch_bounds__(512) beam_extend_kernel(BeamStepArgs a) {
  __shared__ float scratch[kWarp];
  __shared__ uint64_t rank_scratch[kWarp];
  const int64_t row = blockIdx.x;
  const int beam = static_cast<int>(a.beam);
  float* const scores = static_cast<float*>(a.candidate_scores) + row * beam;
  int32_t* const ids = a.candidate_ids + row * beam;
  const float before = static_cast<const float*>(a.state.scores)[row];
  if (a.state.finished[row] != 0 || before == kNever) {
    for (int k = threadIdx.x; k < beam; k += blockDim.x) ids[k] = -1;
    return;
  }
  const BeamState& b = a.state;
  const BeamSentence& sentence = b.sentences[row / beam];
  const int t = b.positions[row];
  const int32_t start = b.starts[row];
  if (t < sentence.prefix) {  // of rows with a score none has been another's parent
    const int32_t prefix_start = b.starts[row / beam * beam];
    for (int k = threadIdx.x; k < beam; k += blockDim.x) {
      scores[k] = before;
      ids[k] = k == 0 ? b.tokens[prefix_start + t + 1] : -1;
    }
    return;
  }
  T* const z = static_cast<T*>(a.logits) + row * a.ld;
  const int32_t ends[1] = {a.eos};
  const auto said = [&](int j) {
    return j + 1 == t ? b.ids[row] : b.tokens[b.slots[start + j + 1]];
  };
  const float* const log_sums = static_cast<const float*>(a.log_sums);
  __shared__ BeamScratch<kDraws> shared;
  if (log_sums == nullptr)
    apply_rules(sentence.rules, a.suppressed, ends, 1, 0, t, said, static_cast<int>(a.vocab), z,
                shared.rules);
  RowScan scan = scan_row<T, N>(z, static_cast<int>(a.vocab), a.banned);
  float shift;
  if (log_sums == nullptr) {
    const float top = block_max(scan.top, scratch);
    const float sum = block_sum(scan.sum * __expf(scan.top - top), scratch);
    shift = before - (top + logf(sum));
  } else {
    shift = before - log_sums[row];
  }
  if (t + 1 >= sentence.limit) {
    for (int k = threadIdx.x; k < beam; k += blockDim.x) {
      scores[k] = to_float(z[a.eos]) + shift;
      ids[k] = k == 0 && scores[k] > kNever ? a.eos : -1;
    }
    return;
  }
  const int count = static_cast<int>(candidates_of(sentence, beam, t));
  for (int k = count + threadIdx.x; k < beam; k += blockDim.x) ids[k] = -1;
  if constexpr (kDraws) {
    if (sentence.drawn != 0) {
      const uint64_t best = block_best(scan.best, rank_scratch);
      if (threadIdx.x == 0) {
        ids[0] = -1;
        if (a.banned >= 0) z[a.banned] = from_float<T>(kNever);
      }
      __syncthreads();  // the row is as the draw takes it
      const float likeliest = ranked_value(best);
      if (best == 0 || !isfinite(likeliest)) return;
      const int id = draw_token(z, static_cast<int>(a.vocab), likeliest,
                                draw_of(sentence, beam, row % beam), t, shared.draw);
      if (threadIdx.x == 0) {
        scores[0] = to_float(z[id]) + shift;
        ids[0] = scores[0] > kNever ? id : -1;
      }
      return;
    }
  }
  for (int k = 0; k < count; ++k) {
    const uint64_t best = block_best(scan.best, rank_scratch);
    if (threadIdx.x == 0) {
      const float score = ranked_value(best) + shift;
      scores[k] = score;
      ids[k] = best == 0 || !(score > kNever) ? -1 : ranked_index(best);
    }
    if (k + 1 < count && best != 0 && scan.best == best) {
      scan.best = next_best<T, N>(z, static_cast<int>(a.vocab), a.banned, best);
    }
  }
}

// One warp, one sentence: lane k makes the new hypotheses k, k + 32, ... below `beam`, at most P of
// them.
template <int P>
__global__ void __launch_bounds__(kWarp) beam_merge_kernel(BeamStepArgs a) {
  constexpr int kRows = P * kWarp;
  static_assert(kRows <= 64, "ended_mask has a bit for each row");
  __shared__ int32_t columns[kRows][kWarp];
  __shared__ int32_t parent_starts[kRows], starts[kRows], picked[kRows];
  __shared__ float worths[kRows];
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const BeamState& b = a.state;
  const int s = blockIdx.x, lane = threadIdx.x, beam = static_cast<int>(a.beam);
  const int64_t first = static_cast<int64_t>(s) * beam;
  float* const scores = static_cast<float*>(b.scores);
  const float* const candidate_scores =
      static_cast<const float*>(a.candidate_scores) + first * beam;
  const int32_t* const candidate_ids = a.candidate_ids + first * beam;
  float* const penalties = static_cast<float*>(b.penalties);
  const auto is_row = [beam](int k) { return k < beam; };
  uint64_t ended_mask = 0;
  bool all_ended = true;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int k = lane + p * kWarp;
    const uint32_t ended = __ballot_sync(kAll, !is_row(k) || b.finished[first + k] != 0);
    ended_mask |= static_cast<uint64_t>(ended) << (p * kWarp);
    all_ended = all_ended && ended == kAll;
    if (is_row(k)) starts[k] = b.starts[first + k];
  }
  if (all_ended) return;
  const auto was_ended = [ended_mask](int k) { return (ended_mask >> k & 1u) != 0; };
  const BeamSentence sentence = b.sentences[s];
  const int t = b.positions[first];
  __syncwarp();  // starts are there

  const int groups = sentence.groups, width = static_cast<int>(width_of(sentence, beam));
  const bool apart = goes_apart(sentence, t);
  const float diversity = apart ? 0.0f : sentence.diversity;

  // What token `id` loses in a group that begins with row `first_row`.
  const auto lost = [&](int id, int first_row) {
    int times = 0;
    for (int k = 0; k < first_row; ++k) times += picked[k] == id ? 1 : 0;
    return diversity * static_cast<float>(times);
  };
  // The largest of the candidates of each group, one after the other, for its rows; where the first
  // row's go apart, for the first rows of the groups.
  uint64_t chosen[P] = {}, last = 0;
  const int picks = apart ? groups : groups * width;
  for (int n = 0; n < picks; ++n) {
    const int group = apart ? 0 : n / width, to = apart ? n * width : n;
    if (apart ? n == 0 : n % width == 0) {
      last = ~uint64_t{0};
      __syncwarp();  // what earlier groups have picked is there
    }
    const int begin = group * width * beam, end = begin + (apart ? 1 : width) * beam;
    uint64_t best = 0;
    for (int i = begin + lane; i < end; i += kWarp) {
      const int parent = i / beam;
      uint64_t rank = 0;
      if (was_ended(parent)) {
        if (i % beam == 0) rank = rank_of(scores[first + parent], i);
      } else if (const int id = candidate_ids[i]; id >= 0) {
        const float score = candidate_scores[i];
        rank = rank_of(diversity > 0.0f ? score - lost(id, group * width) : score, i);
      }
      if (rank < last && rank > best) best = rank;
    }
    last = warp_best(best);
    if (diversity > 0.0f && lane == 0) {
      const int i = ranked_index(last);
      const bool extends = last != 0 && !was_ended(i / beam) && candidate_ids[i] != a.eos;
      picked[to] = extends ? candidate_ids[i] : -1;
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (to == lane + p * kWarp) chosen[p] = last;
    }
    if (last == 0 && groups == 1) break;
  }
  __syncwarp();  // what the groups have picked is there
  int parents[P], tokens[P], lengths[P];
  float taken[P];  // by diversity
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int index = chosen[p] != 0 ? ranked_index(chosen[p]) : 0;
    parents[p] = index / beam;
    const bool kept = chosen[p] != 0 && was_ended(parents[p]);
    tokens[p] = chosen[p] != 0 && !kept ? candidate_ids[index] : a.eos;
    lengths[p] = kept ? b.lengths[first + parents[p]] : t + 1;
    taken[p] = chosen[p] != 0 ? penalties[first + parents[p]] : 0.0f;
    if (diversity > 0.0f && chosen[p] != 0 && !kept)
      taken[p] += lost(tokens[p], (lane + p * kWarp) / width * width);
  }
  __syncwarp();  // every lane has read the old scores, penalties and lengths
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int k = lane + p * kWarp;
    if (!is_row(k)) continue;
    const bool ended = tokens[p] == a.eos;
    const float score = chosen[p] != 0 ? ranked_value(chosen[p]) : kNever;
    parent_starts[k] = starts[parents[p]];
    b.ids[first + k] = tokens[p];
    b.positions[first + k] = t + 1;
    b.lengths[first + k] = lengths[p];
    b.finished[first + k] = ended ? 1 : 0;
    scores[first + k] = score;
    penalties[first + k] = taken[p];
    if (!ended) {
      b.tokens[starts[k] + t + 1] = tokens[p];
      static_cast<float*>(b.sums)[starts[k] + t + 1] = score + taken[p];
    }
    // Log-probabilities only fall: an open hypothesis is worth most at the greatest length.
    const int length = (ended ? lengths[p] : sentence.limit) - sentence.prefix;
    // Within the prefix there are rows without a score and lengths below one.
    worths[k] =
        score > kNever ? score / powf(static_cast<float>(length), sentence.length_penalty) : kNever;
  }
  __syncwarp();  // parent_starts, worths and what has ended are there

  // Histories change places by columns: a lane reads all of a column before it writes it.
  for (int j = lane; j <= t; j += kWarp) {
    for (int k = 0; k < beam; ++k) {
      const int32_t own = parent_starts[k] + j;
      columns[k][lane] = j == t ? own : b.slots[own];
    }
    for (int k = 0; k < beam; ++k) b.slots[starts[k] + j] = columns[k][lane];
  }

  // A lane looks at every 32nd group: whether enough has ended that no open one could pass.
  bool open_group = false;
  for (int g = lane; g < groups; g += kWarp) {
    float best_open = kNever;
    int open = 0, known = 0;
    for (int k = g * width; k < (g + 1) * width; ++k) {
      if (b.finished[first + k] != 0) continue;
      ++open;
      best_open = fmaxf(best_open, worths[k]);
    }
    for (int k = g * width; k < (g + 1) * width; ++k) {
      if (b.finished[first + k] != 0 && worths[k] >= best_open && worths[k] > kNever) ++known;
    }
    open_group = open_group || (open > 0 && known < (sentence.wanted + groups - 1) / groups);
  }
  const bool done = !__any_sync(kAll, open_group);
  // Rows that ended with a score.
  uint32_t scored[P];
  int written = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int k = lane + p * kWarp;
    scored[p] = __ballot_sync(kAll, is_row(k) && tokens[p] == a.eos && worths[k] > kNever);
    if (is_row(k) && done) b.finished[first + k] = 1;
  }
  if (!done) return;
  __syncwarp();  // what other lanes wrote is read below
  for (int k = 0; k < beam; ++k) {
    if ((scored[k / kWarp] >> (k % kWarp) & 1u) == 0) continue;
    const int length = b.lengths[first + k];
    const int64_t at = (int64_t{sentence.result} * beam + written++) * a.result.stride;
    float* const sums = static_cast<float*>(a.result.sums) + at;
    if (lane == 0) {
      a.result.tokens[at] = length;
      sums[0] = scores[first + k] + penalties[first + k];
    }
    for (int j = lane; a.result.slots != nullptr && j < length; j += kWarp)
      a.result.slots[at + j] = b.slots[starts[k] + j];
    for (int j = 1 + lane; j < length; j += kWarp) {
      const int32_t slot = b.slots[starts[k] + j];
      a.result.tokens[at + j] = b.tokens[slot];
      sums[j] = static_cast<const float*>(b.sums)[slot];
    }
  }
  __threadfence_system();  // the host sees the hypotheses before it sees that they are there
  __syncwarp();
  if (lane == 0) {
    static_cast<volatile int32_t*>(a.result.done)[sentence.result] = written > 0 ? written : -1;
  }
}

template <class T, int N>
void launch(const Context& ctx, const BeamStepArgs& a) {
  const int threads = a.vocab >= 16384 ? 512 : 256;
  const auto extend = a.draws ? beam_extend_kernel<T, N, true> : beam_extend_kernel<T, N, false>;
  extend<<<static_cast<unsigned>(a.sentences * a.beam), threads, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("beam_extend_kernel");
  static_assert(kMaxBeam <= 2 * kWarp);
  const auto merge = a.beam <= kWarp ? beam_merge_kernel<1> : beam_merge_kernel<2>;
  merge<<<static_cast<unsigned>(a.sentences), kWarp, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("beam_merge_kernel");
}

}  // namespace

void beam_step_cuda(const Context& ctx, const BeamStepArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kWidth<T>;
    aligned16(a.logits) && a.ld % N == 0 ? launch<T, N>(ctx, a) : launch<T, 1>(ctx, a);
  });
}

}  // namespace saturate::kernels
