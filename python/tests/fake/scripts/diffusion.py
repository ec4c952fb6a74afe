"""A small denoising diffusion model: a U-Net with attention, trained with a running average of its weights, then sampled."""

import copy

import torch
from torch import nn
from torch.nn import functional

CHANNELS, SIDE, BATCH, TIMES = (64, 128, 256), 32, 16, 1000


class Residual(nn.Module):
    def __init__(self, inputs, outputs, times):
        super().__init__()
        self.before, self.after = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.around = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        y = self.first(functional.silu(self.before(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.around(x) + self.second(functional.dropout(functional.silu(self.after(y)), 0.1, self.training))


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(8, channels), nn.MultiheadAttention(channels, 4, batch_first=True)

    def forward(self, x):
        words = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(words, words, words, need_weights=False)[0].transpose(1, 2).view_as(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        one, two, three = CHANNELS
        self.enter, self.leave = nn.Conv2d(3, one, 3, padding=1), nn.Conv2d(one, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.down1, self.down2, self.middle = Residual(one, one, 256), Residual(one, two, 256), Residual(two, three, 256)
        self.attention = Attention(three)
        self.up2, self.up1 = Residual(three + two, two, 256), Residual(two + one, one, 256)
        self.norm = nn.GroupNorm(8, one)

    def forward(self, x, times):
        waves = torch.exp(torch.arange(32, device=x.device) * -0.3)
        angles = times[:, None].float() * waves[None]
        time = self.time(torch.cat((angles.sin(), angles.cos()), dim=1))
        first = self.down1(self.enter(x), time)
        second = self.down2(functional.avg_pool2d(first, 2), time)
        y = self.attention(self.middle(functional.avg_pool2d(second, 2), time))
        y = self.up2(torch.cat((functional.interpolate(y, scale_factor=2, mode="nearest"), second), 1), time)
        y = self.up1(torch.cat((functional.interpolate(y, scale_factor=2, mode="nearest"), first), 1), time)
        return self.leave(functional.silu(self.norm(y)))


device = torch.device("cuda")
model = Model().to(device)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES), dim=0).to(device)
for step in range(3):
    images = torch.rand(BATCH, 3, SIDE, SIDE).to(device) * 2 - 1
    times = torch.randint(TIMES, (BATCH,), device=device)
    share, noise = kept[times][:, None, None, None], torch.randn_like(images)
    loss = functional.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, times), noise)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), model.parameters()):
            mean.lerp_(weight, 0.01)

average.eval()
with torch.inference_mode():
    x = torch.randn(4 * BATCH, 3, SIDE, SIDE, device=device)
    for time in reversed(range(0, TIMES, 250)):
        noise = average(x, torch.full((len(x),), time, device=device))
        x = (x - (1 - kept[time]).sqrt() * noise) / kept[time].sqrt()
    x = ((x.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).cpu()
