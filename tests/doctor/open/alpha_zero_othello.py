# SPDX-License-Identifier: Apache-2.0
"""Self-play of AlphaZero in Othello on 6 x 6 squares; a step is one simulation of the tree search.

An engineer sees the GPU evaluate one position at a time and wait for the game between two of them: the legal moves of
every new position are found in Python, on elements of a NumPy array, and each of the many walks over the squares goes
through map, zip, sum and a lambda. The repair lets the rules work on plain lists and integers. In both variants the log
is not coloured, the random numbers have a seed, and a call that NumPy no longer has is renewed.
"""
CAUSE = "host"
LINE = "othello/OthelloLogic.py:158"
REPOSITORY = "suragnair/alpha-zero-general"
COMMIT = "f1a78e0505c614205f8c60eaa82cd644a07a84b3"
COMMAND = ["main.py"]
EDITS = [
    ("main.py", 3, 3, ""),
    ("main.py", 12, 12, ""),
    ("main.py", 33, 32, "    import numpy\n    import torch\n\n    numpy.random.seed(0)\n    torch.manual_seed(0)"),
    ("MCTS.py", 39, 38, "            step_done()"),
    ("othello/OthelloGame.py", 93, 93, "        return board.tobytes()"),
]
REPAIR = [
    ("othello/OthelloGame.py", 41, 41, "        b.pieces = board.tolist()"),
    ("othello/OthelloGame.py", 44, 44, "        return (np.array(b.pieces), -player)"),
    ("othello/OthelloGame.py", 50, 50, "        b.pieces = board.tolist()"),
    ("othello/OthelloGame.py", 63, 63, "        b.pieces = board.tolist()"),
    ("othello/OthelloLogic.py", 158, 164, """\
        x, y = move[0] + direction[0], move[1] + direction[1]
        while 0 <= x < n and 0 <= y < n:
            yield x, y
            x, y = x + direction[0], y + direction[1]
"""),
]
STEPS = 3500
WARM_UP = 200
