// SPDX-License-Identifier: Apache-2.0
// What each fix changes in a capture that is replayed.
#pragma once
#include <span>

#include "observe/analyse/fixes.h"
#include "observe/analyse/replay.h"

namespace saturate::observe {

enum class Assume : uint8_t {
  surely,  // what the fix itself takes away goes, and nothing else
  // Of fusing, also: one pass over memory for what works element by element; of graphs, also: the
  // short kernels that they issue at once are joined, products with those of their name.
  likely,
  at_most,  // and all that may go with it: the pace of a host that nobody disturbs, and so on
  ahead,    // and the host keeps ahead of the device, as if nothing that it does took time
};

// Values that the host reads are small; what it carries away is a copy's matter.
bool is_bulk_out(const ReplayOp& op);

// What computes goes with the clock; memory, links and the host do not.
bool follows_clock(Leaf leaf);

// The host's own time before a call, and whether that is work of the program rather than dispatch.
int64_t waits_ns(const ReplayEvent& e);
bool is_own_work(const ReplayEvent& e);

// Of a row that copies write several times, the most that is taken to be: heads that share keys are 4
// to 16 in the models that there are.
constexpr int64_t kMostRepeats = 16;

// Of operations that only repeat the same few: where they are more, what goes round them, such as lists
// that their results are put into, goes with them too.
constexpr double kLooped = 0.5;

// Products of 16 bits beside those of fp32 in TF32: half of the bytes, twice the rate.
constexpr double kHalfOfTf32 = 2;

// What the machine can do, as far as it is known.
struct EditSettings {
  double in_bytes_per_ns = 60, out_bytes_per_ns = 60;  // of pinned copies to and from the device
  double tensor_ratio = 7.4;  // matrix products on tensor cores against those without
  double half_ratio = 14.8;   // and with inputs of 16 bits
  // In TF32 against float64: chips for computing centres have tensor cores for both, others a unit of
  // float64 for 32 to 64 of float32.
  double double_ratio = 7.4;
  // Attention that reads a mask of numbers against attention that has none, and against a causal one,
  // which leaves out half of the products: 1.7 was measured for the first.
  double mask_ratio = 2, causal_ratio = 4;
  // Products of an attention that writes its weights against those inside one kernel: these leave out
  // half under a causal mask, and neither write nor read the weights, which bound such products.
  double written_ratio = 4;
  // Attention that multiplies fp32 as exactly as tensor cores can against one of 16 bits: three
  // products in TF32, which go at half of the rate. As its kernels are, half of that to twice.
  double attention_surely = 3, attention_at_most = 12;
  // Products of whole numbers against a library's of fp32, at least.
  double integer_ratio = 1.5;
  bool half_products = false;  // most products but attention in fp32 have 16 bits
  double reading = 0;          // share of the time in which arrays are read: HostLines::reading_ns
  double prepared = 0;         // share of the time in which the issuing thread makes data itself
  bool scattered = false;      // copies that find_scattered_weights() found
  double of_model =
      0;  // of the time, what models and backward passes keep the device waiting; 0: not known
  double of_line = 0;  // of the time, what the line that keeps it waiting most does; 0: not known
  double looped = 0;   // of the operations, those that find_loops() found
  int64_t micro_batches = 1;  // of a step
  double fed = 0;             // share of large copies to the host that long host work waits for
  double clock_speed = 1;     // of the full clock
  bool crowded = false;       // the host's cores or locks are short
};

// Of a device by its name, with the machine's rates where they were measured.
EditSettings edit_settings(std::string_view device_name, const CopyRates& rates);

// Time a step with all of `kinds` applied; of `processes` (alone) half of what two need for a step
// each. Copies and collectives moved beside the computation still take their own time one after
// the other. Cost       a replay.
double step_with(const Replay& replay, std::span<const FixKind> kinds, Assume assume,
                 const EditSettings& settings);

}  // namespace saturate::observe
