# SPDX-License-Identifier: Apache-2.0
"""DiT-XL/2 draws eight pictures of 256 x 256 pixels with guidance: a step takes the noise of one of 250 times away.

An engineer sees 28 wide transformer layers work on 16 x 256 tokens, some twenty milliseconds of the GPU, which Python
launches in a third of that. Products are in TF32, as the script asks, and everything else is in float32. The repair
runs the network under bf16 autocast, around the whole loop so that weights are converted once. The other repair keeps
the tables of the diffusion on the GPU, which are copied there several times a step, each time with a wait. In both
variants the weights are those of a new network, and the decoder that makes pixels at the end is left out.
"""
CAUSE = "precision"
LINE = "diffusion/gaussian_diffusion.py:279"
LINES = ["models.py:245", "sample.py:61", "models.py:257"]
REPOSITORY = "facebookresearch/DiT"
COMMIT = "ed81ce2229091fd4ecc9a223645f95cf379d582b"
COMMAND = ["sample.py", "--image-size", "256", "--seed", "1"]
EDITS = [
    ("sample.py", 15, 16, ""),
    ("sample.py", 38, 41, ""),
    ("sample.py", 44, 44, ""),
    ("sample.py", 64, 68, ""),
    ("diffusion/gaussian_diffusion.py", 510, 510, "                step_done()\n                yield out"),
]
REPAIR = [("sample.py", 61, 63, """\
    with torch.autocast(device, torch.bfloat16):
        samples = diffusion.p_sample_loop(
            model.forward_with_cfg, z.shape, z, clip_denoised=False, model_kwargs=model_kwargs, progress=True,
            device=device
        )
""")]
OTHER_REPAIRS = {"sync": [
    ("diffusion/gaussian_diffusion.py", 861, 860, "_tables = {}\n\n"),
    ("diffusion/gaussian_diffusion.py", 870, 870, """\
    key = arr.tobytes()
    if key not in _tables:
        _tables[key] = th.from_numpy(arr).to(device=timesteps.device)
    res = _tables[key][timesteps].float()
"""),
    ("diffusion/respace.py", 125, 125, """\
        if not isinstance(self.timestep_map, th.Tensor):
            self.timestep_map = th.tensor(self.timestep_map, device=ts.device, dtype=ts.dtype)
        map_tensor = self.timestep_map
"""),
    ("diffusion/respace.py", 108, 110, """\
        if getattr(self, "wrapped", None) is None:
            self.wrapped = _WrappedModel(
                model, self.timestep_map, self.original_num_steps
            )
        return self.wrapped
"""),
]}
STEPS = 200
WARM_UP = 20
