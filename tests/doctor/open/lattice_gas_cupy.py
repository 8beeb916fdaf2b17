# SPDX-License-Identifier: Apache-2.0
"""A gas of particles on a lattice of 2048 x 1024 cells flows around a cylinder, in CuPy; every tenth step is painted.

An engineer sees a collision written as a loop over some fifty rules: for each, two million cells are compared with a
number, another number is copied to the GPU, and a new field is chosen between the two, three small calls that take
longer to launch than to run. The repair writes the rules into a table of 128 entries and looks all cells up at once.
In both variants the pictures are computed and not shown, and the rules are found with numbers of Python's.
"""
CAUSE = "launch"
LINE = "lattice_gas.py:133"
REPOSITORY = "tadashi9e/lattice_gas_cupy"
COMMIT = "8ecba7b3c5815b635b51b331eb8b80f0711aaaa5"
COMMAND = ["lattice_gas.py", "--loop", "1000000"]
EDITS = [
    ("lattice_gas.py", 11, 11, ""),
    ("lattice_gas.py", 92, 93, """\
                sum_x += math.cos(2 * math.pi * (n - 1) / 6) if n else 0
                sum_y += math.sin(2 * math.pi * (n - 1) / 6) if n else 0
"""),
    ("lattice_gas.py", 366, 365, "        step_done()"),
    ("lattice_gas.py", 374, 381, ""),
    ("lattice_gas.py", 388, 388, ""),
]
REPAIR = [("lattice_gas.py", 129, 135, """\
        table = bytearray(range(2 ** 7))
        for state1, state2 in self._pick_random_rule().items():
            table[state1] = state2
        return xp.frombuffer(table, dtype = xp.uint8)[cells]
""")]
STEPS = 2500
WARM_UP = 50
BEFORE = 10
