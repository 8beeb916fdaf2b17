// SPDX-License-Identifier: Apache-2.0
// The ordered list of implementations of every operation, for those who ask about all of them
// (support.cpp and tests), and how SATURATE_VERBOSE=dispatch shows a problem.
#pragma once
#include <initializer_list>
#include <span>
#include <string>

#include "base/dtype.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

struct ActivationArgs;
struct ActivationBackwardArgs;
struct AdamWArgs;
struct AddArgs;
struct AttentionArgs;
struct AttentionBackwardArgs;
struct BeamPlaceArgs;
struct BeamStepArgs;
struct BlockMatmulArgs;
struct BlockQuantizeArgs;
struct CachedAttentionArgs;
struct CastArgs;
struct ColumnSumArgs;
struct CombineRowsArgs;
struct CombineRowsBackwardArgs;
struct CompressArgs;
struct Conv2dArgs;
struct Conv2dBackwardArgs;
struct CrossEntropyArgs;
struct CrossEntropyFinishArgs;
struct DecompressArgs;
struct DispatchRowsArgs;
struct DispatchRowsBackwardArgs;
struct EmbeddingArgs;
struct EmbeddingBackwardArgs;
struct Fp8MatmulArgs;
struct Fp8QuantizeArgs;
struct Fp8WeightsArgs;
struct GradientNormArgs;
struct HeadNormArgs;
struct KeepColumnsArgs;
struct LimitChoicesArgs;
struct LinearCrossEntropyArgs;
struct LinearCrossEntropyBackwardArgs;
struct LossStatisticsArgs;
struct MeanLogitsArgs;
struct MemoryWeightsArgs;
struct Nf4Args;
struct LossTotalsArgs;
struct NormBackwardArgs;
struct NormForwardArgs;
struct PackedLinearArgs;
struct RelativeBiasArgs;
struct RotaryArgs;
struct RouteTokensArgs;
struct RouteTokensBackwardArgs;
struct RoutingStatisticsArgs;
struct SamplePlaceArgs;
struct SampleStepArgs;
struct SoftCapArgs;
struct SortByExpertArgs;

// Of the operation with these arguments, in the order in which they are tried. Defined by the
// operation's family.
template <class Args>
std::span<const Impl<Args>> impls_of() noexcept;

template <>
std::span<const Impl<ActivationArgs>> impls_of() noexcept;
template <>
std::span<const Impl<ActivationBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<AdamWArgs>> impls_of() noexcept;
template <>
std::span<const Impl<AddArgs>> impls_of() noexcept;
template <>
std::span<const Impl<AttentionArgs>> impls_of() noexcept;
template <>
std::span<const Impl<AttentionBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<BeamPlaceArgs>> impls_of() noexcept;
template <>
std::span<const Impl<BeamStepArgs>> impls_of() noexcept;
template <>
std::span<const Impl<BlockMatmulArgs>> impls_of() noexcept;
template <>
std::span<const Impl<BlockQuantizeArgs>> impls_of() noexcept;
template <>
std::span<const Impl<CachedAttentionArgs>> impls_of() noexcept;
template <>
std::span<const Impl<CastArgs>> impls_of() noexcept;
template <>
std::span<const Impl<ColumnSumArgs>> impls_of() noexcept;
template <>
std::span<const Impl<CombineRowsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<CombineRowsBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<CompressArgs>> impls_of() noexcept;
template <>
std::span<const Impl<DecompressArgs>> impls_of() noexcept;
template <>
std::span<const Impl<Conv2dArgs>> impls_of() noexcept;
template <>
std::span<const Impl<Conv2dBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<CrossEntropyArgs>> impls_of() noexcept;
template <>
std::span<const Impl<DispatchRowsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<DispatchRowsBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<EmbeddingArgs>> impls_of() noexcept;
template <>
std::span<const Impl<EmbeddingBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<Fp8MatmulArgs>> impls_of() noexcept;
template <>
std::span<const Impl<Fp8QuantizeArgs>> impls_of() noexcept;
template <>
std::span<const Impl<GradientNormArgs>> impls_of() noexcept;  // gradient_norm_blocks
template <>
std::span<const Impl<CrossEntropyFinishArgs>> impls_of() noexcept;
template <>
std::span<const Impl<LossStatisticsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<LimitChoicesArgs>> impls_of() noexcept;
template <>
std::span<const Impl<LossTotalsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<MeanLogitsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<NormBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<NormForwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<PackedLinearArgs>> impls_of() noexcept;
template <>
std::span<const Impl<HeadNormArgs>> impls_of() noexcept;
template <>
std::span<const Impl<KeepColumnsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<RelativeBiasArgs>> impls_of() noexcept;
template <>
std::span<const Impl<RotaryArgs>> impls_of() noexcept;
template <>
std::span<const Impl<SoftCapArgs>> impls_of() noexcept;
template <>
std::span<const Impl<RouteTokensArgs>> impls_of() noexcept;
template <>
std::span<const Impl<RouteTokensBackwardArgs>> impls_of() noexcept;
template <>
std::span<const Impl<RoutingStatisticsArgs>> impls_of() noexcept;
template <>
std::span<const Impl<SamplePlaceArgs>> impls_of() noexcept;
template <>
std::span<const Impl<SampleStepArgs>> impls_of() noexcept;
template <>
std::span<const Impl<SortByExpertArgs>> impls_of() noexcept;

// "bf16 4096x1024"
std::string shape_text(DType type, std::initializer_list<int64_t> sizes);

}  // namespace saturate::kernels
