# SPDX-License-Identifier: Apache-2.0
"""A diffusion transformer in JAX learns faces pixel by pixel: DiT-B, 32 pictures of 256 x 256 in 1024 patches each a step.

An engineer sees one compiled function keep the GPU busy with numbers in float32: products run as TF32, at half of what
tensor cores do, and 16 heads of 1024 x 1024 scores for every picture, two gigabytes a layer, are written and read
again several times, forwards and backwards. The repair lets the blocks compute in bfloat16 and keeps weights, sums of
what blocks add and the loss in float32. In both variants the settings are those of the read-me for faces without an
encoder but for a batch that one GPU holds, pictures are made up, and what packages that may be missing do is left out.
"""
CAUSE = "precision"
LINE = "train_diffusion.py:310"
LINES = ["diffusion_transformer.py:199", "diffusion_transformer.py:261", "train_diffusion.py:93"]
REPOSITORY = "kvfrans/jax-diffusion-transformer"
COMMIT = "94ea6076bd934ba687ac23a165e57ed8110619af"
COMMAND = ["train_diffusion.py"]
EDITS = [
    ("train_diffusion.py", 9, 9, ""),
    ("train_diffusion.py", 17, 23, '''\
from types import SimpleNamespace


class Config(dict):
    """Settings by name."""

    __getattr__, __setattr__, __hash__ = dict.__getitem__, dict.__setitem__, object.__hash__

    def __eq__(self, other):
        return self is other


ml_collections = SimpleNamespace(ConfigDict=Config)
'''),
    ("train_diffusion.py", 26, 26, ""),
    ("train_diffusion.py", 28, 29, ""),
    ("train_diffusion.py", 33, 45, """\
FLAGS = SimpleNamespace(dataset_name="celebahq256", load_dir=None, save_dir=None, seed=0, log_interval=1000,
                        eval_interval=50000, save_interval=200000, batch_size=32, max_steps=1_000_000,
                        debug_overfit=0, use_stable_vae=0)
"""),
    ("train_diffusion.py", 53, 57, """\
    'hidden_size': 768,
    'patch_size': 8,
    'depth': 12,
    'num_heads': 16,
    'mlp_ratio': 4,
"""),
    ("train_diffusion.py", 64, 71, "FLAGS.model = model_config"),
    ("train_diffusion.py", 178, 179, ""),
    ("train_diffusion.py", 182, 232, """\
        random = np.random.default_rng(0)
        batches = [(random.uniform(-1, 1, (local_batch_size, 256, 256, 3)).astype(np.float32),
                    random.integers(1000, size=local_batch_size)) for _ in range(4)]
        while True:
            yield from batches
"""),
    ("train_diffusion.py", 248, 248, ""),
    ("train_diffusion.py", 281, 282,
     "    model = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf)[None], model)"),
    ("train_diffusion.py", 311, 310, "        step_done(update_info)"),
    ("train_diffusion.py", 438, 438, "    main(None)"),
    ("utils/train_state.py", 20, 20, "    new_target_params = jax.tree_util.tree_map("),
]
REPAIR = [
    ("diffusion_transformer.py", 91, 91, "    dtype: Dtype = jnp.bfloat16"),
    ("diffusion_transformer.py", 193, 193, "        c = nn.Dense(6 * self.hidden_size, dtype=jnp.bfloat16,\n"
                                           "                     kernel_init=nn.initializers.constant(0.))(c)"),
    ("diffusion_transformer.py", 197, 197,
     "        x_norm = nn.LayerNorm(use_bias=False, use_scale=False, dtype=jnp.bfloat16)(x)"),
    ("diffusion_transformer.py", 200, 200,
     "            num_heads=self.num_heads, dtype=jnp.bfloat16)(x_modulated, x_modulated)"),
    ("diffusion_transformer.py", 204, 204,
     "        x_norm2 = nn.LayerNorm(use_bias=False, use_scale=False, dtype=jnp.bfloat16)(x)"),
]
STEPS = 100
WARM_UP = 10
BEFORE = 3
