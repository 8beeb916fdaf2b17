# SPDX-License-Identifier: Apache-2.0
import time

import torch

import models
import plant


class Checked(torch.nn.Module):
    """A layer whose output is looked at by the host, as a search for the first NaN does."""

    def __init__(self, product, rest, program):
        super().__init__()
        self.product, self.rest, self.program = product, rest, program

    def forward(self, batch):
        self.program.goes_on()
        out = self.product(batch)
        self.program.has_launched()
        out = self.rest(out)
        seen = out.detach()
        values = seen.max(), seen.min(), seen.mean(), seen.norm(), seen[0, 0]
        if self.program.fix is None:
            self.program.waits()
            for value in values:
                if not abs(value.item()) < float("inf"):
                    raise SystemExit("the activations are not finite")
        return out


class ItemEachStep(plant.Program):
    """The host reads values with .item() after every layer, so it never runs ahead of the device.

    The device stands still from the last reduction of a layer, but for copies of one number each, to the first kernel
    of the next: to where the host comes back, as events tell, and for as long as it then takes to launch."""

    name = "item_each_step"
    verdicts = ("sync_bound",)
    cause = "syncs"
    fixes = {"syncs": "the values stay on the device"}

    def prepare(self):
        parts = models.perceptron(4096, 8)
        layers = [Checked(parts[i], parts[i + 1:i + 2], self) for i in range(0, len(parts), 2)]
        self.train = models.Trainer(torch.nn.Sequential(*layers))
        # The last layer's wait ends in the backward pass, whose first launch (one of eight) is not counted.
        self.train.model.register_forward_hook(self.mark_backward)
        # Large, so that within a layer the host is ahead of the device, also when it is recorded on a slow core.
        self.batch = torch.randn(8192, 4096, device=self.device, dtype=torch.bfloat16)
        self.stands_since, self.issued, self.launch_ms = None, None, []
        self.copies_ms = 5 * self.copy_ms()

    def copy_ms(self, times=100):
        """Of one number to the host, queued behind other work so that nothing of the host is in it."""
        number, place = torch.zeros(1, device=self.device), torch.zeros(1).pin_memory()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(10_000_000)
        begin.record()
        for _ in range(times):
            place.copy_(number, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / times

    def mark_backward(self, _model, _given, out):
        out.register_hook(self.goes_on)

    def waits(self):
        self.stands_since = torch.cuda.Event(enable_timing=True)
        self.stands_since.record()

    def goes_on(self, _=None):
        self.issued = None
        if self.stands_since is not None:
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            self.marks.append((self.stands_since, end))
            self.stands_since, self.issued = None, time.perf_counter()

    def has_launched(self):
        if self.issued is not None:
            self.launch_ms.append(1e3 * (time.perf_counter() - self.issued))

    def begin(self):
        self.launch_ms.clear()

    def step(self):
        self.train(self.batch)

    def planted_ms(self, step_ms):
        launches_ms, copies_ms = sum(self.launch_ms), self.copies_ms * len(self.marks)
        return super().planted_ms(step_ms) + (launches_ms - copies_ms) / self.counted


if __name__ == "__main__":
    plant.main(ItemEachStep)
