"""A loop of training with accelerate: three steps with accumulated gradients, a saved state, and the memory released at the end."""

import tempfile

import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(48, 256)), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
assert accelerator.device.type == "cuda"
for (batch,) in data:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    accelerator.load_state(folder)
model, optimizer, data = accelerator.free_memory(model, optimizer, data)
