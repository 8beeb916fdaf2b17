// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate::serve {

extern const char* const kPage;  // page.html: to try the server in a browser, complete in itself

}  // namespace saturate::serve
