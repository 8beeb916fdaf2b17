# SPDX-License-Identifier: Apache-2.0
"""Embeddings of sentences with BERT (base), 32 sentences of some 15 words at a time; a step is 2048 sentences.

An engineer sees batches of five hundred tokens that a GPU of this size is done with in three milliseconds, while Python
takes twice as long to launch the 250 operations of twelve layers, after cutting the next sentences into tokens. The
repair encodes 512 sentences at a time. The other repair allows TF32, which shortens what nothing waits for. In both
variants the weights are random and the sentences made up, fewer of them but encoded again and again.
"""
CAUSE = "launch"
LINE = "examples/sentence_transformer/evaluation/evaluation_inference_speed.py:37"
REPOSITORY = "UKPLab/sentence-transformers"
COMMIT = "85ec64559f4414aa536eca4bf53538291e0a333f"
FOLDER = "examples/sentence_transformer/evaluation"
COMMAND = ["evaluation_inference_speed.py", "./bert"]
EDITS = [
    ("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 14, 14, "import transformers"),
    ("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 23, 23, """\
config = transformers.AutoConfig.from_pretrained(model_name)
transformers.AutoModel.from_config(config).save_pretrained(model_name)
"""),
    ("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 28, 29, """\
with open(f"{model_name}/sentences.txt") as file:
    sentences = file.read().splitlines()[:max_sentences]
"""),
    ("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 34, 34, "for i in range(100_000):"),
    ("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 38, 37, "    step_done()"),
]
REPAIR = [("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 37, 37,
           "    emb = model.encode(sentences, batch_size=512)")]
OTHER_REPAIRS = {"precision": [
    ("examples/sentence_transformer/evaluation/evaluation_inference_speed.py", 20, 20,
     'torch.set_float32_matmul_precision("high")'),
]}
STEPS = 15
WARM_UP = 2
