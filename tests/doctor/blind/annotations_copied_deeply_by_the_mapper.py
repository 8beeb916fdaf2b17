# SPDX-License-Identifier: Apache-2.0
"""https://github.com/facebookresearch/detectron2/issues/939 (also Project-MONAI/MONAI#3000)

With masks in the labels of my data set, the line of the mapper that makes a deep copy of the record can be very time
consuming. Has anyone else met this?

Cause: each record is copied deeply, with all numbers of all outlines in it, before its boxes are changed.
Line: annotations_copied_deeply_by_the_mapper.py:map_deeply (in the workers)
Remedy: a mapper of one's own, which makes new boxes and leaves the record as it is.
"""
import copy

import numpy as np
import torch
from torch import nn

import blind
import training

PATCH = 16


def make_records(count, objects, points, side):
    """Records as a labelling tool writes them: for each object a box and outlines, all as lists of numbers."""
    rng, records = np.random.default_rng(1), []
    for k in range(count):
        annotations = []
        for _ in range(objects):
            corner, size = rng.uniform(0, side / 2, 2), rng.uniform(4, side / 2, 2)
            outlines = (np.tile(corner, points) + rng.uniform(0, 1, (2, 2 * points))).round(2).tolist()
            annotations.append({"bbox": [*corner.tolist(), *size.tolist()], "segmentation": outlines, "iscrowd": 0,
                                "category_id": int(rng.integers(80))})
        records.append({"image_id": k, "height": side, "width": side, "annotations": annotations})
    return records


def mirror(box, side):
    return [side - box[0] - box[2], *box[1:]]


def map_deeply(record, flip):
    """A copy with the boxes changed."""
    record = copy.deepcopy(record)
    for annotation in record["annotations"]:
        if flip:
            annotation["bbox"] = mirror(annotation["bbox"], record["width"])
    return record


def map_boxes(record, flip):
    """The same; what does not change is shared with the record that it comes from."""
    boxes = [mirror(a["bbox"], record["width"]) if flip else a["bbox"] for a in record["annotations"]]
    return {**record, "annotations": [{**a, "bbox": box} for a, box in zip(record["annotations"], boxes)]}


class Detections(torch.utils.data.Dataset):
    def __init__(self, records, images, samples, mapper):
        self.records, self.images, self.samples, self.mapper = records, images, samples, mapper

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        flip, at = index % 3 == 0, index * 7919 % len(self.records)
        record = self.mapper(self.records[at], flip)
        image = self.images[record["image_id"] % len(self.images)]
        boxes = torch.tensor([a["bbox"] for a in record["annotations"]]) / record["width"]
        return (image.flip(1) if flip else image).clone(), boxes


class Detector(nn.Module):
    """A row for each patch, and boxes from the mean of what becomes of them."""

    def __init__(self, layers, width, objects, device):
        super().__init__()
        self.body, _ = training.make_model(layers, width, device)
        self.stem, self.head = nn.Linear(3 * PATCH * PATCH, width), nn.Linear(width, 4 * objects)

    def forward(self, images):
        batch, side = images.shape[0], images.shape[1] // PATCH
        x = images.view(batch, side, PATCH, side, PATCH, 3).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, side * side, 3 * PATCH * PATCH).to(self.stem.weight.dtype) / 128 - 1
        return self.head(self.body(self.stem(x)).mean(dim=1)).float().view(batch, -1, 4)


def main():
    loop = blind.Loop("annotations_copied_deeply_by_the_mapper", "input", steps=200)
    device = loop.device()
    torch.manual_seed(0)
    healthy = loop.variant == "healthy"
    batch, side, objects = loop.size(96 if healthy else 32, 2), loop.size(128, 32), loop.size(30, 3)
    if healthy:
        loop.steps = min(loop.steps, 150)
    records = make_records(loop.size(200, 10), objects, loop.size(80, 4), side)
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (loop.size(200, 10), side, side, 3), dtype=torch.uint8, generator=generator)
    model = Detector(loop.size(24, 1), loop.size(4096, 16), objects, device).to(device)
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    mapper, samples = map_deeply if loop.planted else map_boxes, (loop.steps + loop.warm_up + 1) * batch
    data = Detections(records, images, samples, mapper)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(4, 1), prefetch_factor=4,
                                         pin_memory=device.type == "cuda")
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(i):
        pictures, boxes = next(batches)
        gaps.begin()
        found = model(pictures.to(device, non_blocking=True))
        loss = nn.functional.l1_loss(found, boxes.to(device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
