# SPDX-License-Identifier: Apache-2.0
"""MultiheadAttention and TransformerLayer: with several ranks as with one, and with one as plain torch."""

import unittest
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F

import lapstrake
import lapstrake.torch as lap
from torch_ranks import COMPILED, DEVICE, Case, import_compiler, replayed

HIDDEN, FFN, HEADS, DIM, ROWS, BATCH = 12, 16, 4, 3, 8, 2


def plain(p, x, groups, mask, angles):
    """The whole layer in plain torch, head by head, from its parameters by name."""
    def norm(x, name):
        return F.layer_norm(x, (HIDDEN,), p[f"{name}.layer_norm_weight"], p[f"{name}.layer_norm_bias"], 1e-5)

    def rotated(heads):
        if angles is None:
            return heads
        first, second = heads[..., : DIM // 2], heads[..., DIM // 2: DIM // 2 * 2]
        turned = torch.stack([first, second], -1)
        c, s = (f(angles[:, 0, 0, : DIM // 2])[:, None] for f in (torch.cos, torch.sin))
        return torch.cat([turned[..., 0] * c - turned[..., 1] * s, turned[..., 1] * c + turned[..., 0] * s,
                          heads[..., DIM // 2 * 2:]], -1)

    a = "self_attention"
    mixed = F.linear(norm(x, f"{a}.layernorm_qkv"), p[f"{a}.layernorm_qkv.weight"], p[f"{a}.layernorm_qkv.bias"])
    each = HEADS // groups
    rows = mixed.unflatten(-1, (groups, each + 2, DIM))
    heads = []
    for head in range(HEADS):
        group = rows[:, :, head // each]
        q, k, v = rotated(group[:, :, head % each]), rotated(group[:, :, each]), group[:, :, each + 1]
        scores = torch.einsum("sbd,tbd->bst", q, k) / DIM ** 0.5
        hidden = torch.ones(ROWS, ROWS).triu(1).bool() if mask is None else mask[:, 0]
        heads.append(torch.einsum("bst,tbd->sbd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v))
    x = x + F.linear(torch.cat(heads, -1), p[f"{a}.proj.weight"], p[f"{a}.proj.bias"])
    m = "layernorm_mlp"
    up = F.gelu(F.linear(norm(x, m), p[f"{m}.fc1_weight"], p[f"{m}.fc1_bias"]), approximate="tanh")
    return x + F.linear(up, p[f"{m}.fc2_weight"], p[f"{m}.fc2_bias"])


def share(name, tensor, rank, ranks):
    """A rank's share of a parameter."""
    if name.endswith(("layernorm_qkv.weight", "layernorm_qkv.bias", "fc1_weight", "fc1_bias")):
        return tensor.chunk(ranks)[rank]
    return tensor.chunk(ranks, 1)[rank] if name.endswith(("proj.weight", "fc2_weight")) else tensor


def close(name, ours, theirs):
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
        raise AssertionError(f"{name}: {ours} is not {theirs}, by {(ours - theirs).abs().max()}")


def layer(rank, ranks, sequence_parallel, overlap, groups, masked=False, rotary=False, compiled=None):
    """Forward and backward against the whole in plain torch."""
    whole = lap.TransformerLayer(HIDDEN, FFN, HEADS, num_gqa_groups=groups, kv_channels=DIM, device=DEVICE)
    p = {name: torch.randn(value.shape).mul_(0.4).requires_grad_() for name, value in whole.named_parameters()}
    module = lap.TransformerLayer(HIDDEN, FFN, HEADS, num_gqa_groups=groups, kv_channels=DIM, hidden_dropout=0,
                                  attention_dropout=0, tp_group=dist.group.WORLD, sequence_parallel=sequence_parallel,
                                  set_parallel_mode=True, ub_tp_comm_overlap=overlap, device=DEVICE)
    module.load_state_dict({name: share(name, value.detach(), rank, ranks) for name, value in p.items()})
    mask = (torch.rand(BATCH, 1, ROWS, ROWS) < 0.3) & ~torch.eye(ROWS).bool() if masked else None
    angles = torch.randn(ROWS, 1, 1, DIM // 2).repeat(1, 1, 1, 2) if rotary else None
    split = sequence_parallel and ranks > 1
    run = module if compiled is None else torch.compile(module, fullgraph=True, **compiled)
    for step in range(1 if compiled is None else 3):
        x, scale = torch.randn(ROWS, BATCH, HIDDEN), torch.randn(ROWS, BATCH, HIDDEN)
        mine, factor = (t.chunk(ranks)[rank] if split else t for t in (x, scale))
        mine, x = mine.clone().requires_grad_(), x.requires_grad_()
        truth = plain(p, x, groups, mask, angles)
        with replayed(compiled, step):
            y = run(mine, mask, "arbitrary" if masked else None, rotary_pos_emb=angles)
            close(f"result of step {step}", y.detach(), truth.detach().chunk(ranks)[rank] if split else truth.detach())
            (y * factor).sum().backward()
        (truth * scale).sum().backward()
        lap.reduce_sequence_parallel_gradients(module)
        close(f"d x of step {step}", mine.grad, x.grad.chunk(ranks)[rank] if split else x.grad)
        for name, parameter in module.named_parameters():
            close(f"d {name} of step {step}", parameter.grad, share(name, p[name].grad, rank, ranks))
            parameter.grad = p[name].grad = None


def apart(mixed):
    """Rows of an interleaved weight of two groups, as TransformerEngine has them without interleaving: those of all query heads in
    their order, then of keys, then of values."""
    rows = mixed.unflatten(0, (2, HEADS // 2 + 2, DIM))
    return torch.cat([rows[:, :-2].flatten(0, 2), rows[:, -2].flatten(0, 1), rows[:, -1].flatten(0, 1)])


def layers(rank, ranks):
    overlap = ranks > 1
    layer(rank, ranks, True, overlap, HEADS)
    layer(rank, ranks, True, False, HEADS, masked=True)
    layer(rank, ranks, False, False, HEADS, rotary=True)
    if ranks <= 2:
        layer(rank, ranks, True, overlap, 2, rotary=True)


def compiled(rank, ranks, options):
    layer(rank, ranks, True, True, HEADS, compiled=options)


class Transformer(Case):
    def test_layers(self):
        self.on((1, 2, 4), layers)

    def test_compiled(self):
        import_compiler()
        for options in COMPILED:
            with self.subTest(**options):
                self.on((2,), compiled, options)

    def test_batch_first_and_not_interleaved(self):
        torch.manual_seed(1)
        x = torch.randn(ROWS, BATCH, HIDDEN)
        first, second = (lap.MultiheadAttention(HIDDEN, HEADS, DIM, 0.0, 1e-5, torch.nn.init.normal_, torch.nn.init.normal_,
                                                device="cpu", num_gqa_groups=2, qkv_format=order,
                                                qkv_weight_interleaved=interleaved)
                         for order, interleaved in (("sbhd", True), ("bshd", False)))
        state = first.state_dict()
        second.load_state_dict({name: apart(value) if name.startswith("qkv") else value for name, value in state.items()})
        close("batch first", second(x.transpose(0, 1)).transpose(0, 1), first(x))

    def test_what_transformer_engine_saved(self):
        """Its states have FP8 scales, too, under names of their own."""
        module = torch.nn.Sequential(lap.TransformerLayer(HIDDEN, FFN, HEADS, device="cpu"))
        state = {name: torch.full_like(value, 2.0) for name, value in module.state_dict().items()}
        state.update({f"0.{name}_extra_state": torch.empty(0) for name in (
            "layernorm_mlp.", "self_attention.layernorm_qkv.", "self_attention.proj.", "self_attention.core_attention.")})
        before = dict(state)
        module.load_state_dict(state)
        self.assertEqual(state.keys(), before.keys())
        self.assertEqual({float(value.mean()) for value in module.parameters()}, {2.0})
        with self.assertRaisesRegex(RuntimeError, "Unexpected key.*core_attention.scale"):
            module.load_state_dict({**state, "0.self_attention.core_attention.scale": torch.empty(0)})

    def test_arguments_by_position(self):
        """They are in the order of TransformerEngine's."""
        layer = lap.TransformerLayer(HIDDEN, FFN, HEADS, kv_channels=4, hidden_dropout=0, attention_dropout=0, device="cpu")
        x, angles = torch.randn(ROWS, BATCH, HIDDEN), torch.randn(ROWS, 1, 1, 4)
        mask = torch.ones(ROWS, ROWS).tril(-1).bool()
        truth = layer(x, mask, "arbitrary", rotary_pos_emb=angles)
        cross, rest = (None, None, None, None, None), ("no_bias", None, None, *[None] * 6, True, None)
        self.assertTrue(torch.equal(truth, layer(x, mask, "arbitrary", (-1, -1), True, *cross, True, False, None, angles, *rest)))
        attention = layer.self_attention
        truth = attention(x, mask, attn_mask_type="arbitrary", rotary_pos_emb=angles)
        self.assertTrue(torch.equal(truth, attention(x, mask, None, "arbitrary", None, False, True, False, None, angles, *rest)))
        for text, call in (
            ("window_size of TransformerLayer.forward is (4, 0), expected None", lambda: layer(x, None, None, (4, 0))),
            ("encoder_output of TransformerLayer.forward is a tensor", lambda: layer(x, None, None, None, None, x)),
            ("core_attention_bias_type of MultiheadAttention.forward is 'alibi', expected 'no_bias'",
             lambda: attention(x, *[None] * 6, False, None, None, "alibi")),
        ):
            with self.assertRaises(lapstrake.Unsupported) as caught:
                call()
            self.assertIn(text, str(caught.exception))
        lap.MultiheadAttention(HIDDEN, HEADS, 4, 0.1, 1e-5, None, None, 1, "causal", (-1, 0), True, device="cpu")

    def test_weights_of_transformer_engine_that_are_apart(self):
        """Without fuse_qkv_params it has a weight each for query, key and value."""
        normal = torch.nn.init.normal_
        x, size = torch.randn(ROWS, BATCH, HIDDEN), (HEADS * DIM, 2 * DIM, 2 * DIM)
        for normed in (True, False):
            for interleaved in (True, False):
                first, second = (lap.MultiheadAttention(
                    HIDDEN, HEADS, DIM, 0.0, 1e-5, normal, normal, num_gqa_groups=2, input_layernorm=normed, device="cpu",
                    qkv_weight_interleaved=either) for either in (True, interleaved))
                state = first.state_dict()
                name = "layernorm_qkv" if normed else "qkv"
                normal(state[f"{name}.bias"])
                for kind in ("weight", "bias"):
                    parts = apart(state.pop(f"{name}.{kind}")).split(size)
                    state.update({f"{name}.{part}_{kind}": value for part, value in zip(("query", "key", "value"), parts)})
                before = dict(state)
                second.load_state_dict(state)
                self.assertEqual(state.keys(), before.keys())
                close(f"interleaved: {interleaved}", second(x), first(x))
                del state[f"{name}.key_bias"]
                with self.assertRaisesRegex(RuntimeError, f"(?s)Missing key.*{name}.bias.*Unexpected key.*{name}.query_bias"):
                    torch.nn.Sequential(second).load_state_dict({f"0.{key}": value for key, value in state.items()})

    def test_masks_that_are_ignored(self):
        """As by TransformerEngine, but not without a word: a mask may hide more than the type does."""
        layer = lap.TransformerLayer(HIDDEN, FFN, HEADS, hidden_dropout=0, attention_dropout=0, device="cpu")
        x, mask = torch.randn(ROWS, BATCH, HIDDEN), torch.zeros(BATCH, 1, 1, ROWS).bool()
        mask[0, ..., -3:] = True
        import_compiler()
        for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
            for kind in ("causal", "no_mask"):
                truth = layer(x, None, kind)
                with self.assertWarnsRegex(UserWarning, f"attention_mask is ignored with attn_mask_type '{kind}'"):
                    self.assertTrue(torch.equal(run(x, mask, kind), truth))
                with self.assertWarns(UserWarning):  # of a type that would be wrong where it counts
                    self.assertTrue(torch.equal(run(x, torch.ones(1), kind), truth))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertFalse(torch.equal(layer(x, mask, "padding_causal"), layer(x)))

    def test_other_names_of_masks(self):
        for other, name in (("causal_bottom_right", "causal"), ("padding_causal_bottom_right", "padding_causal"),
                            ("padding,causal", "padding_causal"), ("causal,padding", "padding_causal")):
            torch.manual_seed(1)
            layers = [lap.TransformerLayer(HIDDEN, FFN, HEADS, hidden_dropout=0, attention_dropout=0, device="cpu",
                                           self_attn_mask_type=kind) for kind in (other, name)]
            layers[1].load_state_dict(layers[0].state_dict())
            x, mask = torch.randn(ROWS, BATCH, HIDDEN), torch.zeros(BATCH, 1, 1, ROWS).bool()
            mask[0, ..., :3] = True
            given = mask if "padding" in name else None
            truth = layers[1](x, given)
            self.assertTrue(truth.isfinite().all())
            for result in (layers[0](x, given), layers[1](x, given, other)):
                self.assertTrue(torch.equal(result, truth), other)

    def test_sentences(self):
        mha, whole = (lap.MultiheadAttention(HIDDEN, HEADS, device="cpu"),
                      lap.TransformerLayer(HIDDEN, FFN, HEADS, device="cpu"))
        whole(torch.randn(ROWS, BATCH, HIDDEN), checkpoint_core_attention=False, inference_params=None,
              core_attention_bias_type="no_bias", window_size=(-1, 0))  # as Megatron calls it
        for error, text, make in (
            (lapstrake.InvalidArgument, "num_attention_heads is 4, expected a multiple of 3",
             lambda: lap.TransformerLayer(HIDDEN, FFN, HEADS, tp_size=3, set_parallel_mode=True)),
            (lapstrake.InvalidArgument, "num_attention_heads is 5, expected a divisor of hidden_size, 12, or kv_channels",
             lambda: lap.TransformerLayer(HIDDEN, FFN, 5)),
            (lapstrake.InvalidArgument, "num_attention_heads is 0, expected a divisor of hidden_size",
             lambda: lap.MultiheadAttention(HIDDEN, 0)),
            (lapstrake.InvalidArgument, "expected a multiple of num_gqa_groups, 3",
             lambda: lap.MultiheadAttention(HIDDEN, HEADS, num_gqa_groups=3)),
            (lapstrake.Unsupported, "layer_type is 'decoder'",
             lambda: lap.TransformerLayer(HIDDEN, FFN, HEADS, layer_type="decoder")),
            (lapstrake.Unsupported, "window_size is (4, 0)",
             lambda: lap.MultiheadAttention(HIDDEN, HEADS, window_size=(4, 0))),
            (lapstrake.Unsupported, "attn_mask_type is 'casual'",
             lambda: lap.MultiheadAttention(HIDDEN, HEADS, attn_mask_type="casual")),
            (lapstrake.Unsupported, "alibi_slopes of MultiheadAttention.forward is a tensor, expected None",
             lambda: mha(torch.randn(ROWS, BATCH, HIDDEN), alibi_slopes=torch.ones(4))),
            (lapstrake.Unsupported, "checkpoint_core_attention of TransformerLayer.forward is True",
             lambda: whole(torch.randn(ROWS, BATCH, HIDDEN), checkpoint_core_attention=True)),
            (TypeError, "unexpected keyword argument 'atention_mask'",
             lambda: whole(torch.randn(ROWS, BATCH, HIDDEN), atention_mask=None)),
            (lapstrake.InvalidArgument, "hidden_states is [8, 12], expected [s, b, hidden_size]",
             lambda: whole(torch.randn(ROWS, HIDDEN))),
            (lapstrake.InvalidArgument, "attention_mask is torch.int64, expected torch.bool",
             lambda: whole(torch.randn(ROWS, BATCH, HIDDEN), torch.zeros(ROWS, ROWS).long(), "arbitrary")),
            (lapstrake.InvalidArgument, "attention_mask is [3, 1, 8, 8], expected [2, 4, 8, 8]",
             lambda: whole(torch.randn(ROWS, BATCH, HIDDEN), torch.zeros(3, 1, ROWS, ROWS).bool(), "arbitrary")),
            (lapstrake.InvalidArgument, "attention_mask is not given, expected a tensor with attn_mask_type 'arbitrary'",
             lambda: mha(torch.randn(ROWS, BATCH, HIDDEN), attn_mask_type="arbitrary")),
        ):
            with self.assertRaises(error) as caught:
                make()
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
