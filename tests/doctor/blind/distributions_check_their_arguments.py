# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Toni-SM/skrl/pull/233 (also pytorch/pytorch#48743, Eclectic-Sheep/sheeprl#248)

Since distributions check their arguments by default, reinforcement learning with a simulator on the GPU has become
slower; the arguments were never wrong. Switching the checks off improves the performance.

Cause: mean, deviation and sample of each agent's normal distribution are tested in every step of the rollout, and the
host waits for each answer, so the simulator's kernels are launched while the GPU has nothing to do.
Line: distributions_check_their_arguments.py:act
Remedy: validate_args=False.
"""
import torch
from torch import nn
from torch.distributions import Normal

import blind
import training


class Policy(nn.Module):
    """What one agent does: the mean of its actions; their deviation does not depend on what it sees."""

    def __init__(self, inputs, width, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                  nn.Linear(width, width), nn.ReLU(), nn.Linear(width, actions))
        self.log_deviation = nn.Parameter(torch.full((actions,), -1.0))

    def forward(self, seen):
        return self.body(seen).float(), self.log_deviation.float().exp()


class Simulator:
    """Robots whose state is pushed by the actions of all agents; a few products stand for the contacts."""

    def __init__(self, robots, size, actions, device, dtype):
        self.state = torch.randn(robots, size, device=device).to(dtype)
        self.contacts = (torch.randn(2, size, size, device=device) / size**0.5).to(dtype)
        self.push = (torch.randn(actions, size, device=device) / actions**0.5).to(dtype)

    def advance(self, actions):
        force = actions.to(self.push.dtype) @ self.push
        for contact in self.contacts:
            force = torch.tanh(force + self.state @ contact)
        self.state = 0.9 * self.state + 0.1 * force
        return -self.state.float().square().mean(dim=1)


def act(policies, seen, check):
    """Actions of all agents and the logarithms of their densities."""
    actions, densities = [], []
    for policy in policies:
        mean, deviation = policy(seen)
        chosen = Normal(mean, deviation.expand_as(mean), validate_args=check)
        action = chosen.rsample().detach()
        densities.append(chosen.log_prob(action).sum(dim=1))
        actions.append(action)
    return torch.cat(actions, dim=1), torch.stack(densities)


def main():
    loop = blind.Loop("distributions_check_their_arguments", "sync", steps=160)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    robots, size, width = loop.size(32768 if healthy else 8192, 8), loop.size(1024, 16), loop.size(2048, 16)
    agents, actions, horizon = 4, loop.size(8, 2), loop.size(4 if healthy else 12, 2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        policies = nn.ModuleList(Policy(size, width, actions) for _ in range(agents)).to(dtype)
    simulator = Simulator(robots, size, agents * actions, device, dtype)
    optimizer = torch.optim.SGD(policies.parameters(), lr=1e-4)
    span = training.GpuSpan(loop, device)

    def roll_out(check):
        rewards = []
        with torch.no_grad():
            for _ in range(horizon):
                chosen, _ = act(policies, simulator.state, check)
                rewards.append(simulator.advance(chosen))
        return torch.stack(rewards).sum(dim=0)

    def update(check):
        returns = roll_out(check)
        _, densities = act(policies, simulator.state, check)
        loss = -(densities.mean(dim=0) * (returns - returns.mean())).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if loop.planted:  # what an update takes where nobody asks
        blind.take_gpu()
        span.due = span.queued(lambda: update(False))

    def step(i):
        span.begin()
        update(loop.planted)
        span.end()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
