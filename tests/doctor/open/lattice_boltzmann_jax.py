# SPDX-License-Identifier: Apache-2.0
"""A flow around a cylinder by a lattice Boltzmann method in JAX, 300 x 50 cells with nine velocities in float64.

An engineer sees a field of one megabyte on which a compiled step does a hundred operations of two microseconds: for
each of nine velocities the cells of the obstacle are gathered and scattered, and the field is rolled twice by shifts
that are arrays and so are not known when it is compiled. Launching them takes all the time. The repair turns velocities
back inside the obstacle by one choice between two fields, and shifts by Python's numbers, so that a few fused
operations are left. The other repair makes ten steps in one call. In both variants a package of colours is not needed,
nothing is drawn, as in the script's own first 5000 steps, and there are more of them.
"""
CAUSE = "launch"
LINE = "english/simulation_scripts/lattice_boltzmann_method_python_jax.py:399"
LINES = ["english/simulation_scripts/lattice_boltzmann_method_python_jax.py:366",
         "english/simulation_scripts/lattice_boltzmann_method_python_jax.py:374"]
REPOSITORY = "Ceyron/machine-learning-and-simulation"
COMMIT = "b8ee2b117939245e22571c403d1330b8a99ac9d1"
FOLDER = "english/simulation_scripts"
COMMAND = ["lattice_boltzmann_method_python_jax.py"]
EDITS = [
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 157, 157, ""),
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 160, 160, "N_ITERATIONS = 100_000"),
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 172, 172, "VISUALIZE = False"),
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 402, 401,
     "        step_done(discrete_velocities_prev)"),
]
REPAIR = [
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 366, 370, """\
        turned = jnp.stack([discrete_velocities_prev[..., i] for i in (0, 3, 4, 1, 2, 7, 8, 5, 6)], axis=-1)
        discrete_velocities_post_collision = jnp.where(
            obstacle_mask[..., jnp.newaxis], turned, discrete_velocities_post_collision
        )
"""),
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 373, 385, """\
        shifts = zip((0, 1, 0, -1, 0, 1, -1, -1, 1), (0, 0, 1, 0, -1, 1, 1, -1, -1))
        discrete_velocities_streamed = jnp.stack([
            jnp.roll(discrete_velocities_post_collision[:, :, i], shift, axis=(0, 1)) for i, shift in enumerate(shifts)
        ], axis=-1)
"""),
]
OTHER_REPAIRS = {"host": [
    ("english/simulation_scripts/lattice_boltzmann_method_python_jax.py", 398, 401, """\
    ten = jax.jit(lambda first: jax.lax.fori_loop(0, 10, lambda _, one: update(one), first))
    for iteration_index in tqdm(range(0, N_ITERATIONS, 10)):
        discrete_velocities_prev = ten(discrete_velocities_prev)
        for _ in range(9):
            step_done(discrete_velocities_prev)
"""),
]}
STEPS = 4000
WARM_UP = 200
BEFORE = 10
