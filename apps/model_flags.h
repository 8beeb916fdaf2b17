// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace saturate::apps {

struct ModelOptions;
struct QuantizeOptions;
struct DecodeOptions;

// Flags of every command that uses a model: which one, on what device, in what precision.
void add_model_options(CLI::App& app, ModelOptions& model);
// The same but for --model, of a command that takes several.
void add_device_options(CLI::App& app, ModelOptions& model);

// Flags of every command that decodes; without them the model's own values hold.
void add_decode_options(CLI::App& app, DecodeOptions& decode);

// How Marian's tables are cut, beside the flag that names one.
void add_shortlist_options(CLI::App& app, CLI::Option& shortlist, int64_t& first, int64_t& best);

// Declares the command quantize.
CLI::App* add_quantize_command(CLI::App& app, QuantizeOptions& options);

}  // namespace saturate::apps
