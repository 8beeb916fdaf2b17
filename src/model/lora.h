// SPDX-License-Identifier: Apache-2.0
// Adapters of low rank beside projections that stay as they are: y = W x + scale B (A drop(x)) (Hu et al.,
// arXiv:2106.09685), as PEFT has them. Here: where they lie in a model, and the parameters that they are.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace saturate::model {

// The adapter of one module, in the sense of model files: rows of a projection. Modules that lie in one
// projection (q, k and v) have adapters of their own.
struct LoraPart {
  std::string module;  // "model.decoder.layers.0.self_attn.q_proj"
  int64_t first_row = 0, rows = 0;
  int64_t rank = 0;
  float scale =
      0;  // lora_alpha / rank, or over its root (rank-stabilised: Kalajdzievski, arXiv:2312.03732)
  int32_t adapter = 0;          // which of several side by side (Lora::side_by_side)
  bool fan_in_fan_out = false;  // the module's own weight is (in, out): Conv1D of GPT-2
  friend bool operator==(const LoraPart&, const LoraPart&) = default;
};

struct LoraLinear {
  std::string projection;       // "decoder.layers.0.self.qkv"
  int64_t columns = 0;          // of the projection: its inputs
  std::vector<LoraPart> parts;  // by adapter, then by first_row, ascending
  int64_t rank() const noexcept {
    int64_t sum = 0;
    for (const LoraPart& p : parts) sum += p.rank;
    return sum;
  }
  // The parameters: A of all parts, one below the other (rank(), columns); B of one (rows, rank).
  std::string a_name() const { return projection + ".lora_A.weight"; }
  std::string b_name(size_t part) const {
    return projection + ".lora_B." + std::to_string(part) + ".weight";
  }
  friend bool operator==(const LoraLinear&, const LoraLinear&) = default;
};

struct Lora {
  std::vector<LoraLinear> linears;  // in the order of the model's parameters
  float dropout = 0;                // of x, in training
  // As adapter_config.json has them; the parts' ranks and scales follow from them.
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilised = false;
  std::string base;  // the model's folder, or another name of it
  // Whether the base's projections are held in 4 bits while adapters train beside them (Dettmers et al.,
  // arXiv:2305.14314); of a run, in no file of the adapter.
  bool quantized_base = false;
  // So many adapters of which each row of a batch has one or none, for inference; 0: one, of all rows.
  int32_t side_by_side = 0;
  bool empty() const noexcept { return linears.empty(); }
  const LoraLinear* of(const std::string& projection) const noexcept {
    for (const LoraLinear& l : linears) {
      if (l.projection == projection) return &l;
    }
    return nullptr;
  }
  friend bool operator==(const Lora&, const Lora&) = default;
};

}  // namespace saturate::model
