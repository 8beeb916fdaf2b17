# SPDX-License-Identifier: Apache-2.0
"""XLB's own benchmark: a flow in a box by a lattice Boltzmann method in JAX, 200 x 200 x 200 cells with 19 velocities.

An engineer sees a step that could read and write its 600 megabytes once. The compiler fuses the collision well, but the
shifts of the 19 velocities are an array, mapped over, and not known when it compiles: each of three axes is doubled and
then gathered from, for all velocities, where a shift that is known is a copy of slices. The repair shifts by Python's
numbers, one velocity after another, each a block of its own, and stacks what comes of it. In both variants packages
that draw or colour are not needed, a few lines stand for one that names types, and names that the library has since
changed are the new ones.
"""
CAUSE = "memory"
LINE = "src/base.py:682"
LINES = ["src/base.py:684", "src/base.py:841", "src/base.py:906"]
REPOSITORY = "Autodesk/XLB"
COMMIT = "c62a42038ecfa2df2a6c9d2a1af8aaa613875812"
COMMAND = ["examples/performance/MLUPS3d.py", "200", "100000"]
EDITS = [
    ("examples/performance/MLUPS3d.py", 11, 11, ""),
    ("src/base.py", 8, 8, """\
import types
"""),
    ("src/base.py", 10, 10, ""),
    ("src/base.py", 14, 14, ""),
    ("src/base.py", 17, 19, """\
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map
from jax.sharding import NamedSharding, PartitionSpec, Mesh
import inspect
"""),
    ("src/base.py", 27, 27, """\
UNCHECKED = {"check_rep" if "check_rep" in inspect.signature(shard_map).parameters else "check_vma": False}


def colored(text, color):
    return str(text)


class Policy:
    def __init__(self, compute_dtype, param_dtype, output_dtype):
        self.compute_dtype, self.output_dtype = compute_dtype, output_dtype

    def cast_to_compute(self, values):
        return jax.tree_util.tree_map(lambda value: jnp.asarray(value, self.compute_dtype), values)

    def cast_to_output(self, values):
        return jax.tree_util.tree_map(lambda value: jnp.asarray(value, self.output_dtype), values)


jmp = types.SimpleNamespace(Policy=Policy)
"""),
    ("src/base.py", 129, 129,
     '                                 in_specs=P("x", None, None), out_specs=P("x", None, None), **UNCHECKED))'),
    ("src/base.py", 138, 138,
     '                 in_specs=P("x", None, None, None), out_specs=P("x", None, None, None), **UNCHECKED))'),
    ("src/base.py", 907, 906, "            step_done(f)"),
    ("src/boundary_conditions.py", 203, 203,
     "        iknown = np.vstack([np.asarray(self.lattice.opp_indices)] * nbd)"),
    ("src/utils.py", 6, 6, ""),
    ("src/utils.py", 11, 11, ""),
]
REPAIR = [("src/base.py", 684, 684, """\
        f = jnp.moveaxis(f, -1, 0)
        shifted = [streaming_i(f[i], c) for i, c in enumerate(np.asarray(self.c).T.tolist())]
        return jnp.moveaxis(jnp.stack(shifted), 0, -1)
""")]
STEPS = 300
WARM_UP = 10
BEFORE = 2
