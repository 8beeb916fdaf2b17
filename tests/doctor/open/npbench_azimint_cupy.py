# SPDX-License-Identifier: Apache-2.0
"""Azimuthal integration, of a collection of NumPy benchmarks, in CuPy: a million values averaged in a thousand rings.

An engineer sees each ring pick its values with a mask, and picking ask the GPU how many there are: a wait per ring, in
which nothing is launched, for a few operations of five to ten microseconds each. The repair sums what the mask lets
through, without picking, and divides by how many there are. The other repair computes the edges of all rings at once,
which spares four of some fifteen launches. In both variants the function is called as the benchmark calls it, with the
sizes of its paper, and again once it is done; a step is twenty rings.
"""
CAUSE = "sync"
LINE = "npbench/benchmarks/azimint_naive/azimint_naive_cupy.py:21"
REPOSITORY = "spcl/npbench"
COMMIT = "f2d7f27d87ba4881991e62c18a607aa6ba52b260"
COMMAND = ["npbench/benchmarks/azimint_naive/azimint_naive_cupy.py"]
EDITS = [
    ("npbench/benchmarks/azimint_naive/azimint_naive_cupy.py", 23, 22, "        step_done()"),
    ("npbench/benchmarks/azimint_naive/azimint_naive_cupy.py", 24, 23, """\


if __name__ == "__main__":
    from azimint_naive import initialize

    data, radius = (np.asarray(values) for values in initialize(1000000))
    while True:
        azimint_naive(data, radius, 1000)
"""),
]
REPAIR = [("npbench/benchmarks/azimint_naive/azimint_naive_cupy.py", 21, 22,
           "        res[i] = np.where(mask_r12, data, 0).sum() / mask_r12.sum()")]
OTHER_REPAIRS = {"launch": [
    ("npbench/benchmarks/azimint_naive/azimint_naive_cupy.py", 17, 16, "    edges = rmax * np.arange(npt + 1) / npt"),
    ("npbench/benchmarks/azimint_naive/azimint_naive_cupy.py", 18, 19, "        r1, r2 = edges[i], edges[i + 1]"),
]}
EVERY = 20
STEPS = 3000
WARM_UP = 50
BEFORE = 20
