"""A classifier of texts of different lengths: packed sequences through an LSTM of two directions, then a GRU over its outputs."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

WORDS, WIDTH, HIDDEN, CLASSES, LENGTHS = 20000, 256, 512, 20, (48, 41, 40, 40, 33, 25, 24, 24, 17, 9, 5, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, texts, lengths):
        packed = rnn.pack_padded_sequence(self.words(texts), lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.gru(outputs)[1][-1])


def batch():
    texts = [torch.randint(1, WORDS, (length,)) for length in LENGTHS[::2] + LENGTHS[1::2]]
    return rnn.pad_sequence(texts, batch_first=True).cuda(), torch.tensor([len(text) for text in texts])


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(2):
    texts, lengths = batch()
    loss = functional.cross_entropy(model(texts, lengths), torch.randint(CLASSES, (len(lengths),)).cuda())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
model.eval()
with torch.inference_mode():
    best = model(*batch()).argmax(-1)
