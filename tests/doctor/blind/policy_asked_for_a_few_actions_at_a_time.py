# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Unity-Technologies/ml-agents/issues/365 (also araffin/sbx#35)

Reinforcement learning runs slower on a machine with strong GPUs than on its processor alone, by a wide margin; the
GPUs show almost no load while experience is gathered.

Cause: a small policy is asked for the actions of sixteen environments at a time: each call launches a handful of tiny
kernels and waits for the answer, and the launches take far longer than the kernels.
Line: policy_asked_for_a_few_actions_at_a_time.py:act
Remedy: as much experience from eight times as many environments, asked for in an eighth of the calls.
"""
import time

import numpy as np
import torch
from torch import nn

import blind


class CartPoles:
    """Carts that balance a pole, all advanced together."""

    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action):
        x, v, angle, turn = self.state.T
        force = np.where(action > 0, 10.0, -10.0)
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turn**2 * sine) / 1.1
        spin = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        self.state = np.stack([x + 0.02 * v, v + 0.02 * (push - 0.05 * spin * cosine / 1.1), angle + 0.02 * turn,
                               turn + 0.02 * spin], axis=1).astype(np.float32)
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[fallen] = self.rng.uniform(-0.05, 0.05, (int(fallen.sum()), 4))
        return self.state, np.where(fallen, 0.0, 1.0).astype(np.float32)


def make_policy(width):
    layers = [nn.Linear(4, width), nn.LayerNorm(width), nn.Tanh()]
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def act(policy, state, device):
    with torch.no_grad():
        logits = policy(torch.from_numpy(state).to(device))
        return torch.distributions.Categorical(logits=logits).sample().cpu().numpy()


def rollout(policy, carts, calls, device):
    """States and rewards of `calls` steps of all carts, and the seconds after the first answer."""
    states, rewards, begin = [], [], None
    for _ in range(calls):
        states.append(carts.state)
        action = act(policy, carts.state, device)
        begin = begin or time.perf_counter()  # the first answer also waits for the update before
        rewards.append(carts.step(action)[1])
    return np.concatenate(states), np.concatenate(rewards), time.perf_counter() - begin


def main():
    loop = blind.Loop("policy_asked_for_a_few_actions_at_a_time", "launch", steps=250)
    device = loop.device()
    torch.manual_seed(0)
    experience, width, rows = loop.size(512, 32), loop.size(2048, 16), loop.size(16384, 8)
    updates = loop.size(20 if loop.variant == "healthy" else 4, 1)
    count = loop.size(16, 4) if loop.planted else experience // loop.size(4, 2)
    policy, carts = make_policy(64).to(device), CartPoles(count, 0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    critic = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width),
                           nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)).to(device, dtype)
    fitted = torch.optim.SGD(critic.parameters(), lr=1e-3)
    improved = torch.optim.Adam(policy.parameters(), lr=1e-4)
    memory = torch.zeros(loop.size(400, 4) * experience, 5, device=device)

    def update(states, value):
        rows_now = torch.randint(len(memory), (rows,), device=device)
        batch = memory[rows_now].to(dtype)
        error = (critic(batch[:, :4]) - batch[:, 4:]).float().square().mean()
        fitted.zero_grad(set_to_none=True)
        error.backward()
        fitted.step()
        chance = torch.log_softmax(policy(states), dim=1)[:, 0]
        improved.zero_grad(set_to_none=True)
        (-(chance * value).mean()).backward()
        improved.step()

    def step(i):
        states, rewards, seconds = rollout(policy, carts, experience // count, device)
        loop.planted_ms.append(1e3 * seconds)
        seen = torch.from_numpy(np.concatenate([states, rewards[:, None]], axis=1)).to(device)
        memory[(i % (len(memory) // experience)) * experience:][:experience] = seen
        for _ in range(updates):
            update(seen[:, :4], seen[:, 4] - seen[:, 4].mean())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
