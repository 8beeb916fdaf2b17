// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace saturate::apps {

// What the command line's parser refused, with the nearest command or flag.
std::string usage_message(CLI::App& app, const CLI::ParseError& error, int argc, char** argv);

}  // namespace saturate::apps
