# SPDX-License-Identifier: Apache-2.0
"""glcm-cupy measures texture: around each pixel a table of which grey goes with which, and seven numbers of it.

An engineer sees a table of 256 x 256 for each of a thousand pixels at a time, 262 megabytes in which at most fifty
numbers a table are not zero, and walks over all of it: it is cleared, summed, divided by the sums and read three times.
The sums are known before: as many pairs as a window has. The repair counts with weights that are already divided, so
that two of the walks, half of the bytes, are not made. The other repair does not wait for each thousand. In both
variants an image of 512 x 512 is analysed again and again, as the package's function is called; a step is a thousand
pixels in one direction.
"""
CAUSE = "memory"
LINE = "glcm_cupy/glcm_base.py:343"
LINES = ["glcm_cupy/glcm_base.py:305", "glcm_cupy/glcm_base.py:346", "glcm_cupy/glcm_base.py:320"]
REPOSITORY = "Eve-ning/glcm-cupy"
COMMIT = "305cdb03079b05fa5d9343687a6d9e8d6db1354f"
COMMAND = ["glcm_cupy/glcm/glcm.py"]
EDITS = [
    ("glcm_cupy/cross/glcm_cross.py", 9, 9, ""),
    ("glcm_cupy/glcm_base.py", 262, 261, "                step_done()"),
    ("glcm_cupy/glcm/glcm.py", 264, 263, """\


if __name__ == "__main__":
    image = np.random.default_rng(0).integers(256, size=(512, 512, 1)).astype(np.float32)
    while True:
        glcm(image)
"""),
]
REPAIR = [
    ("glcm_cupy/kernel.py", 185, 185, "                ]), weights[wid_image]);"),
    ("glcm_cupy/kernel.py", 191, 191, "                ]), weights[wid_image]);"),
    ("glcm_cupy/kernel.py", 88, 88, "        float* features,\n        const float* weights)"),
    ("glcm_cupy/glcm_base.py", 317, 316, """\
        there = (i.astype(cp.int32) != self.nan_replacement) & (j.astype(cp.int32) != self.nan_replacement)
        weights = (0.5 / there.sum(axis=1)).astype(cp.float32)
"""),
    ("glcm_cupy/glcm_base.py", 331, 331, "                self.ar_features,\n                weights"),
    ("glcm_cupy/glcm_base.py", 343, 345, ""),
]
OTHER_REPAIRS = {"sync": [("glcm_cupy/glcm_base.py", 260, 260, "")]}
STEPS = 3000
WARM_UP = 50
BEFORE = 10
