# SPDX-License-Identifier: Apache-2.0
"""https://github.com/roboflow/rf-detr/pull/1399

The loader of the detector hands over fewer batches than its workers prepare: adding workers brings less and less,
from sixteen on it fails with too many open files, and almost all bytes of a batch are in one tensor, the images.

Cause: each sample has seven small tensors of its own; each of them goes through a segment of shared memory and a file
descriptor, which one thread of the training process receives, maps and copies one after the other.
Line: targets_sent_tensor_by_tensor.py:collate_as_they_are (it makes them; received in the loader's thread)
Remedy: the worker puts each field of a batch into one tensor.
"""
import resource

import numpy as np
import torch
from torch import nn

import blind
import training

FIELDS = ("boxes", "labels", "area", "iscrowd", "image_id", "orig_size", "size")
PATCH = 16


class Scenes(torch.utils.data.Dataset):
    """Images with some objects each."""

    def __init__(self, samples, side):
        self.samples, self.side = samples, side
        self.images = np.random.default_rng(0).integers(0, 256, size=(64, side, side, 3), dtype=np.uint8)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        objects = 2 + index % 5
        boxes = torch.linspace(0.1, 0.9, 4 * objects).view(objects, 4)
        size = torch.tensor([self.side, self.side])
        return torch.from_numpy(self.images[index % 64]), {
            "boxes": boxes, "labels": torch.arange(objects), "area": boxes.prod(dim=1),
            "iscrowd": torch.zeros(objects, dtype=torch.long), "image_id": torch.tensor([index]),
            "orig_size": size, "size": size.clone()}


def collate_as_they_are(samples):
    images, targets = zip(*samples)
    return torch.stack(images), targets


def collate_packed(samples):
    images, targets = zip(*samples)
    return torch.stack(images), {field: torch.cat([t[field] for t in targets]) for field in FIELDS}


class Detector(nn.Module):
    """A box for each of the first rows that it makes of the patches."""

    def __init__(self, body, width):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 4)

    def forward(self, images):
        batch, side = images.shape[0], images.shape[1] // PATCH
        x = images.view(batch, side, PATCH, side, PATCH, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 3 * PATCH * PATCH)
        return self.head(self.body(x.to(torch.bfloat16) / 128 - 1))


def main():
    loop = blind.Loop("targets_sent_tensor_by_tensor", "input", steps=220)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))  # as the advice against that failure goes
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, side, width = loop.size(16, 2), loop.size(224, 64), loop.size(4096, 16)
    collate = collate_as_they_are if loop.planted else collate_packed
    loader = torch.utils.data.DataLoader(Scenes((loop.steps + loop.warm_up + 1) * batch, side), batch_size=batch,
                                         num_workers=loop.size(6, 1), collate_fn=collate,
                                         pin_memory=device.type == "cuda")
    with torch.device(device):
        rest, _ = training.make_model(loop.size(36, 1), width, device)
        model = Detector(nn.Sequential(nn.Linear(3 * PATCH * PATCH, width), nn.ReLU(), rest), width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(i):
        images, targets = next(batches)
        boxes = torch.cat([t["boxes"] for t in targets]) if loop.planted else targets["boxes"]
        gaps.begin()
        predicted = model(images.to(device, non_blocking=True))[:len(boxes)].float().sigmoid()
        loss = nn.functional.l1_loss(predicted, boxes.to(device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
