// SPDX-License-Identifier: Apache-2.0
#include "model/shortlist.h"

#include <algorithm>

namespace saturate::model {
namespace {

void sort_once(Shortlist::Ids& ids) {
  std::ranges::sort(ids);
  const auto rest = std::ranges::unique(ids);
  ids.erase(rest.begin(), rest.end());
}

void append(Shortlist::Ids& to, std::span<const int32_t> ids) {
  to.insert(to.end(), ids.begin(), ids.end());
}

}  // namespace

void Shortlist::add_always(std::span<const int32_t> targets) {
  append(always_, targets);
  sort_once(always_);
}

void Shortlist::add(const Ids& ngram, std::span<const int32_t> targets) {
  longest_ = std::max(longest_, ngram.size());
  append(table_[ngram], targets);
}

Shortlist::Ids Shortlist::candidates(std::span<const int32_t> source) const {
  Ids found = always_;
  if (takes_source_) append(found, source);
  for (size_t at = 0; at < source.size(); ++at) {
    Ids ngram;
    for (const int32_t id : source.subspan(at, std::min(longest_, source.size() - at))) {
      ngram.push_back(id);
      if (const auto entry = table_.find(ngram); entry != table_.end())
        append(found, entry->second);
    }
  }
  sort_once(found);
  return found;
}

}  // namespace saturate::model
