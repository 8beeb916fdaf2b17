// SPDX-License-Identifier: Apache-2.0
// The entries of the table of matrix products in its file (tuned_file.h).
#include <nlohmann/json.hpp>

#include "kernels/gemm/tune/table.h"
#include "kernels/tune/tuned_file.h"

namespace saturate::kernels {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKind = "gemm";

std::string entry_text(const GemmKey& k, const GemmChoice& c) {
  const Json json = {{"type", name_of(k.ab_type)},
                     {"out", name_of(k.d_type)},
                     {"layout", std::string(k.ta == Transpose::yes ? "T" : "N") +
                                    (k.tb == Transpose::yes ? "T" : "N")},
                     {"tf32", k.tf32},
                     {"accumulate", k.accumulates},
                     {"bias", k.bias},
                     {"aligned", k.aligned},
                     {"shape", Json::array({k.m, k.n, k.k})},
                     {"impl", c.impl},
                     {"config", c.config},
                     {"ms", c.ms},
                     {"default_ms", c.default_ms}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "" or what is wrong.
std::string read_entry(TunedEntry& f, GemmTable& table) {
  GemmKey k;
  k.ab_type = f.type("type").value_or(DType::f32);
  k.d_type = f.type("out").value_or(DType::f32);
  const std::string layout = f.text("layout");
  if (layout.size() != 2 || layout.find_first_not_of("NT") != std::string::npos) {
    f.fail("layout", "NN, NT, TN or TT");
  } else {
    k.ta = layout[0] == 'T' ? Transpose::yes : Transpose::no;
    k.tb = layout[1] == 'T' ? Transpose::yes : Transpose::no;
  }
  k.tf32 = f.flag("tf32");
  k.accumulates = f.flag("accumulate");
  k.bias = f.flag("bias");
  k.aligned = f.flag("aligned");
  const std::vector<int64_t> shape = f.whole_numbers("shape", 3, 1, "three whole numbers from 1");
  if (!shape.empty()) k.m = shape[0], k.n = shape[1], k.k = shape[2];
  GemmChoice choice{f.text("impl"), f.text("config"), f.number("ms"), f.number("default_ms")};
  if (!f.problem().empty()) return f.problem();
  table.set(k, std::move(choice));
  return "";
}

}  // namespace

std::string gemm_table_path(const std::string& folder, const TuneMachine& machine) {
  return tuned_file_path(folder, kKind, machine);
}

std::string to_json(const TuneMachine& machine, const GemmTable& table) {
  std::vector<std::string> entries;
  for (const auto& [key, choice] : table.entries()) entries.push_back(entry_text(key, choice));
  return tuned_file_text(kKind, machine, entries);
}

ReadGemmTable read_gemm_table(const std::string& path, const TuneMachine& machine) {
  ReadGemmTable result;
  result.problem = read_tuned_file(path, kKind, machine, result.exists,
                                   [&](TunedEntry& e) { return read_entry(e, result.table); });
  if (!result.problem.empty()) result.table = {};
  return result;
}

void merge_gemm_table(const std::string& path, const TuneMachine& machine, const GemmTable& found) {
  ReadGemmTable now;
  update_tuned_file(
      path,
      [&] {
        now = read_gemm_table(path, machine);
        return now.problem;
      },
      [&] {
        for (const auto& [key, choice] : found.entries()) now.table.set(key, choice);
        return to_json(machine, now.table);
      });
}

}  // namespace saturate::kernels
