// SPDX-License-Identifier: Apache-2.0
// The test sets at the end of a run.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/run.h"

namespace saturate::train {

// Never costs the run what it has reached: what cannot be measured is reported.
void Run::evaluate_tests() {
  if (!output_ || corpora_.test.empty()) return;
  // After validations of which none made sense there is no model to test.
  if (progress_state_.best_step < 0 && progress_state_.validations_without_gain > 0) return;
  try {
    validator_.reset();  // its room serves the tests
    const std::vector<ValidationSet> sets = test_sets(corpora_);
    Validator judge(config_, model_config_, corpora_, store_, fitted_.rows.shape,
                    {.sets = sets, .beam = config_.translate.beam});
    int64_t step = progress_state_.best_step;
    if (step >= 0) {
      judge.load_weights(config_.out + "/model", model_config_);
    } else {  // nothing was validated: the last weights are the model
      // The last checkpoint holds them, by all ranks; a run without a step has none.
      const auto saved = output_->checkpoint_folder(done_);
      if (saved)
        judge.load_weights(*saved, model_config_);
      else
        judge.take_weights(*step_, store_);
      step = done_;
    }
    for (size_t i = 0; i < sets.size(); ++i) {
      const ValidationResult v = judge.run(sets[i]);
      TestRow row{.step = done_,
                  .set = corpora_.test[i].name,
                  .model_step = step,
                  .loss = v.loss,
                  .perplexity = std::exp(v.loss)};
      std::string line = fmt::format("test {}, model of step {}: ", row.set, step);
      if (v.translated) {
        row.bleu = v.bleu;
        row.chrf = v.chrf;
        row.bleu_signature = kBleuSignature;
        row.chrf_signature = kChrfSignature;
        line += fmt::format("BLEU {:.2f} ({}), chrF2 {:.2f} ({}), ", v.bleu, kBleuSignature, v.chrf,
                            kChrfSignature);
      }
      output_->write(row);
      log_info(line + fmt::format("perplexity {:.2f}, loss {:.4f}", row.perplexity, row.loss));
    }
  } catch (const Error& e) {
    log_warning(
        fmt::format("{}. The test sets are not all scored; saturate eval --model {} --test "
                    "does it later",
                    e.what(), config_.out));
  }
}

}  // namespace saturate::train
