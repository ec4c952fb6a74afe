import gapless.torch
import lightning
import torch
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1024, 65536), nn.ReLU(), nn.Linear(65536, 1024))

    def training_step(self, batch, index):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


gapless.torch.explain_oom("oom")
data = torch.utils.data.DataLoader(torch.randn(16, 1024), batch_size=16)
lightning.Trainer(accelerator="cuda", devices=1, max_epochs=1, logger=False).fit(Model(), data)
