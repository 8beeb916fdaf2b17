# SPDX-License-Identifier: Apache-2.0
"""https://github.com/recommenders-team/recommenders/issues/1379 (made faster in RUCAIBox/RecBole#103)

Training a recommender: even when I sample only a hundred items that a user has not touched, preparing them is very
slow. How can I train on the large data set in an hour?

Cause: for every pair of the batch a Python loop draws items until three are found that the user has not touched,
about 25000 turns a step, in the training process and before anything is launched.
Line: negatives_drawn_one_by_one.py:draw
Remedy: all of them are drawn at once as an array and looked up in one table; only the few hits are drawn again.
"""
import random

import numpy as np
import torch
from torch import nn

import blind
import training


class Negatives:
    """Items that a user has not touched."""

    def __init__(self, users, items, touched, one_by_one):
        self.items, self.one_by_one = items, one_by_one
        self.touched = [set(row.tolist()) for row in touched]
        self.table = np.zeros((users, items), bool)
        self.table[np.arange(users)[:, None], touched] = True
        self.rng = np.random.default_rng(5)

    def draw(self, users, count):
        drawn = []
        for user in users.tolist():
            touched = self.touched[user]
            for _ in range(count):
                item = random.randrange(self.items)
                while item in touched:
                    item = random.randrange(self.items)
                drawn.append(item)
        return torch.tensor(drawn).view(-1, count)

    def draw_at_once(self, users, count):
        users = np.repeat(users, count)
        drawn = self.rng.integers(self.items, size=len(users))
        again = np.flatnonzero(self.table[users, drawn])
        while len(again):
            drawn[again] = self.rng.integers(self.items, size=len(again))
            again = again[self.table[users[again], drawn[again]]]
        return torch.from_numpy(drawn).view(-1, count)

    def __call__(self, users, count):
        return self.draw(users, count) if self.one_by_one else self.draw_at_once(users, count)


class Scores(nn.Module):
    """What a user gives to items."""

    def __init__(self, users, items, width, hidden):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 1))

    def forward(self, users, items):
        user = self.users(users).unsqueeze(1).expand(-1, items.shape[1], -1)
        return self.mlp(torch.cat([user, self.items(items)], dim=-1)).squeeze(-1)


def main():
    loop = blind.Loop("negatives_drawn_one_by_one", "host", steps=350)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    random.seed(0)
    users, items, each = loop.size(10_000, 50), loop.size(20_000, 100), loop.size(60, 5)
    batch, count = loop.size(8192, 16), 3
    touched = np.random.default_rng(2).integers(items, size=(users, each))
    negatives = Negatives(users, items, touched, loop.planted)
    model = Scores(users, items, loop.size(256, 8), loop.size(4096, 16)).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(3)

    def step(_):
        who = rng.integers(users, size=batch)
        liked = torch.from_numpy(touched[who, rng.integers(each, size=batch)]).view(-1, 1)
        shown = torch.cat([liked, negatives(who, count)], dim=1)
        scores = model(torch.from_numpy(who).to(device), shown.to(device)).float()
        loss = -nn.functional.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
