// SPDX-License-Identifier: Apache-2.0
// What attention.h demands of its arguments; nothing here depends on an implementation.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/attention/impl.h"

namespace saturate::kernels {
namespace {

// The 2^16 elements a row of random numbers has in the contract.
constexpr int64_t kMaxDropoutKeys = int64_t{1} << 16;

[[noreturn]] void refuse(const char* op, const std::string& what) {
  throw Error(Errc::invalid_argument, op, what);
}

void check_stride(const char* op, const char* name, int64_t stride, int64_t heads,
                  int64_t head_size) {
  if (stride < heads * head_size)
    refuse(op, fmt::format("{} is {}, but a row holds {} heads of {} elements: pass at least {}",
                           name, stride, heads, head_size, heads * head_size));
}

void check_bias(const char* op, const char* name, int64_t sequence, int64_t head, int64_t row,
                int64_t max_k) {
  if (sequence < 0 || head < 0 || row < 0)
    refuse(op, fmt::format("{}_sequence_stride {}, {}_head_stride {} and {}_row_stride {} must not "
                           "be negative (0 shares the values)",
                           name, sequence, name, head, name, row));
  if (row != 0 && row < max_k)
    refuse(op, fmt::format("{}_row_stride is {}, but a row holds max_k = {} keys: pass at least "
                           "that, or 0 to share one row",
                           name, row, max_k));
}

void check_features(const char* op, const AttentionArgs& a) {
  if (a.window_left < 0 || a.window_right < 0)
    refuse(op, fmt::format("window_left is {} and window_right {}: neither may be negative; "
                           "kUnlimitedWindow removes a bound",
                           a.window_left, a.window_right));
  if (!(a.soft_cap >= 0.0f) || !std::isfinite(a.soft_cap))
    refuse(op,
           fmt::format("soft_cap is {}; pass a positive finite cap, or 0 for none", a.soft_cap));
  if (!(a.rotary_base >= 0.0f) || !std::isfinite(a.rotary_base))
    refuse(op, fmt::format("rotary_base is {}; pass a positive finite base, or 0 for none",
                           a.rotary_base));
  if (a.rotary_base > 0.0f && a.head_size % 2 != 0)
    refuse(op, fmt::format("head_size is {} with rotary_base {}: rotation pairs the halves of a "
                           "head, so it must be even",
                           a.head_size, a.rotary_base));
  if (a.bias != nullptr && a.bias_dtype != a.dtype && a.bias_dtype != DType::f32)
    refuse(op, fmt::format("bias_dtype is {}, but dtype is {}: pass a bias in {} or f32",
                           name_of(a.bias_dtype), name_of(a.dtype), name_of(a.dtype)));
  if (a.bias != nullptr)
    check_bias(op, "bias", a.bias_sequence_stride, a.bias_head_stride, a.bias_row_stride, a.max_k);
  if ((a.block_mask == nullptr) != (a.block_size == 0) || a.block_size < 0)
    refuse(op, fmt::format("block_size is {} and block_mask is {}: pass both (a size of at least 1)"
                           " or neither",
                           a.block_size, a.block_mask == nullptr ? "null" : "set"));
  if (a.block_mask_sequence_stride < 0 || a.block_mask_head_stride < 0)
    refuse(op, fmt::format("block_mask_sequence_stride is {} and block_mask_head_stride {}: "
                           "neither may be negative (0 shares the mask)",
                           a.block_mask_sequence_stride, a.block_mask_head_stride));
}

}  // namespace

void check_attention(const char* op, const AttentionArgs& a) {
  if (a.dtype == DType::i32) refuse(op, "dtype is i32; pass f64, f32, bf16 or f16");
  if (a.sequences < 0 || a.q_rows < 0 || a.k_rows < 0 || a.max_q < 0 || a.max_k < 0)
    refuse(op, fmt::format("sequences {}, q_rows {}, k_rows {}, max_q {} and max_k {} must not be "
                           "negative",
                           a.sequences, a.q_rows, a.k_rows, a.max_q, a.max_k));
  if (a.heads < 1 || a.kv_heads < 1 || a.head_size < 1 || a.heads % a.kv_heads != 0)
    refuse(op,
           fmt::format("heads {}, kv_heads {}, head_size {}: each must be at least 1 and kv_heads "
                       "must divide heads",
                       a.heads, a.kv_heads, a.head_size));
  check_stride(op, "q_stride", a.q_stride, a.heads, a.head_size);
  if (a.v_head_size < 0)
    refuse(op, fmt::format("v_head_size is {}; pass the size of v's heads, or 0 for head_size",
                           a.v_head_size));
  const int64_t v_head_size = attention_v_head_size(a);
  check_stride(op, "o_stride", a.o_stride, a.heads, v_head_size);
  check_stride(op, "k_stride", a.k_stride, a.kv_heads, a.head_size);
  check_stride(op, "v_stride", a.v_stride, a.kv_heads, v_head_size);
  if (!(a.scale > 0.0f) || !std::isfinite(a.scale))
    refuse(op,
           fmt::format("scale is {}; it must be positive and finite (1/sqrt(head_size) as a rule)",
                       a.scale));
  if (!(a.dropout >= 0.0f && a.dropout < 1.0f))
    refuse(op, fmt::format("dropout is {}; it must lie in [0, 1)", a.dropout));
  if (a.dropout > 0.0f && a.rng.state == nullptr)
    refuse(op, fmt::format("dropout is {} but rng.state is null; pass {{seed, micro-step}}",
                           a.dropout));
  if (a.dropout > 0.0f && (a.rng.first_row < 0 || a.rng.first_column < 0 ||
                           (a.rng.rows != 0 && a.rng.first_row + a.q_rows > a.rng.rows)))
    refuse(op,
           fmt::format("rng.first_row is {}, rng.first_column {} and rng.rows {} with {} query "
                       "rows: pass the first row and head of all ranks' and how many rows there "
                       "are, or 0 for the call's own",
                       a.rng.first_row, a.rng.first_column, a.rng.rows, a.q_rows));
  if (a.dropout > 0.0f && a.max_k > kMaxDropoutKeys)
    refuse(op, fmt::format("max_k is {}; with dropout a sequence may have at most {} keys", a.max_k,
                           kMaxDropoutKeys));
  if (a.cu_q == nullptr || a.cu_k == nullptr) refuse(op, "cu_q or cu_k is null");
  if (a.q_rows > 0 && (a.q == nullptr || a.o == nullptr || a.lse == nullptr))
    refuse(op, fmt::format("q, o or lse is null with {} query rows", a.q_rows));
  if (a.k_rows > 0 && (a.k == nullptr || a.v == nullptr))
    refuse(op, fmt::format("k or v is null with {} key rows", a.k_rows));
  check_features(op, a);
}

void check_attention(const char* op, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  check_attention(op, a);
  check_stride(op, "d_q_stride", b.d_q_stride, a.heads, a.head_size);
  check_stride(op, "d_k_stride", b.d_k_stride, a.kv_heads, a.head_size);
  check_stride(op, "d_v_stride", b.d_v_stride, a.kv_heads, attention_v_head_size(a));
  if (a.q_rows > 0 && (b.d_o == nullptr || b.d_q == nullptr || b.delta == nullptr))
    refuse(op, fmt::format("d_o, d_q or delta is null with {} query rows", a.q_rows));
  if (a.k_rows > 0 && (b.d_k == nullptr || b.d_v == nullptr))
    refuse(op, fmt::format("d_k or d_v is null with {} key rows", a.k_rows));
  if (b.d_bias != nullptr && a.bias == nullptr)
    refuse(op, "d_bias is set but the forward pass had no bias; pass a null d_bias");
  if (b.d_bias != nullptr)
    check_bias(op, "d_bias", b.d_bias_sequence_stride, b.d_bias_head_stride, b.d_bias_row_stride,
               a.max_k);
  if (b.d_alibi_slopes != nullptr && a.alibi_slopes == nullptr)
    refuse(op, "d_alibi_slopes is set but alibi_slopes is null; pass a null d_alibi_slopes");
  if (b.d_sinks != nullptr && a.sinks == nullptr)
    refuse(op, "d_sinks is set but sinks is null; pass a null d_sinks");
}

}  // namespace saturate::kernels
