# SPDX-License-Identifier: Apache-2.0
"""An incompressible fluid on 64 x 64 x 64 points by a spectral method, in float64; a step is ten of its time steps.

An engineer sees the ten time steps, compiled into one call, take the GPU some ten milliseconds, and after each call a
checkpoint of six megabytes: Orbax makes folders, compresses the arrays, writes them with their metadata and commits,
and the loop waits until all of that is done, several times as long. The repair writes the same three arrays with NumPy.
In both variants the program is run with two of its own options, and nothing is optimized after the simulation.
"""
CAUSE = "checkpoint"
LINE = "navier-stokes-jax.py:175"
REPOSITORY = "pmocz/navier-stokes-jax"
COMMIT = "c42f0bc4a79375ef1b154d1a83dc0ceb57cc1597"
COMMAND = ["navier-stokes-jax.py", "--res", "64", "--no-optimize"]
EDITS = [("navier-stokes-jax.py", 177, 176, "        step_done(vx, vy, vz)")]
REPAIR = [("navier-stokes-jax.py", 174, 175,
           '        jnp.savez(f"{path}/{checkpoint_id}.npz", *jax.device_get(state))')]
STEPS = 80
WARM_UP = 5
BEFORE = 2
