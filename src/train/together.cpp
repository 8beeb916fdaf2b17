// SPDX-License-Identifier: Apache-2.0
#include "train/together.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>

#include "base/error.h"

namespace saturate::train {
namespace {

Errc code_of(const std::exception& e) {
  if (const auto* error = dynamic_cast<const Error*>(&e)) return error->code();
  return dynamic_cast<const std::filesystem::filesystem_error*>(&e) ? Errc::io : Errc::internal;
}

template <class Sequence>
Sequence broadcast(parallel::Communicator& ranks, int root, Sequence values) {
  auto count = static_cast<int64_t>(values.size());
  ranks.broadcast(&count, sizeof count, root);
  values.resize(static_cast<size_t>(count));
  if (count > 0)
    ranks.broadcast(values.data(), count * static_cast<int64_t>(sizeof values[0]), root);
  return values;
}

}  // namespace

std::string Together::from(int root, std::string text) const {
  return ranks_ == nullptr ? text : broadcast(*ranks_, root, std::move(text));
}

std::vector<uint64_t> Together::from(int root, std::vector<uint64_t> numbers) const {
  return ranks_ == nullptr ? numbers : broadcast(*ranks_, root, std::move(numbers));
}

int Together::lowest(bool that) const {
  return static_cast<int>(-ranks_->all_reduce_max(that ? -rank() : -size()));
}

std::string Together::first_text(std::string mine) const {
  if (ranks_ == nullptr) return mine;
  const int who = lowest(!mine.empty());
  return who == size() ? "" : from(who, std::move(mine));
}

void Together::all(const std::function<void()>& work) const {
  if (size() == 1) return work();
  std::exception_ptr mine;
  std::string text;
  auto code = Errc::internal;
  try {
    work();
  } catch (const std::exception& e) {
    mine = std::current_exception();
    text = e.what();
    code = code_of(e);
  }
  const int failed = lowest(mine != nullptr);
  if (failed == size()) return;
  text = from(failed, std::move(text));
  auto number = static_cast<int32_t>(code);
  ranks_->broadcast(&number, sizeof number, failed);
  if (failed == rank()) std::rethrow_exception(mine);
  throw Error(static_cast<Errc>(number), fmt::format("rank {}", failed), text);
}

void Together::first(const std::function<void()>& work) const {
  all([&] {
    if (rank() == 0) work();
  });
}

}  // namespace saturate::train
