"""A deep network of linear layers with the fused step of AdamW, and gradients that two batches add up to."""

import torch
from torch import nn

WIDTH, LAYERS, BATCH = 1024, 12, 512

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
model = nn.Sequential(*layers, nn.Linear(WIDTH, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(3):
    for part in range(2):
        x, y = torch.randn(BATCH, WIDTH, device=device), torch.zeros(BATCH, 1, device=device)
        nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
