// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/decode/beam_step_impl.h"
#include "kernels/decode/ranking.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// One block, one row: log-sum-exp and the best extensions. Every thread knows its best column; the
// block takes the best of these, and the thread that held it looks through its columns again for
// the next. So a row is read once, and a 1/threads of it once more for each candidate.
template <class T, int N>
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
  const T* const z = static_cast<const T*>(a.logits) + row * a.ld;
  RowScan scan = scan_row<T, N>(z, static_cast<int>(a.vocab), a.banned);
  const float top = block_max(scan.top, scratch);
  const float sum = block_sum(scan.sum * __expf(scan.top - top), scratch);
  const float shift = before - (top + logf(sum));
  if (a.state.positions[row] + 1 >= a.state.limits[row / beam]) {
    for (int k = threadIdx.x; k < beam; k += blockDim.x) {
      scores[k] = to_float(z[a.eos]) + shift;
      ids[k] = k == 0 && scores[k] == scores[k] ? a.eos : -1;
    }
    return;
  }
  for (int k = 0; k < beam; ++k) {
    const uint64_t best = block_best(scan.best, rank_scratch);
    if (threadIdx.x == 0) {
      const float score = ranked_value(best) + shift;
      scores[k] = score;
      ids[k] = best == 0 || score != score ? -1 : ranked_index(best);
    }
    if (k + 1 < beam && best != 0 && scan.best == best) {
      scan.best = next_best<T, N>(z, static_cast<int>(a.vocab), a.banned, best);
    }
  }
}

// One warp, one sentence: lane k makes the new hypothesis k.
__global__ void __launch_bounds__(kWarp) beam_merge_kernel(BeamStepArgs a) {
  __shared__ int32_t columns[kMaxBeam][kWarp];
  __shared__ int32_t parent_starts[kMaxBeam], starts[kMaxBeam];
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const BeamState& b = a.state;
  const int s = blockIdx.x, lane = threadIdx.x, beam = static_cast<int>(a.beam);
  const int64_t first = static_cast<int64_t>(s) * beam, row = first + lane;
  const bool mine = lane < beam;
  const bool was_ended = mine ? b.finished[row] != 0 : true;
  const uint32_t ended_mask = __ballot_sync(kAll, was_ended);
  if (ended_mask == kAll) return;
  const int t = b.positions[first], limit = b.limits[s];
  float* const scores = static_cast<float*>(b.scores);
  const float* const candidate_scores =
      static_cast<const float*>(a.candidate_scores) + first * beam;
  const int32_t* const candidate_ids = a.candidate_ids + first * beam;
  const int old_length = mine ? b.lengths[row] : 0;
  if (mine) starts[lane] = b.starts[row];
  __syncwarp();  // starts are there

  // The beam largest of the candidates, one after the other.
  uint64_t chosen = 0, last = ~uint64_t{0};
  for (int k = 0; k < beam; ++k) {
    uint64_t best = 0;
    for (int i = lane; i < beam * beam; i += kWarp) {
      const int parent = i / beam;
      uint64_t rank = 0;
      if ((ended_mask >> parent & 1u) != 0) {
        if (i % beam == 0) rank = rank_of(scores[first + parent], i);
      } else if (candidate_ids[i] >= 0) {
        rank = rank_of(candidate_scores[i], i);
      }
      if (rank < last && rank > best) best = rank;
    }
    last = warp_best(best);
    if (lane == k) chosen = last;
    if (last == 0) break;
  }
  const int index = chosen != 0 ? ranked_index(chosen) : 0, parent = index / beam;
  const bool kept = chosen != 0 && (ended_mask >> parent & 1u) != 0;
  const int token = chosen != 0 && !kept ? candidate_ids[index] : a.eos;
  const float score = chosen != 0 ? ranked_value(chosen) : kNever;
  const int parent_length = __shfl_sync(kAll, old_length, parent);
  const int length = kept ? parent_length : t + 1;
  const bool ended = token == a.eos;
  if (mine) {
    parent_starts[lane] = starts[parent];
    b.ids[row] = token;
    b.positions[row] = t + 1;
    b.lengths[row] = length;
    scores[row] = score;
    if (!ended) b.tokens[starts[lane] + t + 1] = token;
  }
  __syncwarp();  // parent_starts are there; every lane has read the old scores and lengths

  // Histories change places by columns: a lane reads all of a column before it writes it.
  for (int j = lane; j <= t; j += kWarp) {
    for (int k = 0; k < beam; ++k) {
      const int32_t own = parent_starts[k] + j;
      columns[k][lane] = j == t ? own : b.slots[own];
    }
    for (int k = 0; k < beam; ++k) b.slots[starts[k] + j] = columns[k][lane];
  }

  // Log-probabilities only fall: an open hypothesis is worth most at the greatest length.
  const float value = score / powf(static_cast<float>(ended ? length : limit), a.length_penalty);
  const bool open = mine && !ended;
  const float best_open = warp_max(open ? value : kNever);
  const float best_ended = warp_max(mine && ended ? value : kNever);
  const bool done = !__any_sync(kAll, open) || (best_ended >= best_open && best_ended > kNever);
  if (mine) b.finished[row] = ended || done ? 1 : 0;
  if (!done) return;
  const uint32_t winners = __ballot_sync(kAll, mine && ended && value == best_ended);
  const int winner = winners != 0 ? __ffs(static_cast<int>(winners)) - 1 : 0;
  const int best_length = __shfl_sync(kAll, length, winner);
  __syncwarp();  // slots that other lanes moved are read below
  int32_t* const result = a.result + s * a.result_stride;
  for (int j = 1 + lane; j < best_length; j += kWarp) {
    result[j] = b.tokens[b.slots[starts[winner] + j]];
  }
  __threadfence_system();  // the host sees the tokens before the length
  __syncwarp();
  if (lane == 0) *static_cast<volatile int32_t*>(result) = best_length;
}

template <class T, int N>
void launch(const Context& ctx, const BeamStepArgs& a) {
  const int threads = a.vocab >= 16384 ? 512 : 256;
  beam_extend_kernel<T, N>
      <<<static_cast<unsigned>(a.sentences * a.beam), threads, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("beam_extend_kernel");
  beam_merge_kernel<<<static_cast<unsigned>(a.sentences), kWarp, 0, cuda::stream_of(ctx)>>>(a);
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
