"""Inference with a cache of keys and values that grows by one entry at each token."""

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, WORDS, BATCH, PROMPT, TOKENS = 8, 1024, 16, 16384, 8, 256, 48


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, past):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm(x)))), (k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, cache):
        x, grown = self.words(tokens), []
        for block, past in zip(self.blocks, cache):
            x, pair = block(x, past)
            grown.append(pair)
        return self.head(x[:, -1:]), grown


model = Model().half().cuda().eval()
tokens, cache = torch.randint(WORDS, (BATCH, PROMPT), device="cuda"), [None] * LAYERS
with torch.no_grad():
    for _ in range(TOKENS):
        logits, cache = model(tokens, cache)
        tokens = logits.argmax(dim=-1)
