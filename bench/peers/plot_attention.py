#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Picture of attention's speed over the length, from lines of pytorch_attention.py.

    plot_attention.py bench/results/h200_attention.jsonl docs/guide/attention_lengths.svg

One panel for each head size and mask; forward and backward of cuDNN and Saturate at 16k tokens in TFLOP/s (causal counts
half, backward 2.5 times forward). Of lines with the same case the last one counts.
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 220, 52, 34, 62
LOOKS = {
    ("saturate", "forward"): ("#1f5fa8", ""),
    ("saturate", "backward"): ("#1f5fa8", "6 4"),
    ("cudnn", "forward"): ("#b4611c", ""),
    ("cudnn", "backward"): ("#b4611c", "6 4"),
}
NAMES = {"saturate": "Saturate", "cudnn": "cuDNN 9"}


def curves(path):
    """{(head size, causal): {(implementation, pass): {length: TFLOP/s}}}"""
    panels = {}
    with open(path, encoding="utf8") as file:
        for line in file:
            r = json.loads(line)
            if r.get("what") != "attention" or r.get("implementation") not in NAMES or r.get("type") != "bf16":
                continue
            if r["batch"] * r["length"] != 16384 or r["heads"] * r["head_size"] != 2048:
                continue
            gflop = r["forward_tflops"] * r["forward_ms"]
            backward_ms = r["forward_and_backward_ms"] - r["forward_ms"]
            panel = panels.setdefault((r["head_size"], r["causal"]), {})
            panel.setdefault((r["implementation"], "forward"), {})[r["length"]] = r["forward_tflops"]
            panel.setdefault((r["implementation"], "backward"), {})[r["length"]] = 2.5 * gflop / backward_ms
    return panels


def panel_svg(title, lines, x0, y0, top):
    lengths = sorted({length for line in lines.values() for length in line})
    low, high = math.log2(lengths[0]), math.log2(lengths[-1])
    x = lambda length: x0 + WIDTH * (math.log2(length) - low) / (high - low)
    y = lambda value: y0 + HEIGHT * (1 - value / top)
    out = [f'<text x="{x0}" y="{y0 - 10}" class="t">{title}</text>']
    for value in range(0, top + 1, 100):
        out.append(f'<path d="M{x0} {y(value):.1f}h{WIDTH}" class="g"/>')
        out.append(f'<text x="{x0 - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for length in lengths:
        out.append(f'<text x="{x(length):.1f}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{length}</text>')
    for key, line in sorted(lines.items()):
        colour, dashes = LOOKS[key]
        points = " ".join(f"{x(length):.1f},{y(value):.1f}" for length, value in sorted(line.items()))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')
    return out


def main():
    source, target = sys.argv[1:]
    panels = curves(source)
    if not panels:
        sys.exit(f"{source}: holds no lines of pytorch_attention.py at 16k tokens and width 2048")
    top = 100 * math.ceil(max(v for p in panels.values() for line in p.values() for v in line.values()) / 100)
    sizes = sorted({size for size, _ in panels})
    wide, high = LEFT + 2 * (WIDTH + GAP), TOP + len(sizes) * (HEIGHT + GAP) + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
        "<style>text{fill:#555}.t{font-size:14px;fill:#222}.g{stroke:#ddd;fill:none}</style>",
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    for (size, causal), lines in sorted(panels.items()):
        title = f"head size {size}, {'causal' if causal else 'full'}: TFLOP/s by length"
        out += panel_svg(title, lines, LEFT + int(causal) * (WIDTH + GAP), TOP + sizes.index(size) * (HEIGHT + GAP), top)
    for n, ((name, which), (colour, dashes)) in enumerate(LOOKS.items()):
        at = LEFT + n * 180
        out.append(f'<path d="M{at} {high - 12}h28" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')
        out.append(f'<text x="{at + 34}" y="{high - 8}">{NAMES[name]} {which}</text>')
    with open(target, "w", encoding="utf8") as file:
        file.write("\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
