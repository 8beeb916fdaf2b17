// SPDX-License-Identifier: Apache-2.0
#include "lab/marks.h"

namespace saturate::lab {

void Marks::begin() {
  if (used_ == pairs_.size())
    pairs_.emplace_back(Event(stream_.device(), Event::Timing::on),
                        Event(stream_.device(), Event::Timing::on));
  pairs_[used_].first.record(stream_);
}

void Marks::end() { pairs_[used_++].second.record(stream_); }

double Marks::total_ms() const {
  double sum = 0;
  for (size_t i = 0; i < used_; ++i) {
    pairs_[i].second.synchronize();
    sum += Event::elapsed_ms(pairs_[i].first, pairs_[i].second);
  }
  return sum;
}

}  // namespace saturate::lab
