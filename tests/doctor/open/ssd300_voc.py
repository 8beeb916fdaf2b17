# SPDX-License-Identifier: Apache-2.0
"""SSD300 of a much-read tutorial learns to find objects: VGG-16 with more layers, eight photographs a step, SGD.

An engineer sees four processes decode, discolour, enlarge up to four times, crop and scale photographs of 500 x 375
pixels, about fifteen milliseconds each, thirty for a batch, while the GPU is done in half of that. The repair gives the
loader fourteen processes. The other repairs: the network runs under bf16 autocast; numbers that Python counts and
copies to the GPU, for every photograph's boxes and once up to 8731, are counted there. In both variants photographs and
boxes are made up, in size and number as in the real set, and the weights are random.
"""
CAUSE = "input"
LINE = "train.py:71"
LINES = ["train.py:118", "train.py:22"]
REPOSITORY = "sgrvinod/a-PyTorch-Tutorial-to-Object-Detection"
COMMIT = "5d5b75968c3cf1ffd2718bf828a7560b7ee8e8b5"
COMMAND = ["train.py"]
EDITS = [
    ("model.py", 102, 102, "        pretrained_state_dict = torchvision.models.vgg16(weights=None).state_dict()"),
]
REPAIR = [("train.py", 22, 22, "workers = 14")]
OTHER_REPAIRS = {
    "precision": [("train.py", 127, 127, """\
        with torch.autocast("cuda", torch.bfloat16):
            predicted_locs, predicted_scores = model(images)
        predicted_locs, predicted_scores = predicted_locs.float(), predicted_scores.float()
""")],
    "sync": [
        ("model.py", 590, 590,
         "            object_for_each_prior[prior_for_each_object] = torch.arange(n_objects, device=device)"),
        ("model.py", 640, 640, "        hardness_ranks = torch.arange(n_priors, device=device).unsqueeze(0)"
                               ".expand_as(conf_loss_neg)  # (N, 8732)"),
    ],
}
STEPS = 120
WARM_UP = 20
BEFORE = 5
