// SPDX-License-Identifier: Apache-2.0
#include "base/html.h"

#include <fmt/format.h>

#include "base/html_assets.h"
#include "base/utf8.h"

namespace saturate {

std::string html_page(std::string_view title, std::string_view body, PageScript script) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<title>{}</title><style>{}</style></head>\n<body><main>\n{}</main>",
      escape_html(title), kPageStyle, body);
  if (script == PageScript::charts) page += fmt::format("<script>{}</script>", kChartScript);
  return page + "</body></html>\n";
}

std::string escape_html(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = next_utf8(text, i);
    const size_t special = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : std::string_view::npos;
    const bool control = (c < 0x20 && c != U'\t' && c != U'\n') || (c >= 0x7F && c <= 0x9F);
    if (special != std::string_view::npos) {
      out += kEntities[special];
    } else if (control || c == kIllFormed) {
      out += "\uFFFD";
    } else {
      out += text.substr(start, i - start);
    }
  }
  return out;
}

}  // namespace saturate
