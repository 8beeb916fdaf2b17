# SPDX-License-Identifier: Apache-2.0
"""The smallest GPT (three layers, width 48) learns to add numbers of two digits, 64 of them a step.

An engineer sees kernels of a few microseconds with gaps as long between them: the Python thread cannot launch faster.
Attention, GELU and layer norm are written out in many small operations. The repair compiles the model with CUDA
graphs (mode "reduce-overhead"), so that a pass is one launch.
"""
CAUSE = "launch"
LINE = "mingpt/trainer.py:93"
REPOSITORY = "karpathy/minGPT"
COMMIT = "37baab71b9abea1b76ab957409a1cc2fbfba8a26"
COMMAND = ["projects/adder/adder.py"]
EDITS = [("projects/adder/adder.py", 187, 187, "        if trainer.iter_num % 100000 == 0:")]
REPAIR = [("mingpt/trainer.py", 78, 77, '        model = torch.compile(model, mode="reduce-overhead")')]
STEPS = 600
BEFORE = 10
