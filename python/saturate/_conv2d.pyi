# SPDX-License-Identifier: Apache-2.0
from typing import Optional, Tuple, Union

from saturate._attention import Array

Axes = Union[int, Tuple[int, int]]

def conv2d(
    x: Array,
    weight: Array,
    *,
    bias: Optional[Array] = None,
    stride: Axes = 1,
    padding: Axes = 0,
    dilation: Axes = 1,
    stream: Optional[int] = None,
) -> Array: ...
