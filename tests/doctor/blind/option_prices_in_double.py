# SPDX-License-Identifier: Apache-2.0
"""https://github.com/google/tf-quant-finance/issues/15

Pricing by simulation on 100 and more correlated assets gains far less from the GPU than expected, while the other
examples run as fast as they should.

Cause: the simulation runs in float64, because its matrices come from NumPy and nobody said otherwise; single precision
is enough for prices whose error of sampling is a thousand times larger.
Line: option_prices_in_double.py:simulate
Remedy: float32, with TF32 for the product that correlates the assets.
"""
import math

import numpy as np
import torch
from torch import nn

import blind
import training


def simulate(paths, factor, periods, out):
    """Logarithms of the prices of all assets after some periods of correlated normal returns."""
    out.zero_()
    for _ in range(periods):
        normal = torch.randn(paths, factor.shape[0], dtype=factor.dtype, device=factor.device)
        out.addmm_(normal, factor, alpha=0.2 / math.sqrt(periods))
    return out


def main():
    loop = blind.Loop("option_prices_in_double", "precision", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    if loop.variant == "fixed":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    assets, paths, width = loop.size(1024, 16), loop.size(32768, 16), loop.size(4096, 16)
    loadings = rng.standard_normal((assets, assets)) / math.sqrt(assets)
    factor = np.linalg.cholesky(loadings @ loadings.T + np.eye(assets)).T
    factor = torch.from_numpy(factor if loop.planted else factor.astype(np.float32)).to(device)
    out = torch.empty(paths, assets, dtype=factor.dtype, device=device)
    with torch.device(device):
        body, _ = training.make_model(loop.size(3, 1), width, device)
        model = nn.Sequential(nn.Linear(assets, width), body).to(torch.bfloat16)  # learns to price
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(i):
        end = simulate(paths, factor, 4, out)
        training.train(model, optimizer, end[: paths // 2].to(torch.bfloat16))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
