// SPDX-License-Identifier: Apache-2.0
#include "plan/nearest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "plan/cost.h"

namespace saturate::plan {
namespace {

struct Shape {
  std::string_view name, type;
  std::vector<std::pair<double, double>> values = {};  // rows and columns; reads, then writes
  size_t reads = 0;
  double flops = 0;
};

double number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Shape parse(std::string_view key) {
  Shape s;
  for (size_t at = 0; at <= key.size();) {
    const size_t end = std::min(key.find(' ', at), key.size());
    const std::string_view word = key.substr(at, end - at);
    at = end + 1;
    const size_t x = word.find('x');
    if (s.name.empty()) {
      s.name = word;
    } else if (word == ">") {
      s.reads = s.values.size();
    } else if (word.ends_with("Gflop")) {
      s.flops = number(word) * 1e9;
    } else if (x != std::string_view::npos && x > 0) {
      s.values.emplace_back(number(word.substr(0, x)), number(word.substr(x + 1)));
    } else {
      s.type = word;
    }
  }
  return s;
}

double rates_us(const Machine& m, const Shape& s) {
  DType type = DType::bf16;
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32})
    if (s.type == name_of(t)) type = t;
  double elements = 0;
  for (const auto& [rows, cols] : s.values) elements += rows * cols;
  if (s.name.starts_with("embedding") && !s.values.empty()) {  // reads rows of its table
    const auto& rows = s.name == "embedding" ? s.values.back() : s.values.front();
    elements = 3 * rows.first * rows.second;
  }
  return rates_us(m, s.name, type, elements * static_cast<double>(size_of(type)), s.flops);
}

double distance(const Shape& a, const Shape& b) {
  if (a.type != b.type || a.reads != b.reads || a.values.size() != b.values.size())
    return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    sum += std::abs(std::log(a.values[i].first / b.values[i].first));
    sum += std::abs(std::log(a.values[i].second / b.values[i].second));
  }
  return sum;
}

}  // namespace

std::optional<double> nearest_us(const Machine& machine, const std::string& key) {
  const Shape wanted = parse(key);
  struct Neighbour {
    double distance = std::numeric_limits<double>::infinity(), factor = 0;
  };
  std::array<Neighbour, 2> nearest;
  const std::string of_name = std::string(wanted.name) + " ";
  for (auto known = machine.operations.lower_bound(of_name);
       known != machine.operations.end() && known->first.starts_with(of_name); ++known) {
    const Shape shape = parse(known->first);
    const double d = distance(wanted, shape);
    const double by_rates = rates_us(machine, shape);
    if (!(d < nearest[1].distance) || by_rates <= 0 || known->second <= 0) continue;
    nearest[1] = {d, known->second / by_rates};
    if (nearest[1].distance < nearest[0].distance) std::swap(nearest[0], nearest[1]);
  }
  if (!std::isfinite(nearest[0].distance)) return std::nullopt;
  double factor = nearest[0].factor;
  if (std::isfinite(nearest[1].distance)) {
    const double sum = nearest[0].distance + nearest[1].distance;
    const double far = sum > 0 ? nearest[0].distance / sum : 0;
    factor = std::pow(nearest[0].factor, 1 - far) * std::pow(nearest[1].factor, far);
  }
  return rates_us(machine, wanted) * factor;
}

}  // namespace saturate::plan
