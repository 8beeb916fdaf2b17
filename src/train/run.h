// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "data/batch_loader.h"
#include "parallel/communicator.h"
#include "train/batch_fit.h"
#include "train/checkpoint.h"
#include "train/initial_model.h"
#include "train/progress.h"
#include "train/run_output.h"
#include "train/throughput.h"
#include "train/trainer.h"
#include "train/validator.h"

namespace saturate::train {

// One run on one rank. Rank 0 alone writes; every rank decides alike, from shared numbers.
// run_start.cpp prepares and resumes it, run.cpp trains, run_end.cpp says what came of it.
class Run {
 public:
  // `signal`: the signal that asks the run to end, 0 for none.
  // `initial`: what init.from named, or none.
  Run(const RunConfig& config, std::optional<InitialModel> initial, Device device,
      parallel::Communicator& ranks, const std::atomic<int>& signal);
  // What writes the best model reads the validator's weights.
  ~Run() {
    if (output_) output_->await_model();
  }
  Run(const Run&) = delete;
  TrainEnd train();

 private:
  using Clock = std::chrono::steady_clock;
  double elapsed() const;  // seconds of training, over all resumes
  bool start_or_resume();  // whether there was something to resume
  void start_validator();
  void start_loader();
  void begin_output(bool resumed);
  bool submit_step();
  void tell_when_text_is_whole();
  void drain(bool until_idle);
  void account(const StepRecord& record);
  void log_progress();
  void validate();  // with all that follows up to take_if_best(): run_validation.cpp
  void begin_validation();
  void tell_validation_when_done();
  void join_validation();
  void tell_validation(size_t set, const ValidationResult& result);
  void join_best();
  bool take_if_best(int64_t step, double score);
  bool patience_is_over() const;
  bool patience_may_end() const;
  void evaluate_tests();  // run_sets.cpp
  void save(Failure failure);
  bool agreed(bool mine);
  bool time_is_over() const;
  bool checkpoint_is_due() const;
  bool epoch_validation_is_due(int64_t& epoch) const;
  void finish(TrainEnd end);  // run_end.cpp
  RunHeader header() const;
  std::string layout_text() const;
  StateOfRanks state_of_ranks() const { return {store_, all_, layout_}; }

  RunConfig config_;               // with the batch that was fitted
  const BatchConfig asked_batch_;  // as the user gave it
  const Device device_;
  parallel::Communicator& ranks_;
  const Together together_;
  const Layout layout_;
  const std::atomic<int>& signal_;
  Progress progress_;
  std::unique_ptr<RunOutput> output_;  // of the first rank
  std::optional<InitialModel> initial_;
  std::future<void> opening_;  // of the device, until store_ is there
  Corpora corpora_;
  ParameterStore store_;
  ParameterStore all_;  // every parameter of the model, without memory: what files hold
  model::ModelConfig model_config_;
  FittedBatch fitted_;
  std::optional<model::Transformer> model_;
  std::optional<TrainingStep> step_;
  std::optional<GatheredWeights> gathered_;  // where the layout cuts the weights
  std::optional<Validator> validator_;       // of the first rank
  bool validates_ = false;                   // the same on all ranks
  struct Validation {  // of the first rank, from the step whose weights it has until it is told
    int64_t step = 0, epoch = 0;
    std::future<std::vector<ValidationResult>> results;  // by set; its end waits for its thread
  } validation_;
  std::optional<data::BatchLoader> loader_;
  RunProgress progress_state_;
  TextIdentity texts_;  // that this start was given
  std::optional<RunProgress> before_best_;  // what counted before the model that is being written
  std::optional<Throughput> throughput_;

  Clock::time_point began_ = Clock::now(), last_save_ = Clock::now();
  std::vector<int64_t> held_;  // slots given by the loader, oldest first
  int64_t first_slot_ = 0;
  int64_t epoch_ = 0, done_ = 0, logged_ = 0, validated_ = -1, saved_ = -1;
  int64_t began_at_ = 0;              // steps done before this start
  double loss_sum_ = 0, tokens_ = 0;  // since the last row
  StepRecord last_{};
  bool stop_early_ = false;
  bool text_told_ = false;                        // what was kept of the training text
  std::optional<data::PackerState> resume_from_;  // when it is not the loader's state
  double pairs_per_token_ = 0;
};

}  // namespace saturate::train
