# SPDX-License-Identifier: Apache-2.0
import os
from typing import Dict, Optional, Union

def use_tuned(
    folder: Optional[Union[str, "os.PathLike[str]"]] = "auto", device: int = 0
) -> Dict[str, int]: ...
