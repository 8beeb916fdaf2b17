# SPDX-License-Identifier: Apache-2.0
"""Embeddings of proteins from ESM-2 (33 layers, width 1280, 650 M parameters), 4096 amino acids a batch, as published.

An engineer sees large matrix products in float32, which this library keeps off the tensor cores by default, take nearly
all of a step. The repair allows them to use TF32. The other repair leaves logits and representations on the GPU, takes
the means there and copies only those, of a whole batch at once. In both variants the weights are random and the
proteins made up, as long as most proteins are.
"""
CAUSE = "precision"
LINE = "scripts/extract.py:95"
REPOSITORY = "facebookresearch/esm"
COMMIT = "2b369911bb5b4b0dda914521b9475cad1656b2ac"
COMMAND = ["scripts/extract.py", "esm2_t33_650M_UR50D", "proteins.fasta", "embeddings",
           "--repr_layers", "0", "32", "33", "--include", "mean"]
EDITS = [
    ("scripts/extract.py", 64, 64, """\
    import esm

    torch.manual_seed(0)
    alphabet = esm.Alphabet.from_architecture("ESM-1b")
    with torch.device("cuda"):
        model = esm.ESM2(num_layers=33, embed_dim=1280, attention_heads=20, alphabet=alphabet)
"""),
    ("scripts/extract.py", 132, 131, "            step_done()"),
]
REPAIR = [("scripts/extract.py", 63, 63, 'def run(args):\n    torch.set_float32_matmul_precision("high")')]
OTHER_REPAIRS = {"copy": [
    ("scripts/extract.py", 97, 100, """\
            representations = out["representations"]
"""),
    ("scripts/extract.py", 118, 118, "                        layer: t[i, 1 : truncate_len + 1].mean(0)"),
    ("scripts/extract.py", 128, 131, """\
                results[args.output_file] = result

            names, parts = zip(*((name, part) for name, result in results.items()
                                 for part in result["mean_representations"].values()))
            copied = torch.stack(parts).cpu().unbind()
            for name, result in results.items():
                layers = list(result["mean_representations"])
                result["mean_representations"] = {layer: copied[names.index(name) + i].clone()
                                                  for i, layer in enumerate(layers)}
                torch.save(result, name)
"""),
    ("scripts/extract.py", 104, 103, "            results = {}"),
]}
STEPS = 90
WARM_UP = 10
