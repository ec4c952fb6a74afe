"""Low-rank adapters beside the frozen bfloat16 weights of a transformer."""

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, RANK, BATCH, LENGTH = 8, 1024, 16, 16, 2, 512


class Adapted(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x.float())).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.bfloat16).requires_grad_(False)
        self.qkv, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.up, self.down = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(functional.silu(self.up(self.norm(x))))


model = nn.Sequential(*(Block() for _ in range(LAYERS))).cuda()
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
for step in range(3):
    x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
