import gapless.torch
import torch

gapless.torch.explain_oom("oom")


def encode(encoder, batches):
    pairs = []
    for _ in range(batches):
        inputs = torch.randn(1024, 1024, device="cuda")
        pairs.append((inputs, encoder(inputs)))
    return [outputs for _, outputs in pairs]


with torch.no_grad():
    features = encode(torch.nn.Linear(1024, 1024).cuda(), 100)
    table = torch.cat(features)
