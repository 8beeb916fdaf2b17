# SPDX-License-Identifier: Apache-2.0
"""Generation with a Llama of 7 B parameters in bfloat16, one text at a time, as the script runs without its option.

An engineer sees some sixty operations in each of 32 layers for every token: reading the weights takes three
milliseconds, launching two thousand kernels one after another takes ten. The repair is the script's own option
--compile, which replays one CUDA graph of fused kernels, without its search for kernel variants, which takes minutes.
In both variants the weights are random, the prompt is the script's synthetic one, and no text is decoded.
"""
CAUSE = "launch"
LINE = "generate.py:74"
REPOSITORY = "pytorch-labs/gpt-fast"
COMMIT = "32971d3129541c5bfb4f715abc33d1c5f408d204"
COMMAND = ["generate.py", "--prompt", "6", "--num_samples", "100000", "--max_new_tokens", "200"]
EDITS = [
    ("generate.py", 38, 38, ""),
    ("generate.py", 82, 81, "            step_done()"),
    ("generate.py", 238, 241, """\
    model = model.to(dtype=precision).to_empty(device=device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
"""),
    ("generate.py", 290, 293, ""),
    ("generate.py", 296, 297, "    rank = None"),
    ("generate.py", 321, 321, ""),
    ("generate.py", 415, 415, ""),
]
REPAIR = [
    ("generate.py", 25, 25, ""),
    ("generate.py", 458, 458, "    parser.add_argument('--compile', action='store_true', default=True)"),
]
STEPS = 400
BEFORE = 5
