#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of test/nn: what PyTorch computes for small layers, forward and backward.

Uses torch.nn.functional only, in float64 on the CPU. Inputs and weights are multiples of a power of two that every
type from bfloat16 up holds exactly, so that a test in any of these types starts from the same numbers. Results are
rounded to float32. Run it from anywhere: it writes test/nn/golden/*.bin. Needs PyTorch 2.5 or newer.

A file is a sequence of matrices: a name of 32 bytes, ended by zeros; rows and columns as 32-bit integers; the elements
by rows as float32; all little-endian. Vectors are columns, [n, 1], as lap_nn_param has them.
"""
import pathlib
import struct

import torch
import torch.nn.functional as F

SEQ, BATCH, HIDDEN, EPSILON = 7, 2, 16, 1e-5
OUT = pathlib.Path(__file__).resolve().parent.parent / "test" / "nn" / "golden"


class Numbers:
    """Random leaves, and a record of all of them by name."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.leaves = {}

    def leaf(self, name, rows, cols, unit, offset=0):
        steps = torch.randint(-96, 97, (rows, cols), generator=self.generator)
        self.leaves[name] = (offset + steps.double() * unit).requires_grad_()
        return self.leaves[name]


class Layer:
    """The operations of one layer; weights come about as they are used, in the order of lap_nn_param."""

    def __init__(self, numbers, index, norm, bias):
        self.numbers, self.prefix, self.norm_kind, self.bias = numbers, f"layer{index}.", norm, bias

    def linear(self, name, x, features):
        weight = self.numbers.leaf(f"{self.prefix}{name}.weight", features, x.shape[-1], 1 / 256)
        bias = self.numbers.leaf(f"{self.prefix}{name}.bias", features, 1, 1 / 128)[:, 0] if self.bias else None
        return F.linear(x, weight, bias)

    def norm(self, name, x):
        weight = self.numbers.leaf(f"{self.prefix}{name}.weight", x.shape[-1], 1, 1 / 128, 1)[:, 0]
        if self.norm_kind == "rmsnorm":
            return F.rms_norm(x, (x.shape[-1],), weight, EPSILON)
        bias = self.numbers.leaf(f"{self.prefix}{name}.bias", x.shape[-1], 1, 1 / 128)[:, 0]
        return F.layer_norm(x, (x.shape[-1],), weight, bias, EPSILON)

    def mlp(self, x, ffn, activation):
        x = self.norm("norm2", x)
        if activation == "gelu":
            x = F.gelu(self.linear("fc1", x, ffn), approximate="tanh")
        else:
            gate, up = self.linear("fc1", x, 2 * ffn).chunk(2, dim=-1)
            x = F.silu(gate) * up
        return self.linear("fc2", x, HIDDEN)

    def attention(self, x, heads, kv_heads, dim):
        x = self.linear("qkv", self.norm("norm1", x), (heads + 2 * kv_heads) * dim)
        q, k, v = x.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)

        def split(t):  # [seq * batch, heads * dim] to [batch, heads, seq, dim]
            return t.view(SEQ, BATCH, -1, dim).permute(1, 2, 0, 3)

        out = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True, enable_gqa=True)
        out = out.permute(2, 0, 1, 3).reshape(SEQ * BATCH, heads * dim)
        return self.linear("proj", out, HIDDEN)


def write(path, matrices):
    with open(path, "wb") as file:
        for name, matrix in matrices.items():
            values = matrix.detach().flatten().tolist()
            file.write(struct.pack("<32sII", name.encode(), *matrix.shape))
            file.write(struct.pack(f"<{len(values)}f", *values))


def make(name, seed, forward, width=HIDDEN):
    numbers = Numbers(seed)
    x = numbers.leaf("x", SEQ * BATCH, width, 1 / 64)
    y = forward(numbers, x)
    steps = torch.randint(-96, 97, y.shape, generator=numbers.generator)
    dy = steps.double() / 64
    y.backward(dy)
    matrices = {"y": y, "dy": dy}
    for leaf, value in numbers.leaves.items():
        matrices[leaf] = value
        matrices[leaf + ".grad"] = value.grad
    write(OUT / f"{name}.bin", matrices)


def transformer(numbers, x, layers, norm, bias, activation, kv_heads):
    for i in range(layers):
        layer = Layer(numbers, i, norm, bias)
        x = x + layer.attention(x, 24, kv_heads, 2)
        x = x + layer.mlp(x, 48, activation)
    return x


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    make("linear", 1, lambda n, x: Layer(n, 0, "layernorm", True).linear("linear", x, 24))
    make("linear_row", 2, lambda n, x: Layer(n, 0, "layernorm", True).linear("linear", x, HIDDEN), 24)

    def layernorm_linear(numbers, x):
        layer = Layer(numbers, 0, "layernorm", True)
        return layer.linear("linear", layer.norm("norm", x), 48)

    make("layernorm_linear", 3, layernorm_linear)
    make("layernorm_mlp", 4, lambda n, x: Layer(n, 0, "layernorm", True).mlp(x, 48, "gelu"))
    make("rmsnorm_swiglu", 5, lambda n, x: Layer(n, 0, "rmsnorm", False).mlp(x, 24, "swiglu"))
    make("attention", 6, lambda n, x: Layer(n, 0, "layernorm", True).attention(x, 24, 24, 2))
    make("grouped", 7, lambda n, x: Layer(n, 0, "rmsnorm", False).attention(x, 48, 24, 2))
    make("transformer", 8, lambda n, x: transformer(n, x, 1, "layernorm", True, "gelu", 24))
    make("transformer2", 9, lambda n, x: transformer(n, x, 2, "rmsnorm", True, "swiglu", 24))


if __name__ == "__main__":
    main()
