#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes test/checkpoint/golden/{gpt2,llama}: tiny models as Hugging Face's transformers save them, model.safetensors and config.json,
and their losses on the tokens of loss(), which test/checkpoint/models.c has as constants. Needs torch 2.5, transformers 4.45 and
safetensors. Run it from anywhere; it prints the losses."""
import json
import pathlib
import shutil

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).resolve().parent.parent / "test" / "checkpoint" / "golden"
VOCAB, SEQ, BATCH = 37, 7, 2


def loss(model):
    """The mean cross-entropy of token (5 i + 3 i^2) mod VOCAB of two sequences side by side."""
    numbers = torch.arange(BATCH * (SEQ + 1))
    tokens = ((5 * numbers + 3 * numbers * numbers) % VOCAB).view(BATCH, SEQ + 1)
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1)).item()


def main():
    torch.manual_seed(1)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=9, n_embd=12, n_layer=2, n_head=6))
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                         num_attention_heads=12, num_key_value_heads=6, head_dim=4, max_position_embeddings=9,
                                         rms_norm_eps=1e-5, tie_word_embeddings=False))
    for name, model in (("gpt2", gpt2), ("llama", llama)):
        model.eval()
        for parameter in model.parameters():  # biases and norms, too, so that none can be taken for another
            torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0, 0.3)
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        for key in ("transformers_version", "_name_or_path"):
            config.pop(key, None)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        for path in folder.iterdir():
            if path.name not in ("config.json", "model.safetensors"):
                path.unlink()
        print(name, repr(loss(model)))


main()
