// SPDX-License-Identifier: Apache-2.0
// A warp takes a row: lane l holds the logits l, l + 32, ...
#include "kernels/device/reduce.cuh"
#include "kernels/experts/experts_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256, kWarpsOfBlock = kThreads / kWarp;
constexpr int kNone = 1 << 20;  // behind all experts

struct Best {
  float logit;
  int expert;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.expert < a.expert) ? b : a;
}

// The softmax of a row and its k choices, as RoutedRow of the CPU. Every lane has the choices.
template <int kPerLane>
struct RoutedRow {
  float p[kPerLane];
  int choice[kMostChoices];
  float gate[kMostChoices];
  float lse;

  __device__ __forceinline__ RoutedRow(const float* logits, int experts, int k) {
    const int lane = threadIdx.x % kWarp;
    float l[kPerLane];
    float top = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = i * kWarp + lane;
      l[i] = e < experts ? logits[e] : -CUDART_INF_F;
      top = fmaxf(top, l[i]);
    }
    top = warp_max(top);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      p[i] = i * kWarp + lane < experts ? expf(l[i] - top) : 0.0f;
      sum += p[i];
    }
    sum = warp_sum(sum);
    lse = top + logf(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) p[i] /= sum;
    float gates = 0.0f;
    unsigned taken = 0;  // bit i: element i of this lane
#pragma unroll
    for (int j = 0; j < kMostChoices; ++j) {
      if (j >= k) break;
      Best best{-CUDART_INF_F, kNone};
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int e = i * kWarp + lane;
        // A logit that is no number comes last, but is an expert.
        if (e < experts && (taken >> i & 1) == 0)
          best = better(best, {l[i] == l[i] ? l[i] : -CUDART_INF_F, e});
      }
#pragma unroll
      for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        best = better(best, {__shfl_xor_sync(0xFFFFFFFFu, best.logit, offset),
                             __shfl_xor_sync(0xFFFFFFFFu, best.expert, offset)});
      }
      choice[j] = best.expert;
      float own = 0.0f;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (i * kWarp + lane != best.expert) continue;
        own = p[i];
        taken |= 1u << i;
      }
      gate[j] = __shfl_sync(0xFFFFFFFFu, own, best.expert % kWarp);
      gates += gate[j];
    }
    if (k > 1) {
#pragma unroll
      for (int j = 0; j < kMostChoices; ++j) {
        if (j < k) gate[j] /= gates;
      }
    }
  }
};

__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / kWarp;
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) route_tokens_fwd_kernel(RouteTokensArgs a) {
  const int lane = threadIdx.x % kWarp;
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  const int k = static_cast<int>(a.k);
  int32_t* choices = a.choices + r * k;
  float* gates = static_cast<float*>(a.gates) + r * k;
  if (r >= valid_rows(a.valid, a.rng.first_row, a.rows)) {
    if (lane < k) choices[lane] = -1, gates[lane] = 0.0f;
    return;
  }
  const RoutedRow<kPerLane> row(static_cast<const float*>(a.logits) + r * a.experts,
                                static_cast<int>(a.experts), k);
  if (lane != 0) return;
#pragma unroll
  for (int j = 0; j < kMostChoices; ++j) {
    if (j >= k) break;
    const bool stays = j != 1 || !a.random_second || keeps_second(a, r, row.gate[1]);
    choices[j] = stays ? row.choice[j] : -1;
    gates[j] = row.gate[j];
  }
}

// f[e] of this lane's experts: their shares of all counts.
template <int kPerLane>
__device__ __forceinline__ void load_shares(float (&f)[kPerLane], const int32_t* counts,
                                            int experts) {
  const int lane = threadIdx.x % kWarp;
  float all = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane;
    f[i] = counts != nullptr && e < experts ? static_cast<float>(counts[e]) : 0.0f;
    all += f[i];
  }
  all = warp_sum(all);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) f[i] = all > 0.0f ? f[i] / all : 0.0f;
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) route_tokens_bwd_kernel(RouteTokensBackwardArgs b) {
  const RouteTokensArgs& a = b.forward;
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(a.experts);
  const int k = static_cast<int>(a.k);
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  float* d_logits = static_cast<float*>(b.d_logits) + r * experts;
  if (r >= valid_rows(a.valid, a.rng.first_row, a.rows)) {
    for (int e = lane; e < experts; e += kWarp) d_logits[e] = 0.0f;
    return;
  }
  const RoutedRow<kPerLane> row(static_cast<const float*>(a.logits) + r * experts, experts, k);
  const float* d_gates = static_cast<const float*>(b.d_gates) + r * k;
  const float scale = b.grad_scale * (b.device_scale != nullptr ? *b.device_scale : 1.0f);
  const float balance = b.balance_loss * static_cast<float>(experts) * scale;
  const float z = 2.0f * b.z_loss * scale * row.lse;
  float f[kPerLane];
  load_shares(f, b.counts, experts);
  float mean = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mean += f[i] * row.p[i];
  mean = warp_sum(mean);
  float gates = 0.0f;
#pragma unroll
  for (int j = 0; j < kMostChoices; ++j) {
    if (j < k) gates += d_gates[j] * row.gate[j];
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane;
    float d = row.p[i] * (balance * (f[i] - mean) + z);
    if (k == 1) d -= gates * row.p[i];
#pragma unroll
    for (int j = 0; j < kMostChoices; ++j) {
      if (j < k && row.choice[j] == e) d += k == 1 ? gates : row.gate[j] * (d_gates[j] - gates);
    }
    if (e < experts) d_logits[e] = d;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) routing_statistics_fwd_kernel(RoutingStatisticsArgs a) {
  __shared__ int32_t counts[kMostExperts];
  __shared__ double sums[kRoutingTotals][kWarpsOfBlock];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int experts = static_cast<int>(a.experts), k = static_cast<int>(a.k);
  for (int e = threadIdx.x; e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();  // the counters are clear
  float f[kPerLane];
  load_shares(f, a.counts, experts);
  const int64_t valid = valid_rows(a.valid, a.first_row, a.rows);
  double sum[kRoutingTotals] = {};
  for (int64_t r = row_of_warp(); r < valid; r += int64_t{kRoutingBlocks} * kWarpsOfBlock) {
    const RoutedRow<kPerLane> row(static_cast<const float*>(a.logits) + r * experts, experts, 1);
    float entropy = 0.0f, balance = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (row.p[i] > 0.0f) entropy -= row.p[i] * logf(row.p[i]);
      balance += f[i] * row.p[i];
    }
    entropy = warp_sum(entropy);
    balance = warp_sum(balance);
    const int choice = lane < k ? a.choices[r * k + lane] : -1;
    // Integers: the order of the additions does not matter.
    if (choice >= 0) atomicAdd(&counts[choice], 1);
    const bool left_out = lane < k && choice < 0;
    const bool dropped = choice >= 0 && a.kept != nullptr && a.kept[r * k + lane] < 0;
    sum[0] += 1;
    sum[1] += __popc(__ballot_sync(0xFFFFFFFFu, left_out));
    sum[2] += __popc(__ballot_sync(0xFFFFFFFFu, dropped));
    sum[3] += entropy;
    sum[4] += static_cast<double>(balance) * experts;
    sum[5] += static_cast<double>(row.lse) * row.lse;
  }
  if (lane == 0) {
    for (int i = 0; i < kRoutingTotals; ++i) sums[i][warp] = sum[i];
  }
  __syncthreads();  // all warps' sums and counts are there
  double* totals = a.totals + static_cast<int64_t>(blockIdx.x) * (experts + kRoutingTotals);
  for (int e = threadIdx.x; e < experts; e += kThreads) totals[e] += counts[e];
  if (threadIdx.x < kRoutingTotals) {
    double all = 0;
    for (int w = 0; w < kWarpsOfBlock; ++w) all += sums[threadIdx.x][w];
    totals[experts + threadIdx.x] += all;
  }
}

// Calls body(std::integral_constant) for the logits that a lane holds.
template <class Body>
void with_per_lane(int64_t experts, const Body& body) {
  if (experts <= kWarp) return body(std::integral_constant<int, 1>{});
  if (experts <= 2 * kWarp) return body(std::integral_constant<int, 2>{});
  body(std::integral_constant<int, static_cast<int>(kMostExperts) / kWarp>{});
}

unsigned blocks_of(int64_t rows) {
  return static_cast<unsigned>((rows + kWarpsOfBlock - 1) / kWarpsOfBlock);
}

}  // namespace

void route_tokens_cuda(const Context& ctx, const RouteTokensArgs& a) {
  with_per_lane(a.experts, [&](auto n) {
    route_tokens_fwd_kernel<n.value><<<blocks_of(a.rows), kThreads, 0, cuda::stream_of(ctx)>>>(a);
  });
  SAT_CUDA_LAUNCHED("route_tokens");
}

void route_tokens_backward_cuda(const Context& ctx, const RouteTokensBackwardArgs& b) {
  with_per_lane(b.forward.experts, [&](auto n) {
    route_tokens_bwd_kernel<n.value>
        <<<blocks_of(b.forward.rows), kThreads, 0, cuda::stream_of(ctx)>>>(b);
  });
  SAT_CUDA_LAUNCHED("route_tokens_backward");
}

void routing_statistics_cuda(const Context& ctx, const RoutingStatisticsArgs& a) {
  with_per_lane(a.experts, [&](auto n) {
    routing_statistics_fwd_kernel<n.value>
        <<<kRoutingBlocks, kThreads, 0, cuda::stream_of(ctx)>>>(a);
  });
  SAT_CUDA_LAUNCHED("routing_statistics");
}

}  // namespace saturate::kernels
