# SPDX-License-Identifier: Apache-2.0
"""Prices of a thousand options by simulation in CuPy: one kernel of 20 million threads that draw 100 numbers each.

An engineer sees one kernel fill the GPU, all of it arithmetic in double precision: the inverse error function and the
exponential of every draw. The sampling error of the result is many times larger than single precision's. The repair
draws and adds in single precision, with numbers that cannot be rounded to zero or one, and averages in double. In both
variants the simulation is repeated, as one is too short to measure, and draws fewer numbers than the script's default.
"""
CAUSE = "precision"
LINE = "examples/finance/monte_carlo.py:106"
REPOSITORY = "cupy/cupy"
COMMIT = "6b6d9563c4f7410cd1866a11b2f71a60dd45a68c"
FOLDER = "examples/finance"
COMMAND = ["monte_carlo.py", "--n-samples-per-thread", "100", "--n-threads-per-option", "20000"]
EDITS = [("examples/finance/monte_carlo.py", 146, 149, """\
    while True:
        with timer('GPU (CuPy, Monte Carlo method)'):
            call_mc = compute_option_prices(
                stock_price, option_strike, option_years, risk_free, volatility,
                args.n_threads_per_option, args.n_samples_per_thread)
        step_done()
""")]
REPAIR = [
    ("examples/finance/monte_carlo.py", 83, 90, """\
        // The middle of one of 2^23 equal parts of (0, 1): exact, and never one of the two ends.
        const T u = (T(xorshift128plus(state) >> 41) + T(0.5)) * T(1.1920928955078125e-07);
        return T(-1.4142135623730950488016887242097) * erfcinv(2 * u);
"""),
    ("examples/finance/monte_carlo.py", 102, 102, "        (n_options, n_threads_per_option), dtype=numpy.float32)"),
    ("examples/finance/monte_carlo.py", 106, 109, """\
    stock_price, option_strike, option_years = (
        given[:, None].astype(numpy.float32)
        for given in (stock_price, option_strike, option_years))
    monte_carlo_kernel(
        stock_price, option_strike, option_years,
        risk_free, volatility, n_samples_per_thread, seed, call_prices)
    return call_prices.mean(axis=1, dtype=numpy.float64)
"""),
]
STEPS = 200
WARM_UP = 10
