// SPDX-License-Identifier: Apache-2.0
// How ranks share the flat arrays of a group of parameters.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "parallel/flat_range.h"

namespace saturate {

using kernels::OwnedRange;

// Elements of each rank's slice of a bucket: the same for all ranks, and a multiple of `align`. The
// bucket is padded to ranks * slice_elements() where a collective needs equal slices; the padding
// belongs to nobody.
int64_t slice_elements(int64_t bucket_elements, int ranks, int64_t align = kernels::kNormBlock);

// What `rank` of `ranks` updates: slice number `rank` of every bucket, ascending. Slices that the
// bucket is too short for are left out. Ranges lie one behind the other in the optimizer's arrays
// (OwnedRange::local), each from a multiple of kParameterAlign on.
//
// buckets   ranges of the group in any order, apart from each other. Each
//           begins at a multiple of `align` and ends at one, or at the end of the group.
// align     a multiple of 64 elements, so that slices of 16-bit copies start on 128 bytes too; the
//           norm of the gradients needs kNormBlock.
std::vector<OwnedRange> owned_ranges(std::span<const parallel::FlatRange> buckets, int ranks,
                                     int rank, int64_t align = kernels::kNormBlock);

}  // namespace saturate
