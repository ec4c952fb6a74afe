"""Trains a small transformer on made-up text whose length is another one in every step."""

import math
import random

import measure
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.to_qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        out = self.dropout(scores.softmax(dim=-1)) @ v
        return self.to_out(out.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary, longest, width, heads, depth):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, text):
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--snapshot", help="record the memory's history, and write it to this file")
    arguments = parser.parse_args()
    device = measure.prepare(arguments.limit)
    measure.record(arguments.snapshot)
    if arguments.small:
        vocabulary, longest, width, heads, depth, batch = 500, 96, 32, 4, 2, 4
    else:
        vocabulary, longest, width, heads, depth, batch = 16000, 1024, 512, 8, 6, 8

    model = Transformer(vocabulary, longest, width, heads, depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    lengths, data = random.Random(2), torch.Generator().manual_seed(1)
    steps = measure.Steps(device)
    for _ in range(arguments.steps):
        length = lengths.randint(longest // 16, longest - 1)
        # Words that repeat themselves after a while, so that there is something to learn.
        start = torch.randint(vocabulary // 8, (batch, 8), generator=data)
        text = start.repeat(1, length // 8 + 1)[:, : length + 1].to(device)
        with steps.step():
            optimizer.zero_grad()
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, vocabulary), text[:, 1:].reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps.add_loss(loss)
    measure.finish(steps.figures(model), arguments.snapshot)


if __name__ == "__main__":
    main()
