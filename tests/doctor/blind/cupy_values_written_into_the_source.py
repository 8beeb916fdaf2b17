# SPDX-License-Identifier: Apache-2.0
"""https://github.com/mitsuba-renderer/enoki/issues/93 (of kernels made anew also cupy/cupy#2469, Theano/libgpuarray#68)

Each frame I compute a field of noise on the GPU. As long as the shift stays the same a frame takes 17 ms, and 170 ms
whenever I have moved it, although nothing else is different. Isn't the kernel kept?

Cause: the shift is written into the source of the kernel as a number. For each new value this is a new source, which is
compiled and loaded while the GPU waits.
Line: cupy_values_written_into_the_source.py:kernel_for
Remedy: the shift is an argument of the kernel, which is compiled once.
"""
import os
import time

os.environ.setdefault("CUPY_CACHE_IN_MEMORY", "1")  # a value that is new to this process, whatever an earlier one left

import blind

EVERY = 4  # frames from one shift to the next
SOURCE = """
__device__ float hashed(int x, int y, int z) {
    unsigned h = x * 374761393u + y * 668265263u + z * 2147483647u;
    h = (h ^ (h >> 13)) * 1274126177u;
    return (h ^ (h >> 16)) * (2.0f / 4294967296.0f) - 1.0f;
}

__device__ float mixed(float a, float b, float t) { return a + (b - a) * t * t * (3.0f - 2.0f * t); }

__device__ float noise(float x, float y, float z) {
    int i = floorf(x), j = floorf(y), k = floorf(z);
    float u = x - i, v = y - j, w = z - k;
    float plane[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
        plane[n] = mixed(mixed(hashed(i, j, k + n), hashed(i + 1, j, k + n), u),
                         mixed(hashed(i, j + 1, k + n), hashed(i + 1, j + 1, k + n), u), v);
    return mixed(plane[0], plane[1], w);
}

extern "C" __global__ void field(float* out, int side PARAMETER) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= side * side * side) return;
    float scale = 8.0f / side, sum = 0.0f, weight = 1.0f;
    float x = at % side * scale + SHIFT, y = at / side % side * scale, z = at / side / side * scale;
#pragma unroll
    for (int octave = 0; octave < 6; ++octave) {
        sum += weight * noise(x, y, z);
        x *= 2.0f; y *= 2.0f; z *= 2.0f; weight *= 0.5f;
    }
    out[at] = sum;
}
"""


def main():
    loop = blind.Loop("cupy_values_written_into_the_source", "recompile", steps=300)
    try:
        import cupy
    except ImportError:
        raise SystemExit(f"{loop.name}: needs CuPy (pip install cupy-cuda13x)")
    if not cupy.is_available():
        raise SystemExit(f"{loop.name}: no GPU; CuPy has no other device")
    random = cupy.random.RandomState(0)
    wait = cupy.cuda.Device().synchronize
    rows, columns = loop.size(16384, 64), loop.size(8192, 64)
    bank = (random.standard_normal((columns, columns), dtype=cupy.float32) / columns**0.5).astype(cupy.float16)
    start = random.standard_normal((rows, columns), dtype=cupy.float32).astype(cupy.float16)

    if loop.variant == "healthy":
        state = start

        def step(i):
            nonlocal state
            state = start if i % 10 == 0 else state  # rounding would add up otherwise
            for _ in range(loop.size(5, 1)):
                state = state @ bank

        return loop.run(step, wait)

    side = loop.size(512, 16)
    volume, kept = cupy.empty(side**3, dtype=cupy.float32), {}

    def kernel_for(shift):
        if loop.planted:
            text = SOURCE.replace("SHIFT", f"{shift:.6f}f").replace("PARAMETER", "")
        else:
            text = SOURCE.replace("SHIFT", "shift").replace("PARAMETER", ", float shift")
        if text not in kept:
            kept[text] = cupy.RawKernel(text, "field")
            kept[text].compile()
        return kept[text]

    def step(i):
        shift = 0.003 * (i // EVERY)
        begin = time.perf_counter()
        kernel = kernel_for(shift)
        if loop.planted:  # the frame before has been shown: the GPU has nothing to do
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
        values = (volume, cupy.int32(side)) if loop.planted else (volume, cupy.int32(side), cupy.float32(shift))
        kernel((-(-volume.size // 256),), (256,), values)
        filtered = start @ bank  # what is drawn with the field
        return filtered[0, :64].get(), volume[:64].get()  # shown

    loop.run(step, wait)


if __name__ == "__main__":
    main()
