# SPDX-License-Identifier: Apache-2.0
import time

import torch

import models
import plant


class TinyBatch(plant.Program):
    """A batch so small that the device waits for the host to launch each kernel."""

    name = "tiny_batch"
    verdicts = ("launch_bound",)
    cause = "graphs"
    fixes = {"graphs": "the whole step captured with torch.cuda.graph", "batch": "batch 64 instead of 32"}

    def prepare(self):
        self.batches = 2 if self.fix == "batch" else 1
        self.batch = torch.randn(32 * self.batches, 512, device=self.device, dtype=torch.bfloat16)
        self.train = models.Trainer(models.perceptron(512, 16))
        self.graph = None
        if self.fix == "graphs":
            self.graph = self.capture()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.train(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.train(self.batch)
        return graph

    def step(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            self.train(self.batch)

    def device_ms(self, steps=50):
        """A step with nothing to launch between its kernels."""
        graph = self.capture()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            graph.replay()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / steps

    def planted_ms(self, step_ms):
        return step_ms - self.alone

    def stretch(self, steps, after_step=lambda: None):
        if self.fix is None and not hasattr(self, "alone"):
            self.alone = self.device_ms()
        return super().stretch(steps, after_step)


if __name__ == "__main__":
    plant.main(TinyBatch)
