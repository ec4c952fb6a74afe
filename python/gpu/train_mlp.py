"""Trains a multilayer perceptron on made-up data."""

import measure
import torch
from torch import nn


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    device = measure.prepare(arguments.limit)
    width, batch, inputs, classes = (64, 128, 32, 10) if arguments.small else (3072, 4096, 1024, 1000)

    layers = [nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(width, classes)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()

    data = torch.Generator().manual_seed(1)
    steps = measure.Steps(device)
    for _ in range(arguments.steps):
        x = torch.randn(batch, inputs, generator=data)
        y = x[:, :classes].argmax(dim=1)
        x, y = x.to(device), y.to(device)
        with steps.step():
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
            steps.add_loss(loss)
    measure.finish(steps.figures(model))


if __name__ == "__main__":
    main()
