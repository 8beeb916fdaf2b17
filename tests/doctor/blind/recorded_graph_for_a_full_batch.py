# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/benchmark/pull/706

Recording the training step of an image network as a graph nearly doubled its speed in the published test; on our
batches it changes nothing that one could measure.

Cause: none. At this batch the kernels are long and the launches run far ahead of the GPU, which is never without work.
Line: recorded_graph_for_a_full_batch.py:step
Remedy: there is none to find; `fixed` does the obvious thing and replays a recorded step.
Trap: the graph saves launches that nobody waits for (-0.1 to -0.4% in the thread at a batch of 8 and more). The
autotuning of the convolutions is done with after the first step, since all images have one size.
"""
import torch
from torch import nn

import blind


def conv(inputs, outputs, size, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3)
        self.skip = conv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.skip(x) + self.second(torch.relu(self.first(x))))


def make_network(width, depth, classes):
    stages, inputs = [conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for stage in range(4):
        for block in range(depth):
            outputs = width * 2**stage
            stages.append(Basic(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Recorded:
    """A training step on fixed buffers, recorded once and replayed."""

    def __init__(self, train, warm_up=3):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                train()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            train()

    def __call__(self):
        self.graph.replay()


def main():
    loop = blind.Loop("recorded_graph_for_a_full_batch", "none", steps=200)
    device = loop.device()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    cuda = device.type == "cuda"
    batch, side = loop.size(384 if loop.variant == "healthy" else 192, 2), loop.size(224, 32)
    model = make_network(loop.size(64, 4), loop.size(3, 1), loop.size(1000, 8))
    model.to(device, torch.bfloat16 if cuda else torch.float32, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    dtype = next(model.parameters()).dtype
    stock = torch.randn(4, batch, 3, side, side, device=device, dtype=dtype)
    labels = torch.randint(loop.size(1000, 8), (batch,), device=device)
    images = torch.empty(batch, 3, side, side, device=device, dtype=dtype, memory_format=torch.channels_last)

    def train():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()

    images.copy_(stock[0])
    run = Recorded(train) if cuda and loop.variant == "fixed" else train

    def step(i):
        images.copy_(stock[i % 4])
        run()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
