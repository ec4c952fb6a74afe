"""Text word by word, with a cache of keys and values, until each text has ended."""

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, WORDS, BATCH, PROMPT, MOST, END = 6, 768, 12, 16384, 8, 96, 40, 7


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, past):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.after(x)))), (k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PROMPT + MOST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words, cache, begin):
        x, grown = self.words(words) + self.places(torch.arange(begin, begin + words.size(1), device=words.device)), []
        for block, past in zip(self.blocks, cache):
            x, pair = block(x, past)
            grown.append(pair)
        return self.head(self.norm(x[:, -1])), grown


@torch.inference_mode()
def generate(model, words):
    cache, new = [None] * LAYERS, words
    ended = torch.zeros(len(words), dtype=torch.bool, device=words.device)
    for _ in range(MOST):
        logits, cache = model(new, cache, words.size(1) - new.size(1))
        chosen = torch.multinomial((logits.float() / 0.8).softmax(-1), 1)
        new = torch.where(ended[:, None], END, chosen)
        ended |= new[:, 0] == END
        words = torch.cat((words, new), dim=1)
        if ended.all():
            break
    return words


model = Model().to("cuda", torch.bfloat16).eval()
print(generate(model, torch.randint(WORDS, (BATCH, PROMPT)).cuda()).shape)
