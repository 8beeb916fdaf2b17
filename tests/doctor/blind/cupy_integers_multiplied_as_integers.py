# SPDX-License-Identifier: Apache-2.0
"""https://github.com/cupy/cupy/issues/6611 (also jax-ml/jax#17688, pytorch/pytorch#44428)

Products of integer matrices take much longer than products of floating-point ones of the same size, although whole
numbers of a few bits ought to be the easier work.

Cause: there is no library kernel for products of integers, so a plain one is run, which uses no tensor cores and is
several times slower than the library's for float32.
Line: cupy_integers_multiplied_as_integers.py:count_shared
Remedy: the numbers are kept as float32; all sums are whole numbers far below 2**24, so the counts are the same.
"""
import blind


def count_shared(block):
    """What any two people have in common at a block of markers, where each of them has 0, 1 or 2 copies."""
    return block.dot(block.T)


def main():
    loop = blind.Loop("cupy_integers_multiplied_as_integers", "precision", steps=220)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    healthy = loop.variant == "healthy"
    people, markers = loop.size(4096, 64), loop.size(4096, 64)
    traits = loop.size(262144 if healthy else 131072, 64)  # the measured one, and many shuffled for comparison
    kept = cupy.int32 if loop.planted else cupy.float32
    random = cupy.random.RandomState(0)
    blocks = [random.randint(0, 3, (people, markers)).astype(kept) for _ in range(2)]
    values = cupy.empty((people, traits), cupy.float16)
    for begin in range(0, traits, 16384):
        part = values[:, begin:begin + 16384]
        part[...] = random.standard_normal(part.shape, dtype=cupy.float32)
    scores = cupy.empty_like(values)
    likeness = cupy.zeros((people, people), cupy.float16)

    def record():
        event = cupy.cuda.Event()
        event.record()
        return event

    due, spans = 0.0, []
    if loop.planted:  # what the same products take in float32
        blind.take_gpu()
        as_floats, took = blocks[0].astype(cupy.float32), []
        for _ in range(5):
            begin = record()
            count_shared(as_floats)
            end = record()
            end.synchronize()
            took.append(cupy.cuda.get_elapsed_time(begin, end))
        due = sorted(took)[2]
        del as_floats

        @loop.at_end.append
        def collect():
            loop.planted_ms.extend(max(0.0, cupy.cuda.get_elapsed_time(*span) - due) for span in spans[loop.warm_up:])

    def step(i):
        if not healthy or i % 50 == 0:
            begin = record() if loop.planted else None
            shared = count_shared(blocks[i % 2])
            if loop.planted:
                spans.append((begin, record()))
            likeness[...] = shared * cupy.float32(0.25 / markers)
        cupy.matmul(likeness, values, out=scores)  # how well the likeness of people explains each trait

    loop.run(step, lambda: cupy.cuda.Device().synchronize())


if __name__ == "__main__":
    main()
