# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Stable-Baselines-Team/stable-baselines3-contrib/issues/113 (also its pull request #118)

An agent with a recurrent policy learns at a tenth of the speed of one without; most of that is the backward pass. On
a machine with a large GPU it is hardly better, and the mini-batch size is asked about.

Cause: as an episode may end at any step, the rollout goes through the LSTM step by step, with the state cleared
before each one: a library call for each step, forward and backward, with little to do for the GPU.
Line: rollout_fed_to_the_lstm_step_by_step.py:remember (and step, its call of backward)
Remedy: the rollout is cut where episodes end, and all of them go through the LSTM side by side in one call.
Trap: a faster GPU does as few things at a time.
"""
import torch
from torch import nn

import blind
import training


class Agent(nn.Module):
    """What is seen is encoded, remembered, and valued."""

    def __init__(self, width, memory):
        super().__init__()
        self.encode = training.WideNetwork(width, width, memory, groups=2)
        self.memory = nn.LSTM(memory, memory)
        self.value = nn.Linear(memory, 1)

    def remember(self, features, starts):
        """features: steps x environments x width; starts: 1 where an episode begins."""
        state = tuple(features.new_zeros(1, *features.shape[1:]) for _ in range(2))
        outputs = []
        for now, start in zip(features, starts):
            keep = (1 - start).view(1, -1, 1)
            output, state = self.memory(now[None], (keep * state[0], keep * state[1]))
            outputs.append(output)
        return torch.cat(outputs)

    def remember_episodes(self, features, order):
        """order: for each episode, where its steps lie in the rollout."""
        episodes = features.flatten(0, 1)[order]
        outputs = self.memory(episodes)[0]
        return torch.zeros_like(outputs.flatten(0, 1)).index_copy(0, order.flatten(), outputs.flatten(0, 1))

    def forward(self, seen, remember, how):
        features = torch.tanh(self.encode(seen))
        return self.value(remember(features, how).reshape(*seen.shape[:2], -1))


def main():
    loop = blind.Loop("rollout_fed_to_the_lstm_step_by_step", "launch")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    steps, lasts, games = loop.size(64, 8), loop.size(16, 4), loop.size(128, 2)
    width, memory = loop.size(4096, 16), loop.size(1024, 8)
    with torch.device(device):
        agent = Agent(width, memory).to(torch.bfloat16)
        rollouts = torch.randn(2, steps, games, width).to(torch.bfloat16)
        targets = torch.randn(steps, games, 1)
        starts = torch.zeros(steps, games, dtype=torch.bfloat16)
        starts[::lasts] = 1  # all games have a time limit
        order = torch.arange(steps * games).view(-1, lasts, games).transpose(0, 1).flatten(1)
    optimizer = torch.optim.SGD(agent.parameters(), lr=1e-4)
    remember, how = (agent.remember, starts) if loop.planted else (agent.remember_episodes, order)

    def step(i):
        values = agent(rollouts[i % len(rollouts)], remember, how)
        loss = (values.float() - targets).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
