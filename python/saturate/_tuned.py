# SPDX-License-Identifier: Apache-2.0
"""Choices that ``saturate tune`` has measured, for this process."""
import os
import warnings

from saturate._build import core


def use_tuned(folder="auto", device=0):
    """Lets ``attention`` and ``matmul`` on a GPU run what ``saturate tune attention`` and ``saturate tune gemm``
    measured to be fastest there.

    Call it once, before the first call that a CUDA graph captures and not between a forward and its backward
    pass. Nothing is measured by calls. Without it, results never depend on what has been tuned.

    Parameters
    ----------
    folder : str, os.PathLike or None
        Where the tables lie; ``"auto"`` is the folder that ``saturate tune`` writes to (``$SATURATE_CACHE``,
        ``$XDG_CACHE_HOME/saturate`` or ``~/.cache/saturate``). ``None`` ends the use of tables.
    device : int
        Number of the GPU. Tables are in use for one GPU of a process, the last one named.

    Returns
    -------
    dict
        How many choices are in use: ``{"gemm": 12, "attention": 8}``.

    Raises
    ------
    ValueError
        There is no such GPU, or ``folder`` is an empty text.

    Warns
    -----
    RuntimeWarning
        A table is broken or was measured with another GPU, driver or library; it is not used.
    """
    if folder is None:
        core().use_untuned(device)
        return {"gemm": 0, "attention": 0}
    folder = os.fspath(folder)
    if not folder:
        raise ValueError("use_tuned: folder is empty; give a folder, 'auto' or None")
    gemm, attention, *problems = core().use_tuned("" if folder == "auto" else folder, device)
    for problem in problems:
        if problem:
            warnings.warn(problem, RuntimeWarning, stacklevel=2)
    return {"gemm": gemm, "attention": attention}
