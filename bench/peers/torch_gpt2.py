# SPDX-License-Identifier: Apache-2.0
"""A step of GPT-2 124M in PyTorch: torch.compile, bfloat16 autocast, fused AdamW, random tokens; tokens/s.

    python3 bench/peers/torch_gpt2.py [BATCH [STEPS]]

The peer of `lap train --model gpt2-124m --device cuda --tp 1 --batch 32`. The vocabulary has 50304 rows, as there, so that
the GEMM of the logits has the fast kernels.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HIDDEN, HEADS, SEQ, VOCABULARY = 12, 768, 12, 1024, 50304


class Block(nn.Module):
    """Attention and MLP, each with its norm before it."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = (part.view(batch, seq, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(HIDDEN, dim=2))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).reshape(batch, seq, HIDDEN))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    """GPT-2 with the loss of its tokens; the head has the weights of the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def main(batch=32, steps=20):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(50257, (batch, SEQ + 1), device="cuda")
    times = []
    for step in range(steps + 5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= 5:
            times.append(time.perf_counter() - begin)
    times.sort()
    median = times[len(times) // 2]
    print(json.dumps({"peer": "torch", "model": "gpt2-124m", "batch": batch, "ms": round(median * 1e3, 2),
                      "least_ms": round(times[0] * 1e3, 2), "tokens_per_s": round(batch * SEQ / median)}))


main(*map(int, sys.argv[1:]))
