# SPDX-License-Identifier: Apache-2.0
"""github.com/lightly-ai/lightly#8

Putting together the two views of each image into a batch takes longer than it should.

Cause: collate concatenates three times in the main process, twice into fresh memory, and the GPU waits for it
Line: two_view_collate_concatenates_thrice.py:collate
Remedy: one pass from the views into the output
"""
import torch

import blind
import training


class Collate:
    """Makes one tensor of a list of (view, other view): all first views, then all second ones."""

    def __init__(self, one_pass, batch, shape, pinned):
        self.one_pass = one_pass
        self.outputs = [torch.empty(2 * batch, *shape, pin_memory=pinned) for _ in range(2)]
        self.copied = [None, None]

    def collate(self, pairs, i):
        if self.copied[i % 2] is not None:  # the copy that last read this output
            self.copied[i % 2].synchronize()
        output = self.outputs[i % 2]
        if self.one_pass:
            return torch.stack([pair[k] for k in (0, 1) for pair in pairs], out=output)
        first = torch.cat([view.unsqueeze(0) for view, _ in pairs])
        second = torch.cat([view.unsqueeze(0) for _, view in pairs])
        return torch.cat([first, second], out=output)

    def sent(self, i):
        if self.outputs[0].is_pinned():
            self.copied[i % 2] = torch.cuda.Event()
            self.copied[i % 2].record()


def main():
    loop = blind.Loop("two_view_collate_concatenates_thrice", "host", steps=250)
    device = loop.device()
    batch, shape = loop.size(256, 2), loop.size((3, 128, 128), (3, 16, 16))
    width, depth = loop.size(256, 4), loop.size(12 if loop.variant == "healthy" else 3, 1)
    torch.manual_seed(0)
    images = torch.rand(loop.size(2048, 16), *shape)
    layers = [torch.nn.Conv2d(3, width, 4, stride=4), torch.nn.ReLU()]
    for _ in range(depth):
        layers += [torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 64))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = model.to(device, dtype).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    collate = Collate(not loop.planted, batch, shape, pinned=device.type == "cuda")
    gaps = training.GpuGaps(loop, device)
    order = torch.Generator().manual_seed(9)

    def step(i):
        chosen = torch.randint(len(images), (batch,), generator=order).tolist()
        views = collate.collate([(images[k], images[k - 1]) for k in chosen], i)
        gaps.begin()
        x = views.to(device, non_blocking=True).to(dtype, memory_format=torch.channels_last)
        collate.sent(i)
        first, second = torch.nn.functional.normalize(model(x).float(), dim=1).chunk(2)
        loss = torch.nn.functional.cross_entropy(first @ second.t() / 0.1, torch.arange(batch, device=device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
