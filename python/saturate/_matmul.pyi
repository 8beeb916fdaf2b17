# SPDX-License-Identifier: Apache-2.0
from typing import Optional

from saturate._attention import Array

def matmul(
    a: Array, b: Array, *, bias: Optional[Array] = None, allow_tf32: bool = False, stream: Optional[int] = None
) -> Array: ...
