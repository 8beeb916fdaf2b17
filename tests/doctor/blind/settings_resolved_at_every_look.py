# SPDX-License-Identifier: Apache-2.0
"""https://github.com/facebookresearch/habitat-lab/pull/1120 (more of it in NVIDIA-NeMo/Megatron-Bridge#2199)

Since the move to another library for the configuration, the environments take fewer steps a second: 134 instead of
168. Neither the simulator nor the agent has changed.

Cause: the environments look their settings up in the configuration at every step of every agent. Each look walks up
the tree for its flags, and follows references to other settings, in Python; it costs as much as simulating does.
Line: settings_resolved_at_every_look.py:__getattr__ (of Settings, called by move and reward).
Remedy: what an environment needs is read once, when it is made, and kept in plain attributes.
"""
import math
import random
import re
import types

import numpy
import torch
from torch import nn

import blind
import training

REFERENCE = re.compile(r"\$\{([a-z_.]+)\}")
TREE = {
    "unit": 0.01,
    "agent": {"stride": "${unit}", "radius": 0.05, "turn": {"degrees": 10.0, "noise": 0.02}},
    "arena": {"side": 2.0, "goal": {"x": 0.7, "y": -0.4, "reach": 0.1}},
    "reward": {"success": 2.5, "slack": -0.01, "measure": {"scale": 1.0, "reach": "${arena.goal.reach}"}},
}


class Settings:
    """A configuration tree whose values may refer to others: flags are inherited, references are followed."""

    def __init__(self, content, parent=None, **flags):
        made = {key: Settings(value, self) if isinstance(value, dict) else value for key, value in content.items()}
        self.__dict__.update(_content=made, _parent=parent, _flags=flags)

    def __getattr__(self, key):
        if key.startswith("__"):
            raise AttributeError(key)
        node, flags = self, {}
        while node is not None:
            for name in ("struct", "readonly", "allow_objects"):
                if name in node._flags:
                    flags.setdefault(name, node._flags[name])
            root, node = node, node._parent
        if key not in self._content:
            raise KeyError(key) if flags.get("struct") else AttributeError(key)
        value = self._content[key]
        if isinstance(value, str):
            found = REFERENCE.fullmatch(value)
            if found:
                value = root
                for part in found.group(1).split("."):
                    value = getattr(value, part)
        return value


def plain(settings):
    """The same tree with all references followed, as plain attributes."""
    return types.SimpleNamespace(**{key: plain(value) if isinstance(value, Settings) else getattr(settings, key)
                                    for key, value in settings._content.items()})


class Arena:
    """An agent that turns and walks in a square until it has reached the goal."""

    def __init__(self, settings, seed):
        self.settings, self.random = settings, random.Random(seed)
        self.place()

    def place(self):
        half = self.settings.arena.side / 2
        self.x, self.y = (self.random.uniform(-half, half) for _ in range(2))
        self.heading = self.random.uniform(-math.pi, math.pi)

    def move(self, action):
        agent, side = self.settings.agent, self.settings.arena.side
        if action:
            turned = math.radians(agent.turn.degrees) * (1 if action == 1 else -1)
            self.heading += turned + self.random.gauss(0.0, agent.turn.noise)
        else:
            limit = side / 2 - agent.radius
            self.x = min(max(self.x + agent.stride * math.cos(self.heading), -limit), limit)
            self.y = min(max(self.y + agent.stride * math.sin(self.heading), -limit), limit)

    def reward(self):
        goal = self.settings.arena.goal
        far = math.hypot(self.x - goal.x, self.y - goal.y)
        if far < self.settings.reward.measure.reach:
            self.place()
            return self.settings.reward.success
        return self.settings.reward.slack - self.settings.reward.measure.scale * far

    def step(self, action):
        before = self.reward()
        for _ in range(4):
            self.move(action)
        return self.x, self.y, math.cos(self.heading), math.sin(self.heading), self.reward() - before


def main():
    loop = blind.Loop("settings_resolved_at_every_look", "host", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 200)
        return training.run_full_steps(loop, device)
    settings = Settings(TREE, struct=True, readonly=True)
    arenas = [Arena(settings if loop.planted else plain(settings), seed) for seed in range(loop.size(128, 8))]
    torch.manual_seed(0)
    width, rows = loop.size(2048, 16), loop.size(32768, 32)
    network, optimizer = training.make_wide(width, width, device, groups=2)
    enter = nn.Linear(5, width, bias=False, device=device, dtype=torch.bfloat16)
    replay = torch.randn(rows, 5, device=device)
    seen = replay[:len(arenas)].clone()

    def step(i):
        nonlocal seen
        with torch.no_grad():
            scores = network(enter(seen.to(torch.bfloat16)))[:, :3].float()
            actions = scores.softmax(dim=1).multinomial(1)[:, 0].tolist()
        answers = numpy.array([arena.step(action) for arena, action in zip(arenas, actions)], dtype=numpy.float32)
        seen = torch.from_numpy(answers).to(device)
        at = i * len(arenas) % rows
        replay[at:at + len(arenas)] = seen
        with torch.no_grad():
            played = enter(replay.to(torch.bfloat16))
        training.train(network, optimizer, played)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
