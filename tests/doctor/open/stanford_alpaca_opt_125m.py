# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on instructions with the Hugging Face Trainer: OPT of 125 M parameters, bf16, 4 x 8 texts a step.

An engineer sees micro-batches of four short texts, a few hundred tokens, far too little for this GPU: each operation's
launch takes longer than its kernel. The repair is a batch of 32 without accumulation, the same 32 texts a step. Model
and tokenizer come from local files (weights random), the texts are made up, and calls of old versions are renewed.
"""
CAUSE = "launch"
LINE = "train.py:216"
REPOSITORY = "tatsu-lab/stanford_alpaca"
COMMIT = "761dc5bfbdeeffa89b8bff5d038781a4055f796a"
COMMAND = ["train.py", "--model_name_or_path", "opt-125m", "--data_path", "alpaca_data.json", "--bf16", "True", "--tf32",
           "True", "--output_dir", "out", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "8",
           "--learning_rate", "2e-5", "--weight_decay", "0.", "--lr_scheduler_type", "cosine", "--save_strategy", "no",
           "--logging_steps", "1", "--report_to", "none"]
EDITS = [
    ("train.py", 22, 22, "import json"),
    ("train.py", 133, 133, "        with open(data_path) as file:\n            list_data_dict = json.load(file)"),
    ("train.py", 186, 189, "    config = transformers.AutoConfig.from_pretrained(model_args.model_name_or_path)\n"
                           "    model = transformers.AutoModelForCausalLM.from_config(config)"),
    ("train.py", 215, 215, "    trainer = Trainer(model=model, processing_class=tokenizer, args=training_args, **data_module)"),
]
REPAIR = [("train.py", 185, 184, "    training_args.per_device_train_batch_size = 32\n"
                                 "    training_args.gradient_accumulation_steps = 1")]
STEPS = 20
WARM_UP = 5
