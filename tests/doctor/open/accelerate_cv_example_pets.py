# SPDX-License-Identifier: Apache-2.0
"""Accelerate's example for pictures: the last layer of a ResNet-50 learns to tell pets apart, 64 photographs a step.

An engineer sees four processes decode, crop and scale photographs of 500 x 375 pixels, about six milliseconds each, a
hundred milliseconds for a batch, while the GPU, which goes forward through frozen layers and back through one, is done
in a fifth of that. The repair gives the loader fourteen processes that live on between epochs. The other repair runs
the model under bf16 autocast, an option of the script. In both variants the photographs are made up, in number and
size as in the real set, the network is torchvision's with random weights, and no epoch ends with a test.
"""
CAUSE = "input"
LINE = "examples/cv_example.py:115"
REPOSITORY = "huggingface/accelerate"
COMMIT = "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83"
FOLDER = "examples"
COMMAND = ["cv_example.py", "--data_dir", "pets"]
EDITS = [
    ("examples/cv_example.py", 21, 21, "from torchvision.models import resnet50"),
    ("examples/cv_example.py", 119, 119, "    model = resnet50(weights=None, num_classes=len(label_to_id))"),
    ("examples/cv_example.py", 129, 129, "    for param in model.fc.parameters():"),
    ("examples/cv_example.py", 133, 134, """\
    mean = torch.tensor([0.485, 0.456, 0.406])[None, :, None, None].to(accelerator.device)
    std = torch.tensor([0.229, 0.224, 0.225])[None, :, None, None].to(accelerator.device)
"""),
    ("examples/cv_example.py", 163, 180, ""),
    ("examples/cv_example.py", 198, 198,
     '    config = {"lr": 3e-2, "num_epochs": 100, "seed": 42, "batch_size": 64, "image_size": 224}'),
]
REPAIR = [("examples/cv_example.py", 115, 115,
           "    train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=batch_size, num_workers=14,\n"
           "                                  persistent_workers=True)")]
OTHER_REPAIRS = {"precision": [("examples/cv_example.py", 190, 190, '        default="bf16",')]}
STEPS = 90
WARM_UP = 10
BEFORE = 2
