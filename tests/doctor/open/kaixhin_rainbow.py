# SPDX-License-Identifier: Apache-2.0
"""Rainbow learns a game from its screen: four moves of the game, then an update from 32 remembered moves, a step.

An engineer sees small networks whose every operation is over before Python has launched the next. Most launches come
from the convolutions: the script switches cuDNN off unless it is told otherwise, and what takes its place works on one
picture of the 32 after another, two launches each, three times forwards and once backwards. The repair leaves cuDNN on,
an option of the script. The other repair corrects two tables by arithmetic instead of by masks, which wait for the GPU.
In both variants the game is a stand-in for packages that may be missing, its screen is as large as the real one, and
the memory holds 100 000 moves and is used after 1600, as in the script's own data-efficient settings.
"""
CAUSE = "launch"
LINE = "model.py:70"
LINES = ["agent.py:66", "agent.py:96", "main.py:75"]
REPOSITORY = "Kaixhin/Rainbow"
COMMIT = "1745b184c3dfc03d4ffa3ce2342ced9996b39a60"
COMMAND = ["main.py", "--memory-capacity", "100000", "--learn-start", "1600"]
EDITS = [
    ("main.py", 9, 9, ""),
    ("main.py", 17, 17, ""),
    ("main.py", 25, 25, "parser.add_argument('--game', type=str, default='space_invaders', help='ATARI game')"),
    ("env.py", 4, 5, '''\
import numpy as np
'''),
    ("env.py", 7, 7, '''\


class ALEInterface():
  """A screen of 210 x 160 grey pixels on which something moves, three lives, and now and then a point."""

  def __init__(self):
    self.random = np.random.default_rng(0)
    self.back = self.random.integers(256, size=(210, 160), dtype=np.uint8)

  def setInt(self, *_):
    pass

  setFloat = setBool = loadROM = setInt

  def getMinimalActionSet(self):
    return list(range(6))

  def reset_game(self):
    self.moves, self.left, self.screen = 0, 3, self.back.copy()

  def act(self, action):
    self.moves += 1
    at = self.moves % 200
    self.screen[:] = self.back
    self.screen[at:at + 10, 20 * action:20 * action + 30] = 255
    if self.random.random() < 0.001:
      self.left -= 1
    return int(self.random.random() < 0.01)

  def game_over(self):
    return self.left == 0

  def lives(self):
    return self.left

  def getScreenGrayscale(self):
    return self.screen


ROWS, COLUMNS = np.arange(84) * 210 // 84, np.arange(84) * 160 // 84
'''),
    ("env.py", 28, 28, "    state = self.ale.getScreenGrayscale()[ROWS][:, COLUMNS]"),
    ("env.py", 12, 12, "    self.ale = ALEInterface()"),
    ("env.py", 18, 18, "    self.ale.loadROM(args.game)  # ROM loading must be done after setting options"),
]
REPAIR = [("main.py", 75, 75, "  torch.backends.cudnn.enabled = True")]
OTHER_REPAIRS = {"sync": [("agent.py", 85, 86, """\
      l = l - ((u > 0) * (l == u)).long()
      u = u + ((l < (self.atoms - 1)) * (l == u)).long()
""")]}
STEPS = 1000
WARM_UP = 50
BEFORE = 10
