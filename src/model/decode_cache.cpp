// SPDX-License-Identifier: Apache-2.0
#include "model/decode_cache.h"

namespace saturate::model {

DecodeCache::DecodeCache(const Transformer& model, const Stream& stream, DType compute,
                         int64_t slots, int64_t rows) {
  const auto all_zeros = [&](int64_t bytes) { return zeroed(stream, static_cast<size_t>(bytes)); };
  for (const Mixer* mixer : model.decoder_mixers()) {
    const DecodeState s = mixer->decode_state(compute);
    states_.push_back({all_zeros(slots * s.slot_bytes), all_zeros(rows * s.row_bytes)});
  }
}

std::vector<MixerStep> DecodeCache::steps(const MixerStep& common) const {
  std::vector<MixerStep> steps;
  for (const State& s : states_) {
    MixerStep& step = steps.emplace_back(common);
    step.slot_state = s.slots.data();
    step.row_state = s.rows.data();
  }
  return steps;
}

}  // namespace saturate::model
