"""A convolutional network with batch normalisation, trained by SGD with momentum."""

import torch
from torch import nn
from torch.nn import functional

CHANNELS, BATCH, SIDE = (3, 32, 64, 128, 256), 16, 96


def block(inputs, outputs):
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), nn.MaxPool2d(2))


model = nn.Sequential(*(block(*pair) for pair in zip(CHANNELS, CHANNELS[1:])), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model.append(nn.Linear(CHANNELS[-1], 100))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    images, labels = torch.randn(BATCH, 3, SIDE, SIDE).cuda(), torch.randint(100, (BATCH,)).cuda()
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
