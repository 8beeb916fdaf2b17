# SPDX-License-Identifier: Apache-2.0
"""DETR learns to find objects: a ResNet-50 and a Transformer, two photographs of up to 1333 pixels a step, AdamW.

An engineer sees a step that waits for the GPU dozens of times: after each of six decoder layers a matrix of costs is
fetched and matched on the CPU, and the matches go back in many small copies; then some fifty numbers are read for the
log. Each wait drains what was launched, and the rest is small enough to be launched again slowly. The repair matches
all layers at once, sends the matches in one copy and logs every tenth step only. The other repairs: six processes load
pictures instead of two; the frozen normalization, eight operations of which each but two is tiny, is one call; the
step runs under bf16 autocast. In both variants the photographs, as large as the set's, and their boxes are made up, the
weights are random, a package that reads the set is not needed, and no epoch ends with a test.
"""
CAUSE = "sync"
LINE = "models/matcher.py:78"
REPOSITORY = "facebookresearch/detr"
COMMIT = "29901c51d7fe8712168b8d0d64351170bc0f83e0"
COMMAND = ["main.py", "--coco_path", "coco"]
EDITS = [
    ("main.py", 15, 16, "from datasets import build_dataset\nfrom engine import train_one_epoch"),
    ("main.py", 143, 143, "    dataset_val = dataset_train"),
    ("main.py", 160, 165, ""),
    ("main.py", 214, 216, "        continue"),
    ("engine.py", 13, 14, ""),
    ("models/backbone.py", 30, 30, '        self.register_buffer("weight", torch.full((n,), 0.5))'),
    ("models/backbone.py", 91, 91, "            weights=None, norm_layer=FrozenBatchNorm2d)"),
    ("datasets/coco.py", 7, 7, "import json\nfrom collections import defaultdict\nfrom pathlib import Path"),
    ("datasets/coco.py", 12, 12, "from PIL import Image"),
    ("datasets/coco.py", 17, 26, """\
class CocoDetection(torch.utils.data.Dataset):
    def __init__(self, img_folder, ann_file, transforms, return_masks):
        self.folder, described = img_folder, json.loads(ann_file.read_text())
        self.names = {image["id"]: image["file_name"] for image in described["images"]}
        self.ids, self.boxes = sorted(self.names), defaultdict(list)
        for box in described["annotations"]:
            self.boxes[box["image_id"]].append(box)
        self._transforms = transforms
        self.prepare = ConvertCocoPolysToMask(return_masks)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, idx):
        image_id = self.ids[idx]
        img, target = Image.open(self.folder / self.names[image_id]).convert("RGB"), self.boxes[image_id]
        target = {'image_id': image_id, 'annotations': target}
"""),
]
REPAIR = [
    ("models/detr.py", 224, 232, """\
        # One matching for all layers, and one copy of its results
        layers = [outputs_without_aux] + outputs.get('aux_outputs', [])
        together = {k: torch.cat([layer[k] for layer in layers]) for k in ('pred_logits', 'pred_boxes')}
        matched = [part for pair in self.matcher(together, targets * len(layers)) for part in pair]
        matched = torch.cat(matched).to(together['pred_boxes'].device).split([len(part) for part in matched])
        matched = list(zip(matched[::2], matched[1::2]))
        matched = [matched[i:i + len(targets)] for i in range(0, len(matched), len(targets))]
        indices = matched[0]
        num_boxes = float(max(1, sum(len(t["labels"]) for t in targets)))
"""),
    ("models/detr.py", 242, 242, "                indices = matched[i + 1]"),
    ("engine.py", 28, 28,
     "    for step, (samples, targets) in enumerate(metric_logger.log_every(data_loader, print_freq, header)):"),
    ("engine.py", 45, 45, "        loss_value = losses_reduced_scaled.item() if step % print_freq == 0 else 0.0"),
    ("engine.py", 58, 58, """\
        if step % print_freq:
            continue
        metric_logger.update(loss=loss_value, **loss_dict_reduced_scaled, **loss_dict_reduced_unscaled)
"""),
]
OTHER_REPAIRS = {
    "input": [("main.py", 156, 156, "                                   collate_fn=utils.collate_fn, num_workers=6)")],
    "launch": [("models/backbone.py", 46, 55, """\
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=1e-5)
""")],
    "precision": [("engine.py", 32, 32, """\
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(samples)
        outputs = {k: v.float() if k != 'aux_outputs' else [{name: part.float() for name, part in layer.items()}
                                                            for layer in v] for k, v in outputs.items()}
""")],
}
STEPS = 150
WARM_UP = 30
BEFORE = 10
