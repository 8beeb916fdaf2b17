# SPDX-License-Identifier: Apache-2.0
"""hlb-gpt, a small fast language model: 55 texts of 1024 words a step, eight blocks of width 384, all in bfloat16.

An engineer sees weights, activations and products half as long, all data on the GPU and a fused optimizer, but every
operation on its own: six gigabytes of logits are written, turned into a loss and read again several times, scores of
attention without heads are masked, added to and normalized one after another, and a GELU is multiplied apart. The
repair compiles the network together with its loss, which makes few passes of them. In both variants the text is made
up, texts have their final length from the start, and nothing is tested or saved in between.
"""
CAUSE = "memory"
LINE = "main.py:497"
LINES = ["main.py:499", "main.py:243", "main.py:216"]
REPOSITORY = "tysam-code/hlb-gpt"
COMMIT = "a9f158f28d81a21184081827454763b351ba26b1"
COMMAND = ["main.py"]
EDITS = [
    ("main.py", 27, 27, ""),
    ("main.py", 85, 85, "        'eval_every': 100000,"),
    ("main.py", 100, 100, "            'initial': 1024,"),
    ("main.py", 155, 155, "    data = {k: v.to(hyp['misc']['device']) for k, v in torch.load(hyp['misc']['data_location']).items()}"),
]
REPAIR = [
    ("main.py", 434, 433, """\
    def loss_of(inputs, targets):
        outputs = net(inputs)
        return outputs.detach(), loss_fn(outputs.flatten(0, 1), targets.flatten(0, 1))

    compiled_loss_of = torch.compile(loss_of)
"""),
    ("main.py", 495, 497, "        outputs, loss = compiled_loss_of(inputs, targets)"),
]
STEPS = 300
WARM_UP = 20
BEFORE = 5
