// SPDX-License-Identifier: Apache-2.0
// Test support: a small model with random weights, and its logits without a cache.
#pragma once
#include <cmath>
#include <numeric>
#include <vector>

#include "model/transformer.h"

namespace saturate::model {

struct TestModel {
  // Weights larger than at the start of training, so that the tokens matter.
  TestModel(const ModelConfig& c, DType type, Device device, uint64_t seed)
      : config(c), store(device, type), model(c, store), stream(device) {
    store.allocate(ParameterStore::Purpose::inference);
    for (size_t i = 0; i < store.specs().size(); ++i) {
      const ParameterSpec& p = store.specs()[i];
      std::vector<float> values(static_cast<size_t>(p.size()));
      for (size_t e = 0; e < values.size(); ++e) {
        const Random4 r = philox4x32(seed, i, e);
        const double unit = static_cast<double>(r.x[0]) * 0x1p-31 - 1.0;
        const bool scale = p.rows == 1 && p.init == Init::ones;
        values[e] = static_cast<float>(scale ? 1.0 + 0.3 * unit : 0.6 * unit);
      }
      store.set(stream, {static_cast<int32_t>(i)}, values.data());
    }
    store.refresh_compute(stream);
    model.make_tables(store);
    stream.synchronize();
  }
  ModelConfig config;
  ParameterStore store;
  Transformer model;
  Stream stream;
};

// Runs the whole prefix through Transformer::decode; CPU, f64.
class ReferenceDecoder {
 public:
  explicit ReferenceDecoder(const TestModel& m) : m_(m) {}

  // Logits after the last id of `input`; `source` is empty for a decoder-only model.
  std::vector<double> last_logits(std::vector<int32_t> source, std::vector<int32_t> input) const {
    Tape tape(m_.store, TapeMode::inference, nullptr);
    Side s(source), t(input);
    const PackedSide source_side = s.side(), target_side = t.side();
    const Value memory = source.empty() ? Value{} : m_.model.encode(tape, source_side);
    const Value logits =
        m_.model.logits(tape, m_.model.decode(tape, target_side, memory, &source_side));
    tape.keep(logits);
    std::vector<char> arena(tape.plan() + 256);
    const Context ctx{};
    tape.run(ctx, arena.data(), false);
    const auto cols = tape.info(logits).cols;
    const double* last = Run(ctx, tape, arena.data(), {}).as<double>(logits) +
                         (static_cast<int64_t>(input.size()) - 1) * cols;
    return {last, last + m_.config.vocab_target};
  }

 private:
  struct Side {
    explicit Side(std::vector<int32_t>& tokens)
        : ids(tokens), positions(ids.size()), cu{0, static_cast<int32_t>(ids.size())} {
      std::iota(positions.begin(), positions.end(), 0);
    }
    PackedSide side() const {
      const auto rows = static_cast<int64_t>(ids.size());
      return {.tokens = {.ids = ids.data(),
                         .positions = positions.data(),
                         .cu = cu.data(),
                         .rows = rows,
                         .sequences = 1},
              .max_length = rows};
    }
    std::vector<int32_t>& ids;
    std::vector<int32_t> positions, cu;
  };
  const TestModel& m_;
};

}  // namespace saturate::model
