# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch#39842

Turning the list of observations that the environment returns into a tensor takes far longer than stacking them first.

Cause: the tensor constructor converts the nested sequence number by number; the GPU waits for each batch
Line: batch_tensor_from_list_of_arrays.py:to_batch
Remedy: stack the arrays with NumPy, then take one tensor from the result
"""
import numpy
import torch

import blind
import training


class Replay:
    """Observations as an agent stored them, one array each."""

    def __init__(self, count, width):
        rng = numpy.random.default_rng(4)
        self.observations = [rng.standard_normal(width).astype(numpy.float32) for _ in range(count)]
        self.rng = rng

    def sample(self, count):
        return [self.observations[i] for i in self.rng.integers(len(self.observations), size=count)]


def to_batch(observations, stacked):
    if stacked:
        return torch.from_numpy(numpy.stack(observations))
    return torch.tensor(observations)


def main():
    loop = blind.Loop("batch_tensor_from_list_of_arrays", "host", steps=250)
    device = loop.device()
    count, width, hidden = loop.size(512, 8), loop.size(1024, 32), loop.size(8192, 64)
    noises = loop.size(64 if loop.variant == "healthy" else 16, 2)
    replay = Replay(loop.size(4096, 64), width)
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden),
                                 torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
                                 torch.nn.Linear(hidden, 32))
    policy = policy.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    gaps, dtype = training.GpuGaps(loop, device), next(policy.parameters()).dtype

    def step(_):
        batch = to_batch(replay.sample(count), stacked=not loop.planted)
        gaps.begin()
        x = batch.to(device).to(dtype).repeat(noises, 1)
        actions = policy(x + 0.05 * torch.randn_like(x))
        loss = torch.log_softmax(actions.float(), dim=1).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
