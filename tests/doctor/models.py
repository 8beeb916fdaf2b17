# SPDX-License-Identifier: Apache-2.0
"""The small models that the planted programs train."""
import time

import torch


def perceptron(width=4096, layers=4, dtype=torch.bfloat16):
    """Linear layers with ReLU between them: nearly all of its time is matrix products."""
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width, bias=False), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1]).to("cuda", dtype)


class Trainer:
    """Training of a model with plain SGD in fused kernels; the loss is half the squared norm of the output."""

    def __init__(self, model, rate=1e-9):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=True)

    def __call__(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(batch)
        out.backward(out.detach())
        self.optimizer.step()

    def capture(self, batch):
        """One step as a CUDA graph, which reads `batch` where it lies."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self(batch)
        return graph


def graph_ms(graph, repeats=50):
    """Milliseconds that the device needs for a captured step, with nothing to launch between its kernels."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / repeats
