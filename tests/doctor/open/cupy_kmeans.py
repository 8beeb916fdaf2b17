# SPDX-License-Identifier: Apache-2.0
"""k-means in CuPy: ten million points in two dimensions, two clusters, ten iterations a fit; a step is one iteration.

An engineer sees one kernel take most of an iteration: the sums over the points of a cluster reduce ten million rows to
four numbers along an axis that is not contiguous, so that a few blocks of the GPU do all the work. The repair forms
each of the four sums over a whole contiguous array, which all of the GPU shares. In both variants the comparison with
NumPy is left out and the fit is repeated, as ten iterations are too short to measure.
"""
CAUSE = "memory"
LINE = "examples/kmeans/kmeans.py:71"
REPOSITORY = "cupy/cupy"
COMMIT = "6b6d9563c4f7410cd1866a11b2f71a60dd45a68c"
FOLDER = "examples/kmeans"
COMMAND = ["kmeans.py"]
EDITS = [
    ("examples/kmeans/kmeans.py", 74, 73, "        step_done()"),
    ("examples/kmeans/kmeans.py", 120, 121, ""),
    ("examples/kmeans/kmeans.py", 130, 130, "                for _ in range(10**6):\n"
                                            "                    centers, pred = fit_xp(X_train, n_clusters, max_iter)"),
]
REPAIR = [("examples/kmeans/kmeans.py", 71, 71, "        sums = xp.stack([xp.stack([(column * members).sum() for column in X.T])\n"
                                                "                         for members in mask])")]
STEPS = 200
WARM_UP = 10
