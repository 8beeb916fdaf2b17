# SPDX-License-Identifier: Apache-2.0
"""saturate.use_tuned: the choices that `saturate tune` has measured."""
import numpy as np
import pytest

import saturate

GPUS = saturate.build_info()["gpus"]


def test_needs_the_gpu_that_it_names():
    for folder in ("auto", None, "/nowhere"):
        with pytest.raises(ValueError, match=f"no GPU 99; the driver offers {GPUS}"):
            saturate.use_tuned(folder, device=99)


def test_refuses_an_empty_folder():
    with pytest.raises(ValueError, match="folder is empty"):
        saturate.use_tuned("")


@pytest.mark.skipif(GPUS == 0, reason="no GPU")
def test_a_folder_without_tables_changes_nothing(tmp_path):
    assert saturate.use_tuned(tmp_path) == {"gemm": 0, "attention": 0}
    assert saturate.use_tuned(None) == {"gemm": 0, "attention": 0}


def test_the_cpu_needs_no_table():
    q = np.ones((1, 3, 2, 16), dtype=np.float32)
    assert np.allclose(saturate.attention(q, q, q), 1)
