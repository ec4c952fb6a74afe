import gapless.torch
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

gapless.torch.explain_oom("oom")
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=50257, n_positions=512))
row = torch.ones(512, dtype=torch.long)
rows = [{"input_ids": row, "labels": row} for _ in range(64)]
arguments = TrainingArguments("trainer", max_steps=1, per_device_train_batch_size=64, report_to=[], save_strategy="no")
Trainer(model, arguments, train_dataset=rows).train()
