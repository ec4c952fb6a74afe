"""Two convolutional networks against each other: one makes images, the other tells them from real ones."""

import torch
from torch import nn
from torch.nn import functional

NOISE, CHANNELS, BATCH, SIDE = 100, 64, 64, 64


def up(inputs, outputs, **settings):
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, bias=False, **settings), nn.BatchNorm2d(outputs), nn.ReLU(True))


def down(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, True))


maker = nn.Sequential(
    up(NOISE, 8 * CHANNELS),
    *(up(2 * width * CHANNELS, width * CHANNELS, stride=2, padding=1) for width in (4, 2, 1)),
    nn.ConvTranspose2d(CHANNELS, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).cuda()
judge = nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, CHANNELS, 4, 2, 1)),
    nn.LeakyReLU(0.2, True),
    *(down(width * CHANNELS, 2 * width * CHANNELS) for width in (1, 2, 4)),
    nn.Conv2d(8 * CHANNELS, 1, 4),
    nn.Flatten(0),
).cuda()
for network in (maker, judge):
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
makes = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
real, fake = torch.ones(BATCH, device="cuda"), torch.zeros(BATCH, device="cuda")
for step in range(2):
    images = torch.rand(BATCH, 3, SIDE, SIDE).cuda() * 2 - 1
    made = maker(torch.randn(BATCH, NOISE, 1, 1, device="cuda"))
    judges.zero_grad()
    wrong = functional.binary_cross_entropy_with_logits(judge(images), real)
    wrong = wrong + functional.binary_cross_entropy_with_logits(judge(made.detach()), fake)
    wrong.backward()
    judges.step()
    makes.zero_grad()
    seen = functional.binary_cross_entropy_with_logits(judge(made), real)
    seen.backward()
    makes.step()
    print(f"step {step}: {wrong.item():.2f} {seen.item():.2f}")
