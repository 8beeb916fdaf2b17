// SPDX-License-Identifier: Apache-2.0
// Flash attention forward in CuTe: 128 queries of a head to a block, tiles of 128 keys.
//
// CuTe describes where things lie by layouts, functions from coordinates to offsets or to other
// coordinates, and everything that hopper/ writes out as addresses follows from composing them:
// what TMA is given, the descriptors of wgmma, which thread holds which number. Comments
// give the shape of each tensor. Coordinates: i query, j key, d element of a head, n tile of keys.
//
// Three warpgroups: one brings tiles, two own 64 queries each. The scores of tile n are multiplied
// together with the values of tile n+1 (last keys first), so that softmax runs under a product.
#pragma once
#include <cutlass/arch/reg_reconfig.h>

#include <cute/tensor.hpp>

#include "kernels/attention/mma/device.cuh"
#include "kernels/device/shared_memory.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

using namespace cute;

template <class T, int kD>
struct CuteTraits {
  using Queries = Int<128>;
  using Keys = Int<128>;
  using D = Int<kD>;
  using Stages = Int<2>;
  static constexpr int kThreads = 384, kConsumers = 256;

  // Tiles in shared memory: rows of 128 bytes, swizzled, as both TMA and wgmma know it.
  using Atom = GMMA::Layout_K_SW128_Atom<T>;
  using TileQ = decltype(tile_to_shape(Atom{}, Shape<Queries, D>{}));       // (i, d)
  using TileK = decltype(tile_to_shape(Atom{}, Shape<Keys, D, Stages>{}));  // (j, d, stage)
  // The same values, read as (d, j, stage): a transpose is a layout composed with a layout.
  using TransposedV = decltype(composition(
      TileK{}, make_layout(Shape<D, Keys, Stages>{}, Stride<Keys, _1, Int<Keys{} * kD>>{})));

  // S = Q K' from shared memory, O = P V with P in registers; two warpgroups along the queries.
  using MultiplyScores = decltype(make_tiled_mma(
      GMMA::ss_op_selector<T, T, float, Shape<Queries, Keys, D>>(), Layout<Shape<_2, _1, _1>>{}));
  using MultiplyValues = decltype(make_tiled_mma(
      GMMA::rs_op_selector<T, T, float, Shape<Queries, D, Keys>, GMMA::Major::K, GMMA::Major::MN>(),
      Layout<Shape<_2, _1, _1>>{}));

  // A matrix in memory as (row, d, head), and who copies tiles of it.
  static auto matrix(const void* data, int64_t rows, int64_t stride, int64_t heads) {
    return make_tensor(make_gmem_ptr(static_cast<const T*>(data)),
                       make_shape(static_cast<int>(rows), D{}, static_cast<int>(heads)),
                       make_stride(stride, _1{}, D{}));
  }
  static auto copy_of(const void* data, int64_t rows, int64_t stride, int64_t heads) {
    return make_tma_copy(SM90_TMA_LOAD{}, matrix(data, rows, stride, heads),
                         TileK{}(_, _, _0{}));  // queries and keys: tiles of one shape
  }
  using Copy = decltype(copy_of(nullptr, 0, 0, 0));
};

template <class T, int kD>
struct CuteProblem {
  typename CuteTraits<T, kD>::Copy q, k, v;
  AttentionArgs a;
  int tiles;  // of queries of the longest sequence
};

template <class T, int kD>
struct CuteShared {
  using Traits = CuteTraits<T, kD>;
  alignas(1024) array_aligned<T, cosize_v<typename Traits::TileQ>> q;
  alignas(1024) array_aligned<T, cosize_v<typename Traits::TileK>> k, v;
  // full: TMA has written; empty: both consumers have read.
  uint64_t q_full, k_full[2], k_empty[2], v_full[2], v_empty[2];
};

// An accumulator of wgmma has shape ((2, 2, N/8), 1, 1): two neighbours, two rows eight apart,
// groups of eight columns. The same registers as (row, column):
template <class Accumulator>
CUTE_DEVICE auto by_row(Accumulator&& x) {
  const auto l = x.layout();
  return make_tensor(x.data(), make_layout(get<0, 1>(l), make_layout(get<0, 0>(l), get<0, 2>(l))));
}

// Scores become probabilities relative to the largest so far; `shrink` is what sums so far shrink
// by. All in powers of two.
template <class Scores, class Rows>
CUTE_DEVICE void softmax_step(Scores& scores, Rows& top, Rows& sum, Rows& shrink, float scale) {
  Tensor s = by_row(scores);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(s); ++i) {
    float high = top(i);
    CUTE_UNROLL
    for (int j = 0; j < size<1>(s); ++j) high = max(high, s(i, j) * scale);
    high = max(high, __shfl_xor_sync(~0u, high, 1));  // four lanes share a row
    high = max(high, __shfl_xor_sync(~0u, high, 2));
    const float base = high == -INFINITY ? 0.0f : high;  // no key seen yet
    shrink(i) = exp2_fast(top(i) - base);
    top(i) = high;
    float total = 0.0f;
    CUTE_UNROLL
    for (int j = 0; j < size<1>(s); ++j) {
      s(i, j) = exp2_fast(s(i, j) * scale - base);
      total += s(i, j);
    }
    sum(i) = sum(i) * shrink(i) + total;
  }
}

// The producer: Q once, then K and V of every tile as slots become free.
template <class T, int kD>
CUTE_DEVICE void bring_tiles(const CuteProblem<T, kD>& p, CuteShared<T, kD>& shared, Rows queries,
                             Rows keys, int first_query, int head, int key_head, int tiles) {
  using P = CuteTraits<T, kD>;
  // Coordinates of the whole matrix, moved to the sequence, then cut in tiles: (j, d, n).
  const auto tiles_of = [](const auto& copy, int rows, int heads, int first, int at) {
    Tensor all = copy.get_tma_tensor(make_shape(rows, typename P::D{}, heads));
    return local_tile(domain_offset(make_coord(first, 0), all(_, _, at)),
                      Shape<typename P::Keys, typename P::D>{}, make_coord(_, 0));
  };
  const int q_rows = static_cast<int>(p.a.q_rows), k_rows = static_cast<int>(p.a.k_rows);
  const int heads = static_cast<int>(p.a.heads), kv_heads = static_cast<int>(p.a.kv_heads);
  Tensor g_q = tiles_of(p.q, q_rows, heads, queries.first + first_query, head);
  Tensor g_k = tiles_of(p.k, k_rows, kv_heads, keys.first, key_head);
  Tensor g_v = tiles_of(p.v, k_rows, kv_heads, keys.first, key_head);
  Tensor s_q = make_tensor(make_smem_ptr(shared.q.data()), typename P::TileQ{});
  Tensor s_k = make_tensor(make_smem_ptr(shared.k.data()), typename P::TileK{});
  Tensor s_v = make_tensor(make_smem_ptr(shared.v.data()), typename P::TileK{});
  // From, to: (what one copy moves, tile or stage).
  auto [from_q, to_q] = tma_partition(p.q, group_modes<0, 2>(s_q), group_modes<0, 2>(g_q));
  auto [from_k, to_k] = tma_partition(p.k, group_modes<0, 2>(s_k), group_modes<0, 2>(g_k));
  auto [from_v, to_v] = tma_partition(p.v, group_modes<0, 2>(s_v), group_modes<0, 2>(g_v));

  constexpr uint32_t kBytes = sizeof(T) * 128 * kD;
  set_barrier_transaction_bytes(shared.q_full, kBytes);
  copy(p.q.with(shared.q_full), from_q(_, 0), to_q);
  for (int step = 0; step < tiles; ++step) {
    const int stage = step % 2, round = step / 2, n = tiles - 1 - step;
    wait_barrier(shared.k_empty[stage], (round & 1) ^ 1);  // the first round passes at once
    set_barrier_transaction_bytes(shared.k_full[stage], kBytes);
    copy(p.k.with(shared.k_full[stage]), from_k(_, n), to_k(_, stage));
    wait_barrier(shared.v_empty[stage], (round & 1) ^ 1);
    set_barrier_transaction_bytes(shared.v_full[stage], kBytes);
    copy(p.v.with(shared.v_full[stage]), from_v(_, n), to_v(_, stage));
  }
}

// Two warpgroups, 64 queries each.
template <class T, int kD>
CUTE_DEVICE void attend(const CuteProblem<T, kD>& p, CuteShared<T, kD>& shared, Rows queries,
                        Rows keys, int first_query, int head, int tiles) {
  using P = CuteTraits<T, kD>;
  const AttentionArgs& a = p.a;
  const int thread = static_cast<int>(threadIdx.x);
  Tensor s_q = make_tensor(make_smem_ptr(shared.q.data()), typename P::TileQ{});
  Tensor s_k = make_tensor(make_smem_ptr(shared.k.data()), typename P::TileK{});
  Tensor s_v = make_tensor(make_smem_ptr(shared.v.data()), typename P::TileK{});
  Tensor s_v_transposed = make_tensor(make_smem_ptr(shared.v.data()), typename P::TransposedV{});

  // What this thread holds of each operand: for shared ones descriptors, for the others registers.
  typename P::MultiplyScores multiply_scores;
  typename P::MultiplyValues multiply_values;
  auto scores_part = multiply_scores.get_slice(thread);
  auto values_part = multiply_values.get_slice(thread);
  Tensor f_q = scores_part.make_fragment_A(scores_part.partition_A(s_q));
  Tensor f_k = scores_part.make_fragment_B(scores_part.partition_B(s_k));             // (.., stage)
  Tensor f_v = values_part.make_fragment_B(values_part.partition_B(s_v_transposed));  // (.., stage)
  Tensor s = partition_fragment_C(multiply_scores, Shape<typename P::Queries, typename P::Keys>{});
  Tensor o = partition_fragment_C(multiply_values, Shape<typename P::Queries, typename P::D>{});
  // Probabilities as a left operand, ((2, 2, 2), 1, keys / 16): element for element in the order of
  // the scores' ((2, 2, keys / 8), 1, 1), so nothing moves between threads.
  Tensor weights = make_tensor<T>(
      partition_shape_A(multiply_values, Shape<typename P::Queries, typename P::Keys>{}));
  // Which (i, j) each score is: the identity, cut up in the same way.
  Tensor where = by_row(scores_part.partition_C(
      make_identity_tensor(Shape<typename P::Queries, typename P::Keys>{})));

  auto top = make_tensor<float>(Shape<_2>{});
  auto sum = make_tensor_like(top), shrink = make_tensor_like(top);
  fill(top, -INFINITY);
  clear(sum);
  clear(o);
  const float scale = a.scale * kLog2e;

  const auto start_scores = [&](int stage) {
    warpgroup_fence_operand(s);
    warpgroup_arrive();
    multiply_scores.accumulate_ = GMMA::ScaleOut::Zero;
    CUTE_UNROLL
    for (int d = 0; d < size<2>(f_q); ++d) {
      gemm(multiply_scores, f_q(_, _, d), f_k(_, _, d, stage), s);
      multiply_scores.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_commit_batch();
  };
  const auto start_values = [&](int stage) {
    warpgroup_fence_operand(o);
    warpgroup_arrive();
    gemm(multiply_values, weights, f_v(_, _, _, stage), o);
    warpgroup_commit_batch();
  };
  const auto weigh = [&](int n) {
    const int first_key = n * typename P::Keys{};
    if (first_key + typename P::Keys{} > keys.count ||
        (a.causal && first_key + typename P::Keys{} > first_query + 1)) {
      Tensor rows = by_row(s);
      CUTE_UNROLL
      for (int e = 0; e < size(rows); ++e) {
        const int i = first_query + get<0>(where(e)), j = first_key + get<1>(where(e));
        if (j >= keys.count || (a.causal && j > i)) rows(e) = -INFINITY;
      }
    }
    softmax_step(s, top, sum, shrink, scale);
  };
  const auto to_weights = [&] {
    CUTE_UNROLL
    for (int e = 0; e < size(s); ++e) weights(e) = static_cast<T>(s(e));
  };
  // Rows after the last key belong to another sequence, and 0 times what they hold may be NaN.
  const auto clear_values = [&](int stage, int valid) {
    for (int e = thread; e < (typename P::Keys{} - valid) * kD; e += P::kConsumers)
      s_v(valid + e / kD, e % kD, stage) = T(0.0f);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the tensor cores read
    asm volatile("bar.sync 1, 256;" ::: "memory");
  };
  const auto release = [&](uint64_t& empty) {
    if (thread % 128 == 0) arrive_barrier(empty);
  };

  wait_barrier(shared.q_full, 0);
  if (tiles > 0) {
    wait_barrier(shared.k_full[0], 0);
    start_scores(0);
    warpgroup_wait<0>();
    warpgroup_fence_operand(s);
    release(shared.k_empty[0]);
    weigh(tiles - 1);
    to_weights();
  }
  for (int step = 1; step <= tiles; ++step) {  // values of the tile before, scores of this one
    const int stage = step % 2, before = stage ^ 1;
    wait_barrier(shared.v_full[before], (step - 1) / 2 & 1);
    if (step == 1 && tiles * typename P::Keys{} > keys.count)
      clear_values(before, keys.count - (tiles - 1) * typename P::Keys{});
    if (step == tiles) {
      start_values(before);
      warpgroup_wait<0>();
      warpgroup_fence_operand(o);
      break;
    }
    wait_barrier(shared.k_full[stage], step / 2 & 1);
    start_scores(stage);
    start_values(before);
    warpgroup_wait<1>();  // the scores
    warpgroup_fence_operand(s);
    release(shared.k_empty[stage]);
    weigh(tiles - 1 - step);
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    release(shared.v_empty[before]);
    Tensor rows = by_row(o);
    CUTE_UNROLL
    for (int i = 0; i < size<0>(rows); ++i) {
      CUTE_UNROLL
      for (int d = 0; d < size<1>(rows); ++d) rows(i, d) *= shrink(i);
    }
    to_weights();
  }

  // O over the sums, rounded, in pairs to memory; and the logarithms of the sums.
  Tensor rounded = make_tensor<T>(shape(o));
  Tensor rows = by_row(o);
  Tensor rounded_rows = by_row(rounded);
  Tensor g_o =
      make_tensor(make_gmem_ptr(row_of<T>(a.o, queries.first + first_query, a.o_stride, head, kD)),
                  Shape<typename P::Queries, typename P::D>{}, make_stride(a.o_stride, _1{}));
  Tensor to = by_row(values_part.partition_C(g_o));
  Tensor which = by_row(
      values_part.partition_C(make_identity_tensor(Shape<typename P::Queries, typename P::D>{})));
  CUTE_UNROLL
  for (int i = 0; i < size<0>(rows); ++i) {
    float total = sum(i);
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    CUTE_UNROLL
    for (int d = 0; d < size<1>(rows); ++d)
      rounded_rows(i, d) = static_cast<T>(rows(i, d) * factor);
    const int query = first_query + get<0>(which(i, 0));
    if (query >= queries.count) continue;
    copy(AutoVectorizingCopyWithAssumedAlignment<32>{}, rounded_rows(i, _), to(i, _));
    if (thread % 4 == 0)
      static_cast<float*>(a.lse)[head * a.q_rows + queries.first + query] =
          total > 0.0f ? (top(i) + log2f(total)) * kLn2 : -INFINITY;
  }
}

template <class T, int kD>
__global__ void __launch_bounds__(CuteTraits<T, kD>::kThreads, 1)
    attention_forward_cute_kernel(const __grid_constant__ CuteProblem<T, kD> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<CuteShared<T, kD>*>(memory);
  const AttentionArgs& a = p.a;
  // The last tiles of a causal head are the longest: they begin first.
  const int sequence = static_cast<int>(blockIdx.x) / p.tiles;
  const int tile = p.tiles - 1 - static_cast<int>(blockIdx.x) % p.tiles;
  const int head = static_cast<int>(blockIdx.y), first_query = tile * 128;
  if (sequence == a.sequences) {
    using Element = std::conditional_t<std::is_same_v<T, half_t>, __half, __nv_bfloat16>;
    return zero_tail<Element>(a, head, tile, p.tiles);
  }
  const Rows queries = rows_of(a.cu_q, sequence), keys = rows_of(a.cu_k, sequence);
  if (first_query >= queries.count) return;
  const int seen = a.causal ? min(keys.count, first_query + 128) : keys.count;
  const int tiles = (seen + 127) / 128;

  if (threadIdx.x == 0) {
    initialize_barrier(shared.q_full, 1);
    for (int s = 0; s < 2; ++s) {
      initialize_barrier(shared.k_full[s], 1);
      initialize_barrier(shared.v_full[s], 1);
      initialize_barrier(shared.k_empty[s], 2);
      initialize_barrier(shared.v_empty[s], 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= CuteTraits<T, kD>::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (threadIdx.x == CuteTraits<T, kD>::kConsumers)
      bring_tiles(p, shared, queries, keys, first_query, head,
                  head / static_cast<int>(a.heads / a.kv_heads), tiles);
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    attend(p, shared, queries, keys, first_query, head, tiles);
  }
#endif
}

template <class T, int kD>
void launch_forward_cute(const AttentionArgs& a, cudaStream_t stream) {
  using P = CuteTraits<T, kD>;
  const auto tiles = static_cast<int>(a.max_q > 0 ? (a.max_q + 127) / 128 : 1);
  const CuteProblem<T, kD> p{P::copy_of(a.q, a.q_rows, a.q_stride, a.heads),
                             P::copy_of(a.k, a.k_rows, a.k_stride, a.kv_heads),
                             P::copy_of(a.v, a.k_rows, a.v_stride, a.kv_heads), a, tiles};
  constexpr auto kKernel = attention_forward_cute_kernel<T, kD>;
  constexpr int kBytes = sizeof(CuteShared<T, kD>);
  SAT_CUDA(allow_shared_memory<kKernel>(kBytes));
  const dim3 grid(static_cast<unsigned>((a.sequences + 1) * tiles), static_cast<unsigned>(a.heads));
  kKernel<<<grid, P::kThreads, kBytes, stream>>>(p);
  SAT_CUDA_LAUNCHED("attention_forward_cute");
}

}  // namespace saturate::kernels::attention
