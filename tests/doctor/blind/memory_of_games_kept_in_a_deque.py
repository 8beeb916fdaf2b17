# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ageron/handson-ml/pull/204 (also coax-dev/coax#25, HorizonRobotics/SocialRobot#5)

Deep Q-learning gets slower and slower as the replay memory fills, until it holds its million of experiences; then it
stays slow. A batch is drawn from it in each step, always of the same size.

Cause: the memory is a deque, in which an element in the middle is found by walking there from an end, over blocks of
64; a batch makes that walk a thousand times, while the GPU waits for it.
Line: memory_of_games_kept_in_a_deque.py:Memory.draw
Remedy: a list whose oldest element is overwritten, where each element is found at once.
"""
import collections
import random

import numpy as np
import torch
import torch.nn.functional as F

import blind
import training

ACTIONS, SEEN = 8, 32


class Memory:
    """The latest experiences; the oldest is dropped when there is no room."""

    def __init__(self, room):
        self.kept = collections.deque(maxlen=room)

    def extend(self, experiences):
        self.kept.extend(experiences)

    def draw(self, count):
        return random.sample(self.kept, count)


class Ring(Memory):
    """The same in a list."""

    def __init__(self, room):
        self.kept, self.room, self.oldest = [], room, 0

    def extend(self, experiences):
        for experience in experiences:
            if len(self.kept) < self.room:
                self.kept.append(experience)
            else:
                self.kept[self.oldest] = experience
                self.oldest = (self.oldest + 1) % self.room


def played(count):
    """Experiences of earlier games."""
    rng = np.random.default_rng(0)
    states = list(rng.standard_normal((count + 1, SEEN), dtype=np.float32))
    actions, rewards = rng.integers(0, ACTIONS, count).tolist(), rng.standard_normal(count).tolist()
    return list(zip(states, actions, rewards, states[1:]))


def main():
    loop = blind.Loop("memory_of_games_kept_in_a_deque", "host")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    random.seed(0)
    room, batch, width = loop.size(1_000_000, 2000), loop.size(1024, 16), loop.size(8192, 16)
    memory = (Memory if loop.planted else Ring)(room)
    memory.extend(played(room))
    network, optimizer = training.make_wide(SEEN, width, device, groups=2)
    target, _ = training.make_wide(SEEN, width, device, groups=2)
    rng, state = np.random.default_rng(1), np.zeros(SEEN, np.float32)

    @torch.no_grad()
    def act(state):
        seen = torch.from_numpy(state).to(device, torch.bfloat16)
        return int(network(seen[None])[0, :ACTIONS].argmax())

    def learn():
        states, actions, rewards, following = zip(*memory.draw(batch))
        states, following = (torch.from_numpy(np.stack(x)).to(device, torch.bfloat16) for x in (states, following))
        actions, rewards = torch.tensor(actions, device=device), torch.tensor(rewards, device=device)
        with torch.no_grad():
            wanted = rewards + 0.99 * target(following)[:, :ACTIONS].float().amax(dim=1)
        worth = network(states)[:, :ACTIONS].gather(1, actions[:, None])[:, 0]
        loss = F.smooth_l1_loss(worth.float(), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def step(i):
        nonlocal state
        action = act(state)
        after = (0.9 * state + rng.standard_normal(SEEN) / (1 + action)).astype(np.float32)
        memory.extend([(state, action, float(after.sum()), after)])
        state = after
        learn()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
