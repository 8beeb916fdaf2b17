// SPDX-License-Identifier: Apache-2.0
// One page for every report: it needs neither network nor server, and JavaScript only to read values off charts.
#pragma once
#include <string>
#include <string_view>

namespace saturate {

enum class PageScript { none, charts };

// The whole page as UTF-8, light or dark as the reader's machine is. `title` is escaped, `body` goes in as it is.
std::string html_page(std::string_view title, std::string_view body, PageScript script);

// & < > " ' as entities; control characters that HTML forbids, and ill-formed UTF-8, as U+FFFD.
std::string escape_html(std::string_view text);

}  // namespace saturate
