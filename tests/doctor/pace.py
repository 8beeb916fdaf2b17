# SPDX-License-Identifier: Apache-2.0
"""How fast the core under this thread is right now.

The clock of a core and its neighbours (the other hardware thread may belong to another machine's guest) change the pace of
launch-bound programs by a third within a second, more than what is to be measured. A fixed piece of Python tells it.
"""
import os
import time

CALM = 1.2  # times the quickest core's


def reference_ms():
    """Milliseconds of a piece of work that depends on nothing but the core."""
    begin, total = time.perf_counter(), 0
    for i in range(30000):
        total += i & 3
    return 1e3 * (time.perf_counter() - begin)


def quickest_core():
    """Returns the number of the core that is fastest at the moment, and its reference_ms()."""
    allowed, found = os.sched_getaffinity(0), []
    for core in sorted(allowed):
        os.sched_setaffinity(0, {core})
        reference_ms()
        found.append((min(reference_ms() for _ in range(3)), core))
    os.sched_setaffinity(0, allowed)
    ms, core = min(found)
    return core, ms


def when_calm(work, runs, tries=4):
    """`runs` results of work(), of times when this thread ran at about the pace of the quickest core.

    After `tries` times as many runs, those of the best pace."""
    _, quickest = quickest_core()
    timed = []
    for _ in range(runs * tries):
        before = reference_ms()
        result = work()
        timed.append((max(before, reference_ms()), result))
        calm = [r for pace, r in timed if pace <= CALM * quickest]
        if len(calm) == runs:
            return calm
    return [r for _, r in sorted(timed, key=lambda t: t[0])[:runs]]
