#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of language models: what Hugging Face's transformers compute for a tiny GPT-2 and a tiny Llama.

In float64 on the CPU: logits, the loss, all gradients, and all parameters after three steps of AdamW on the same tokens.
Parameters have the names and shapes that lap_nn_param has; they are multiples of a power of two that every type from
bfloat16 up holds exactly. The format is that of make_golden.py. Run it from anywhere: it writes
test/nn/golden/{gpt2,llama}.bin. Needs torch 2.5 and transformers 4.45 or newer.
"""
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from make_golden import OUT, write

SEQ, BATCH, VOCAB, LAYERS, EPSILON = 7, 2, 37, 2, 1e-5
IGNORED = (1, 3)  # sequence and place of a target that does not count
LR, BETAS, ADAM_EPSILON, DECAY, STEPS = 0.01, (0.9, 0.95), 1e-3, 0.1, 3


def gpt2():
    config = GPT2Config(vocab_size=VOCAB, n_positions=9, n_embd=12, n_layer=LAYERS, n_head=6, layer_norm_epsilon=EPSILON,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, tie_word_embeddings=True)
    model = GPT2LMHeadModel(config)
    names = {"embedding.weight": ["transformer.wte.weight"], "positions.weight": ["transformer.wpe.weight"],
             "final_norm.weight": ["transformer.ln_f.weight"], "final_norm.bias": ["transformer.ln_f.bias"]}
    for i in range(LAYERS):
        for ours, theirs in (("norm1", "ln_1"), ("qkv", "attn.c_attn"), ("proj", "attn.c_proj"), ("norm2", "ln_2"),
                             ("fc1", "mlp.c_fc"), ("fc2", "mlp.c_proj")):
            for what in ("weight", "bias"):
                names[f"layer{i}.{ours}.{what}"] = [f"transformer.h.{i}.{theirs}.{what}"]
    return model, names, ("attn.c_attn.weight", "c_proj.weight", "mlp.c_fc.weight")


def llama():
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=24, num_hidden_layers=LAYERS,
                         num_attention_heads=12, num_key_value_heads=6, head_dim=4, rms_norm_eps=EPSILON,
                         rope_theta=10000.0, tie_word_embeddings=False, attention_bias=False)
    model = LlamaForCausalLM(config)
    names = {"embedding.weight": ["model.embed_tokens.weight"], "final_norm.weight": ["model.norm.weight"],
             "head.weight": ["lm_head.weight"]}
    for i in range(LAYERS):
        for ours, theirs in (("norm1", ["input_layernorm"]), ("norm2", ["post_attention_layernorm"]),
                             ("qkv", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
                             ("proj", ["self_attn.o_proj"]), ("fc1", ["mlp.gate_proj", "mlp.up_proj"]),
                             ("fc2", ["mlp.down_proj"])):
            names[f"layer{i}.{ours}.weight"] = [f"model.layers.{i}.{name}.weight" for name in theirs]
    return model, names, ()


def fill(model, generator):
    """Norms around 1, embeddings large, all else small."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            steps = torch.randint(-96, 97, parameter.shape, generator=generator).double()
            norm = parameter.dim() == 1 and "weight" in name
            unit = 1 / 64 if "emb" in name or "wte" in name or "wpe" in name else 1 / 128 if parameter.dim() == 1 else 1 / 256
            parameter.copy_((1 if norm else 0) + steps * unit)


def ours(tensors, turned):
    """As lap_nn_param has it: matrices [out, in], vectors as columns."""
    parts = []
    for name, tensor in tensors:
        turn = any(name.endswith(end) for end in turned)
        parts.append(tensor.t() if turn else tensor if tensor.dim() == 2 else tensor[:, None])
    return torch.cat(parts)


def make(name, seed, build):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, names, turned = build()
    model = model.double().eval()
    fill(model, generator)
    parameters = dict(model.named_parameters())
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    tokens = tokens[:, :-1]
    targets[IGNORED] = -100
    matrices = {"tokens": tokens.double(), "targets": targets.double()}

    def put(suffix, value):
        for key, theirs in names.items():
            matrices[key + suffix] = ours([(n, value(parameters[n])) for n in theirs], turned)

    put("", lambda p: p.detach().clone())
    decays = [p for p in parameters.values() if p.dim() > 1]
    rest = [p for p in parameters.values() if p.dim() == 1]
    groups = [{"params": decays, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=ADAM_EPSILON)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            matrices["logits"] = logits.transpose(0, 1).reshape(SEQ * BATCH, VOCAB)
            put(".grad", lambda p: p.grad.clone())
        optimizer.step()
    matrices["losses"] = torch.tensor([losses], dtype=torch.float64)
    put(".after", lambda p: p.detach().clone())
    write(OUT / f"{name}.bin", matrices)


if __name__ == "__main__":
    make("gpt2", 21, gpt2)
    make("llama", 22, llama)
