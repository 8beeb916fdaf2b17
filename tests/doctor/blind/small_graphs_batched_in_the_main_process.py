# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pyg-team/pytorch_geometric/issues/572 (also pyg-team/pytorch_geometric#811, #802)

I train on a large number of small graphs with big batches. The CPU is under full load and the GPU under little. A
profile says that much of the time goes to the function that makes one batch out of a list of graphs.

Cause: the training process itself joins a thousand molecules to one graph, in a loop in Python that counts up the node
numbers of each; while it does so, it can't launch anything.
Line: small_graphs_batched_in_the_main_process.py:joined
Remedy: the loader has workers, which join the graphs of later batches during training.
"""
import torch
import torch.nn.functional as F
from torch import nn

import blind
import training


class Graph:
    """One molecule: features of its atoms, its bonds in both directions, and a property to be learnt."""

    def __init__(self, atoms, bonds, features, generator):
        self.x = torch.randn(atoms, features, generator=generator)
        self.edge_index = torch.randint(atoms, (2, bonds), generator=generator)
        self.edge_attr = torch.randn(bonds, 4, generator=generator)
        self.y = torch.randn(1, generator=generator)

    @property
    def keys(self):
        return [key for key, value in self.__dict__.items() if value is not None]

    def dimension(self, key):
        return -1 if "index" in key else 0

    def step(self, key):
        return self.x.shape[0] if "index" in key else 0


def joined(graphs):
    """One large graph out of many, and which of them each atom belongs to."""
    parts = {key: [] for key in graphs[0].keys}
    passed, owners = dict.fromkeys(parts, 0), []
    for i, graph in enumerate(graphs):
        for key in graph.keys:
            item = graph.__dict__[key]
            if passed[key]:
                item = item + passed[key]
            passed[key] += graph.step(key)
            parts[key].append(item)
        owners.append(torch.full((graph.x.shape[0],), i, dtype=torch.long))
    batch = {key: torch.cat(items, dim=graphs[0].dimension(key)) for key, items in parts.items()}
    batch["owner"] = torch.cat(owners)
    return batch


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bond, self.norm = nn.Linear(4, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, source, target, bonds):
        messages = torch.relu(x.index_select(0, source) + self.bond(bonds)).float()
        heard = torch.zeros(x.shape, device=x.device).index_add(0, target, messages)
        return x + self.down(torch.relu(self.up(self.norm(x + heard))))


class Network(nn.Module):
    def __init__(self, features, width, layers):
        super().__init__()
        self.enter, self.leave = nn.Linear(features, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, batch, graphs):
        x = self.enter(batch["x"])
        for layer in self.layers:
            x = layer(x, *batch["edge_index"], batch["edge_attr"])
        total = torch.zeros(graphs, x.shape[1], device=x.device).index_add(0, batch["owner"], x.float())
        return self.leave(total)[:, 0]


def main():
    loop = blind.Loop("small_graphs_batched_in_the_main_process", "input", steps=450)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 250)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    count, size, features = loop.size(20_000, 40), loop.size(1024, 6), loop.size(32, 4)
    atoms = torch.randint(12, 32, (count,), generator=generator).tolist()
    graphs = [Graph(each, 2 * each + 4, features, generator) for each in atoms]
    model = Network(features, loop.size(1024, 8), loop.size(5, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    workers = 0 if loop.planted else loop.size(8, 1)
    loader = torch.utils.data.DataLoader(graphs, size, shuffle=True, drop_last=True, collate_fn=joined,
                                         num_workers=workers, persistent_workers=workers > 0,
                                         pin_memory=device.type == "cuda")
    batches = training.forever(loader)

    def step(i):
        batch = {key: value.to(device, non_blocking=True) for key, value in next(batches).items()}
        with torch.autocast(device.type, dtype=torch.bfloat16):
            predicted = model(batch, size)
        loss = F.mse_loss(predicted.float(), batch["y"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
