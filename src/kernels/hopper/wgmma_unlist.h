// SPDX-License-Identifier: Apache-2.0
#undef SAT_D4
#undef SAT_D16
#undef SAT_SUMS_32
#undef SAT_SUMS_64
#undef SAT_SUMS_96
#undef SAT_SUMS_128
#undef SAT_LIST_32
#undef SAT_LIST_64
#undef SAT_LIST_96
#undef SAT_LIST_128
