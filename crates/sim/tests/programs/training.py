"""Trains a small transformer for 60 steps on a device, `cuda` or `meta`, and prints how long a step takes."""

import statistics
import sys
import time

import torch
from torch import nn

WIDTH, HEADS, WORDS = 128, 4, 1000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


device = sys.argv[1]
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(4)], nn.Linear(WIDTH, WORDS)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
times = []
for _ in range(60):
    text = torch.zeros(4, 64, dtype=torch.long, device=device)
    began = time.perf_counter()
    optimizer.zero_grad()
    model(text).mean().backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
print(f"{1e3 * statistics.median(times[10:]):.1f} ms a step on {device}")
