# SPDX-License-Identifier: Apache-2.0
"""Stars that attract one another in JAX: 360 bodies, a leap and the energy of the whole a step, and all of it kept.

An engineer sees two compiled calls, a dozen operations of three microseconds, and then places, kinetic and potential
energy fetched one after another into arrays of NumPy's at every step, so that nothing is launched before the GPU has
stopped and three copies have come back. The repair keeps a hundred steps as they were computed and fetches them at
once. The other repair compiles the leap and the energy as one. In both variants speeds are random instead of sought
with a package that may be missing, the hundred steps are done again and again, and nothing is drawn, which is a switch
of the script.
"""
CAUSE = "sync"
LINE = "nbody.py:262"
LINES = ["nbody.py:263", "nbody.py:264"]
REPOSITORY = "pmocz/nbody-jax"
COMMIT = "4e19adf413f13c93f2087f930dad0aa8f8b14de3"
COMMAND = ["nbody.py"]
EDITS = [
    ("nbody.py", 5, 5, ""),
    ("nbody.py", 199, 208, ""),
    ("nbody.py", 214, 214, "    vel = jnp.array(np.random.randn(N, 3))"),
    ("nbody.py", 231, 231, ""),
    ("nbody.py", 246, 246, "    plot_realtime = False"),
    ("nbody.py", 255, 255, "    for i in [*range(Nt)] * 1000:"),
    ("nbody.py", 265, 264, "        step_done(pos, vel)"),
    ("nbody.py", 267, 267, "        if plot_realtime:"),
]
REPAIR = [
    ("nbody.py", 255, 254, """\
    saved = []
    gather = jax.jit(lambda steps: [jnp.stack(parts, axis=-1) for parts in zip(*steps)])
"""),
    ("nbody.py", 262, 264, """\
        saved.append((pos, KE, PE))
        if i == Nt - 1:
            pos_save[:, :, 1:], KE_save[1:], PE_save[1:] = gather(saved)
            saved.clear()
"""),
]
OTHER_REPAIRS = {"launch": [
    ("nbody.py", 255, 254, """\
    @jax.jit
    def both(i, state):
        state = leapfrog(i, state)
        return state, get_energy(state[0], state[1], state[3])

"""),
    ("nbody.py", 256, 259, "        (pos, vel, acc, mass), (KE, PE) = both(i, (pos, vel, acc, mass))\n"),
]}
STEPS = 8000
WARM_UP = 300
BEFORE = 110
