"""Lightning's Trainer with automatic optimization, and its monitor of the device's memory."""

import lightning
import torch
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning.pytorch.loggers import CSVLogger
import tempfile


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))

    def training_step(self, batch, index):
        (inputs,) = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), inputs)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(48, 256)), batch_size=8)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="cuda",
        devices=1,
        max_steps=4,
        logger=CSVLogger(folder),
        callbacks=[DeviceStatsMonitor(cpu_stats=False)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
        log_every_n_steps=1,
    )
    trainer.fit(Model(), data)
