# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/torchtitan/pull/3274 (also pytorch/pytorch#108968, vllm-project/vllm#1599)

A trace shows 192 synchronisations of the stream where 36 would do. The rest come from repeat_interleave, which is told
how often to repeat each row by a tensor on the GPU; how many rows there will be is known to the host all along.

Cause: without output_size the sum of the repeats is read back before memory for the result can be had, so the host
waits at each repetition and launches what follows while the GPU has nothing to do.
Line: repeats_counted_by_the_host.py:spread
Remedy: output_size, which the host knows.
"""
import torch
from torch import nn

import blind
import training


class Molecules:
    """A batch of graphs of differing size: who is whose neighbour, sorted by the atom that receives."""

    def __init__(self, graphs, least, most, degree, generator):
        atoms = torch.randint(least, most, (graphs,), generator=generator)
        self.total = int(atoms.sum())
        bonds = torch.randint(1, degree, (self.total,), generator=generator)
        self.bonds_total = int(bonds.sum())
        self.sources = torch.randint(self.total, (self.bonds_total,), generator=generator)
        self.atoms, self.bonds = atoms, bonds

    def to(self, device):
        self.atoms, self.bonds, self.sources = (x.to(device) for x in (self.atoms, self.bonds, self.sources))
        self.graph_of_atom = torch.repeat_interleave(self.atoms)
        self.atom_of_bond = torch.repeat_interleave(self.bonds)
        return self


def spread(rows, repeats, total, told):
    """Each row as often as `repeats` says."""
    if told:
        return rows.repeat_interleave(repeats, dim=0, output_size=total)
    return rows.repeat_interleave(repeats, dim=0)


class Layer(nn.Module):
    """Messages along the bonds, and one state for the whole graph that all its atoms see."""

    def __init__(self, width):
        super().__init__()
        self.send, self.receive, self.whole = (nn.Linear(width, width) for _ in range(3))

    def forward(self, atoms, graphs, batch, told):
        received = spread(self.receive(atoms), batch.bonds, batch.bonds_total, told)
        message = torch.relu(self.send(atoms)[batch.sources] + received)
        atoms = atoms + 0.1 * torch.zeros_like(atoms).index_add_(0, batch.atom_of_bond, message)
        atoms = torch.tanh(atoms + spread(self.whole(graphs), batch.atoms, batch.total, told))
        return atoms, graphs + 0.01 * torch.zeros_like(graphs).index_add_(0, batch.graph_of_atom, atoms)


def main():
    loop = blind.Loop("repeats_counted_by_the_host", "sync", steps=500)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    width, layers, graphs = loop.size(256, 8), loop.size(32, 2), loop.size(1536 if healthy else 384, 4)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if healthy:
        loop.steps = min(loop.steps, 200)
    generator = torch.Generator().manual_seed(1)
    batches = [Molecules(graphs, 10, 40, 8, generator).to(device) for _ in range(4)]
    kinds = torch.randn(100, width, generator=generator).to(device, dtype)
    labels = [torch.randint(100, (batch.total,), generator=generator).to(device) for batch in batches]
    with torch.device(device):
        network = nn.ModuleList(Layer(width) for _ in range(layers)).to(dtype)
        energy = nn.Linear(width, 1).to(dtype)
    span, best = training.GpuSpan(loop, device), []

    @torch.no_grad()
    def score(k, told):
        """Energies of a batch of candidates; nothing of them is needed on the host."""
        atoms, state = kinds[labels[k]], torch.ones(graphs, width, device=device, dtype=dtype)
        for layer in network:
            atoms, state = layer(atoms, state, batches[k], told)
        return energy(state).float().squeeze(1)

    if loop.planted:  # what a batch takes where nobody asks
        blind.take_gpu()
        span.due = sum(span.queued(lambda: score(k, True)) for k in range(len(batches))) / len(batches)

    def step(i):
        span.begin()
        energies = score(i % len(batches), not loop.planted)
        span.end()
        best.append(energies.min())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
