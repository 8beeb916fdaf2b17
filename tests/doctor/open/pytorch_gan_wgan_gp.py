# SPDX-License-Identifier: Apache-2.0
"""WGAN-GP of PyTorch-GAN learns to make digits: two small perceptrons, 64 pictures a step, Adam for each.

An engineer sees the loader have no process of its own: an option says eight, and it is never passed on. Pictures are
made, scaled to the size that they have, and normalized one after another by the thread that launches the training, four
milliseconds a batch; the training, two hundred small operations, takes less. The repair passes the option on and lets
the processes live between epochs. The other repair draws random numbers on the GPU instead of copying NumPy's there. In
both variants the digits are made up. A step is one of the critic.
"""
CAUSE = "input"
LINE = "implementations/wgan_gp/wgan_gp.py:147"
LINES = ["implementations/wgan_gp/wgan_gp.py:99", "implementations/wgan_gp/wgan_gp.py:105"]
REPOSITORY = "eriklindernoren/PyTorch-GAN"
COMMIT = "36d3c77e5ff20ebe0aeefd322326a134a279b93e"
FOLDER = "implementations/wgan_gp"
COMMAND = ["wgan_gp.py"]
EDITS = [
    ("implementations/wgan_gp/wgan_gp.py", 175, 175, "        step_done()\n"),
]
REPAIR = [("implementations/wgan_gp/wgan_gp.py", 109, 109,
           "    shuffle=True,\n    num_workers=opt.n_cpu,\n    persistent_workers=True,")]
OTHER_REPAIRS = {"copy": [
    ("implementations/wgan_gp/wgan_gp.py", 122, 122,
     "    alpha = torch.rand((real_samples.size(0), 1, 1, 1), device=real_samples.device)"),
    ("implementations/wgan_gp/wgan_gp.py", 159, 159,
     "        z = torch.randn((imgs.shape[0], opt.latent_dim), device=real_imgs.device)"),
]}
STEPS = 1200
WARM_UP = 100
BEFORE = 10
