"""A vision transformer that trains under autocast with a scaler of gradients, and is saved and loaded."""

import tempfile

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, BATCH, SIDE, PATCH, CLASSES = 6, 384, 6, 16, 96, 8, 100


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.after(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    images, labels = torch.randn(BATCH, 3, SIDE, SIDE).cuda(non_blocking=True), torch.randint(CLASSES, (BATCH,)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = functional.cross_entropy(model(images), labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()

with tempfile.TemporaryFile() as file:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cuda")
model.load_state_dict(loaded["model"])
model.eval()
with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
    best = model(torch.randn(8 * BATCH, 3, SIDE, SIDE, device="cuda")).softmax(-1).argmax(-1)
