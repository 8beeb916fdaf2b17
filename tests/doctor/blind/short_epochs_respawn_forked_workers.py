# SPDX-License-Identifier: Apache-2.0
"""github.com/boreshkinai/delta-interpolator PR#3 (workers started by fork)

Each epoch begins with a pause although the motion data are small; some machines lose hours that way, others nothing.

Cause: nothing worth the name: forked workers start in milliseconds against seconds of training an epoch
Line: none
Remedy: persistent workers, the obvious one, brings almost nothing here: it removes only the forks between epochs
"""
import blind
from short_epochs_respawn_spawned_workers import train_in_epochs

if __name__ == "__main__":
    train_in_epochs(blind.Loop("short_epochs_respawn_forked_workers", "none", steps=320), "fork", 160)
