// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/config.h"
#include "data/batch.h"
#include "model/model_config.h"
#include "train/power_meter.h"
#include "train/trainer.h"

namespace saturate::train {

struct StepTiming {
  std::string model, device, precision, layout;
  int64_t ranks = 1, parameters = 0, target_tokens = 0;  // per step, all ranks
  // Median, 10th and 90th percentile of the time from the end of one step to the end of the next,
  // while steps run back to back. All rates below are those of the median.
  double step_ms = 0, step_ms_p10 = 0, step_ms_p90 = 0;
  double tokens_per_s = 0;
  double ceiling_tflops = 0, model_tflops = 0;  // of one rank
  double bubble = 0;  // share of a step in which a pipeline's ranks idle, by its list
  double busy = 0;  // share of the wall time in which the step's work runs on the GPU; 0 on the CPU
  int64_t peak_bytes = 0;   // of the whole GPU, what the driver takes included
  int64_t taken_bytes = 0;  // of the device, by this rank's own arrays
  int64_t operations = 0, graph_nodes = 0;
  // Of a layer's choices, those of its busiest expert: the mean over layers; 0 without experts.
  double largest_share = 0;
  // Of all ranks' GPUs, by their drivers; 0 where one does not count.
  double joules_per_1000_tokens = 0;
  bool graph = true;
};

// The model and the batch of a timed step: synthetic sentences of `length` tokens on each side.
struct TimedShape {
  model::ModelConfig model;
  data::BatchShape batch;
};
TimedShape timed_shape(const RunConfig& config, int64_t length);

// Fills one host block with such a batch; `key` chooses the tokens.
void fill_timed_batch(const TimedShape& shape, int64_t length, uint64_t key, int32_t* words);

struct TimingOptions {
  int64_t length = 32, repeats = 30;
  double skew = 0;  // exponent of skew_routing(); 0: tokens choose experts evenly
  // That of a device; null: energy is not measured. Measuring takes about a second more of steps.
  std::function<EnergyCounter(Device)> energy = {};
};

// Times whole training steps (forward, backward, reduction, AdamW) on synthetic random tokens: full
// batches of sentences of `length` tokens on each side. Batches still cross from host memory each
// step.
// `choose` as run_training() has it.
StepTiming time_step(const RunConfig& config, const TimingOptions& options,
                     const ChooseLayout& choose = {});

// One JSON object on one line.
std::string to_json(const StepTiming& result);

}  // namespace saturate::train
