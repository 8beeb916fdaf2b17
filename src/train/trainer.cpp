// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <atomic>
#include <csignal>

#include "base/interrupt.h"
#include "base/log.h"
#include "parallel/launch.h"
#include "train/frozen.h"
#include "train/initial_model.h"
#include "train/model_setup.h"
#include "train/named_text.h"
#include "train/rank_agreement.h"
#include "train/run.h"

namespace saturate::train {
namespace {

// Atomic, because any thread may be the one that the signal interrupts.
std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
void on_signal(int s) { g_signal = s; }

// The end of the terminal or connection that the run was started from, seen by the run itself or by
// who reads its messages. nohup and the like let a run go on after it by ignoring the signal.
void end_with_terminal() {
  for (const int s : {SIGHUP, SIGPIPE}) {
    if (std::signal(s, on_signal) == SIG_IGN) std::signal(s, SIG_IGN);
  }
}

}  // namespace

TrainEnd run_training(const RunConfig& given, const ChooseLayout& choose) {
  g_signal = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  end_with_terminal();
  parallel::LaunchInfo launch = parallel::current_launch();
  if (given.train.restart > 0) launch = parallel::restartable(std::move(launch));
  Device device = parse_device(given.train.device);
  if (device.is_cuda() && launch.size > 1) device.index = launch.local_rank;
  if (launch.rank != 0) set_log_level(LogLevel::warning);
  const auto ranks = parallel::make_communicator(device, launch);
  try {
    std::optional<InitialModel> initial = find_initial_model(given);
    RunConfig config = given;
    if (initial) settle(config, *initial);
    if (choose) choose(config, *ranks, device);
    // Mistakes that need no text are found before any of it is read; by one rank or all of them.
    const Settings settings = settings_of(config, device);
    const model::ModelConfig model =
        initial ? resolve_initial(config, *initial)
                : resolve_model(config, data::Tokenizer::bytes(), data::Tokenizer::bytes());
    ParameterStore names(device, DType::f32);  // never allocated
    const model::Transformer declared(model, names);
    freeze_parameters(names, config.optimizer.freeze);
    check_layout(config, model, ranks->size());
    check_sums(resolve_parallel(config.parallel, ranks->size()),
               resolve_precision(config.train.precision, device));
    further_validation_texts(config);
    test_texts(config);
    require_agreement(settings, *ranks);
    if (ranks->size() > 1) use_device(device);  // alone, the run opens it beside the text
    return Run(config, std::move(initial), device, *ranks, g_signal).train();
  } catch (const Interrupted& e) {
    ranks->report_failure(e);
    log_warning("stopped by a signal before the first step; nothing is lost, start it again");
    return TrainEnd::interrupted_at_start;
  } catch (const std::exception& e) {
    ranks->report_failure(e);
    throw;
  }
}

}  // namespace saturate::train
