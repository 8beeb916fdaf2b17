# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Coder-Yu/QRec/issues/230 (also RUCAIBox/RecBole#1023 and #2169, benfred/implicit#520)

The recommender trains fast on the GPU, but evaluating it takes many times longer than training, although it runs on the
GPU too and its batches have been made larger.

Cause: before the best items are taken, those that a user knows already are hidden, for one user after the other: a few
tiny kernels for each user, which the host launches more slowly than the GPU is done with them.
Line: seen_items_hidden_user_by_user.py:hide_seen
Remedy: the known items of all users of a batch are hidden by one assignment.
Trap: larger batches, which are recommended, bring as many more kernels.
"""
import torch
from torch import nn

import blind
import training


def hide_seen(scores, users, seen):
    for row, user in enumerate(users):
        scores[row, seen[user]] = -torch.inf


def hide_all_seen(scores, rows, columns):
    scores[rows, columns] = -torch.inf


class Recommender(nn.Module):
    """Scores of all items, from the items that a user has seen last."""

    def __init__(self, items, width, factors):
        super().__init__()
        self.enter = nn.Embedding(items, factors)
        self.widen = nn.Linear(factors, width, bias=False)
        self.body = training.WideNetwork(width, width, width, groups=2)
        self.leave = nn.Linear(width, factors, bias=False)

    def forward(self, history):
        return self.leave(self.body(self.widen(self.enter(history))).mean(dim=1)) @ self.enter.weight.T


@torch.no_grad()
def main():
    loop = blind.Loop("seen_items_hidden_user_by_user", "launch")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    people, items, size = loop.size(4096, 16), loop.size(100_000, 200), loop.size(512, 4)
    known, last, best = loop.size(80, 8), loop.size(48, 4), loop.size(20, 5)
    with torch.device(device):
        model = Recommender(items, loop.size(2048, 16), loop.size(256, 8)).to(torch.bfloat16)
        seen = list(torch.randint(0, items, (people, known)))
        held = torch.randint(0, items, (people,))
    batches = []
    for users in torch.arange(people).split(size):
        columns = torch.cat([seen[user] for user in users])
        rows = torch.arange(size, device=device).repeat_interleave(known)
        history = torch.stack([seen[user][:last] for user in users])
        batches.append((users.tolist(), history, held[users.to(device)], rows, columns))
    hits = torch.zeros((), device=device)

    def step(i):
        users, history, truth, rows, columns = batches[i % len(batches)]
        scores = model(history).float()
        if loop.planted:
            hide_seen(scores, users, seen)
        else:
            hide_all_seen(scores, rows, columns)
        chosen = scores.topk(best, dim=1).indices
        hits.add_((chosen == truth[:, None]).any(dim=1).float().mean())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
