"""transformers' Trainer on a small GPT-2 that nobody has trained, with text of one token, and what the model then generates."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000, n_positions=64))
rows = [{"input_ids": torch.ones(32, dtype=torch.long), "labels": torch.ones(32, dtype=torch.long)} for _ in range(12)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no", skip_memory_metrics=False
    )
    Trainer(model, arguments, train_dataset=rows).train()
assert next(model.parameters()).is_cuda
