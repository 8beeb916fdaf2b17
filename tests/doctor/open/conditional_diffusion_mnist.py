# SPDX-License-Identifier: Apache-2.0
"""A diffusion model with a U-Net of 128 channels on images of digits, 256 a step, all in float32.

An engineer sees convolutions, batch norm and GELU over large float32 activations fill the GPU; convolutions use TF32 at
best and everything between them moves four bytes a number. The repair runs the forward pass under bf16 autocast. The
images are made by a script; their number and size are those of MNIST.
"""
CAUSE = "precision"
LINE = "script.py:342"
REPOSITORY = "TeaPearce/Conditional_Diffusion_MNIST"
COMMIT = "657b49854bbf844caa5580177243ae607c79339f"
COMMAND = ["script.py"]
EDITS = []
REPAIR = [("script.py", 342, 342, '            with torch.autocast("cuda", torch.bfloat16):\n'
                                 "                loss = ddpm(x, c)")]
REMEDIES = {"syncs": [("script.py", 344, 348, """\
            loss_ema = loss.detach() if loss_ema is None else 0.95 * loss_ema + 0.05 * loss.detach()
            if pbar.n % 100 == 0:
                pbar.set_description(f"loss: {float(loss_ema):.4f}")
""")]}
STEPS = 150
