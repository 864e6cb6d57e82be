# SPDX-License-Identifier: Apache-2.0
"""MultiheadAttention and TransformerLayer with the names and arguments of TransformerEngine.

Ranks share heads. Attention itself is torch's scaled_dot_product_attention on a rank's own heads. Query, key and value
have one weight: that of TransformerEngine with fuse_qkv_params.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Dict, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from lapstrake.errors import InvalidArgument, Unsupported
from lapstrake.torch._matrix import shape_of
from lapstrake.torch.modules import Device, Init, LayerNormLinear, LayerNormMLP, Linear, _Parallel, _refuse, _share

_MASKS = ("no_mask", "causal", "arbitrary", "padding", "padding_causal")
# Other names of TransformerEngine's: with as many keys as queries both corners are one.
_OTHER_MASKS = {"causal_bottom_right": "causal", "padding_causal_bottom_right": "padding_causal",
                "padding,causal": "padding_causal", "causal,padding": "padding_causal"}
Rotary = Union[Tensor, Tuple[Tensor, Tensor], None]


# Arguments of TransformerEngine's forward() that are taken with the values that ask for nothing, the default first.
_NOTHING: Dict[str, Tuple[Any, ...]] = {
    "window_size": (None, (-1, -1), (-1, 0)), "core_attention_bias_type": ("no_bias", None),
    "fast_zero_fill": (True, False), "checkpoint_core_attention": (False, None), "pad_between_seqs": (None, False),
    "enc_dec_attn_mask_type": (None, "no_mask")}
_NOTHING.update((name, (None, True, False)) for name in (
    "bottom_right_diagonal", "enc_dec_bottom_right_diagonal"))  # as many keys as queries: both corners are one
_NONE: Tuple[Any, ...] = (None,)  # what others are taken with


def _refuse_others(where: str, **others: Any) -> None:
    for name, value in others.items():
        nothing = _NOTHING.get(name, _NONE)
        if value is nothing[0]:  # most calls have nothing else: each layer of each step comes here
            continue
        if isinstance(value, Tensor) or value not in nothing:
            what = "a tensor" if isinstance(value, Tensor) else repr(value)
            raise Unsupported(f"{name} of {where} is {what}, expected {nothing[0]!r}: it is not supported")


def _mask_type(name: str) -> str:
    name = _OTHER_MASKS.get(name, name)
    if name not in _MASKS:
        raise Unsupported(f"attn_mask_type is '{name}', expected {', '.join(_MASKS)}")
    return name


@torch.compiler.assume_constant_result
def _warn_of_mask(mask_type: str) -> bool:
    """Within torch.compile when a graph is made."""
    warnings.warn(f"attention_mask is ignored with attn_mask_type '{mask_type}', as by TransformerEngine: 'padding', "
                  "'padding_causal' and 'arbitrary' take it")
    return True


def _check_mask(mask: Tensor, shape: Tuple[int, ...]) -> None:
    """A mask is True where nothing is attended to, and fits the scores of `shape`, [b, heads, s, s]."""
    if mask.dtype != torch.bool:
        raise InvalidArgument(f"attention_mask is {mask.dtype}, expected torch.bool: True where nothing is attended to")
    if mask.dim() > 4 or any(size not in (1, whole) for size, whole in zip(mask.shape[::-1], shape[::-1])):
        raise InvalidArgument(f"attention_mask is {shape_of(mask)}, expected {list(shape)}, with 1 for what is the same "
                              "for all")


def _rotated(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions of [s, b, heads, d] by angles [s, 1, 1, d or fewer]: halves of the features are pairs."""
    angles = angles[: heads.shape[0]]
    size = angles.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    first, second = turned.chunk(2, -1)
    result = turned * angles.cos() + torch.cat((-second, first), -1) * angles.sin()
    return torch.cat((result.to(heads.dtype), rest), -1)


class MultiheadAttention(_Parallel):
    """proj(attention(qkv(x))), x normed before with input_layernorm; x is [s, b, hidden], or [b, s, hidden].

    qkv is column parallel, proj row parallel with set_parallel_mode. With sequence_parallel a rank has its share of s.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: Optional[int] = None,
                 attention_dropout: float = 0.1, layernorm_epsilon: float = 1e-5, init_method: Init = None,
                 output_layer_init_method: Init = None, layer_number: Optional[int] = None,
                 attn_mask_type: str = "causal", window_size: Optional[Tuple[int, int]] = None,
                 bottom_right_diagonal: Optional[bool] = None, tp_group: Any = None, tp_size: int = 1,
                 num_gqa_groups: Optional[int] = None, fuse_wgrad_accumulation: bool = False,
                 get_rng_state_tracker: Optional[Callable[[], Any]] = None, sequence_parallel: bool = False,
                 params_dtype: Optional[torch.dtype] = None, return_bias: bool = False,
                 return_layernorm_output: bool = False, input_layernorm: bool = False, attention_type: str = "self",
                 set_parallel_mode: bool = False, fuse_qkv_params: bool = False, zero_centered_gamma: bool = False,
                 qkv_weight_interleaved: bool = True, rotary_pos_interleaved: bool = False, ub_overlap_ag: bool = False,
                 ub_overlap_rs: bool = False, ub_overlap_rs_dgrad: bool = False, ub_bulk_dgrad: bool = False,
                 ub_bulk_wgrad: bool = False, bias: bool = True, normalization: str = "LayerNorm",
                 device: Device = None, qkv_format: str = "sbhd", name: Optional[str] = None,
                 qk_norm_type: Optional[str] = None, qk_norm_eps: float = 1e-6, qk_norm_before_rope: bool = False,
                 seq_length: Optional[int] = None, micro_batch_size: Optional[int] = None,
                 softmax_type: str = "vanilla") -> None:
        window = window_size if window_size not in ((-1, -1), (-1, 0)) else None
        _refuse(window_size=window, qk_norm_type=qk_norm_type, rotary_pos_interleaved=rotary_pos_interleaved,
                fuse_wgrad_accumulation=fuse_wgrad_accumulation)
        for what, value, known in (("attention_type", attention_type, ("self",)),
                                   ("softmax_type", softmax_type, ("vanilla",)),
                                   ("qkv_format", qkv_format, ("sbhd", "bshd"))):
            if value not in known:
                raise Unsupported(f"{what} is '{value}', expected {' or '.join(known)}")
        _mask_type(attn_mask_type)
        overlap = {"ub_overlap_ag": ub_overlap_ag, "ub_overlap_rs": ub_overlap_rs,
                   "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad, "ub_bulk_dgrad": ub_bulk_dgrad,
                   "ub_bulk_wgrad": ub_bulk_wgrad}
        # Without set_parallel_mode every rank has all heads.
        tp_group, tp_size = (tp_group, tp_size) if set_parallel_mode else (None, 1)
        super().__init__(tp_group, tp_size, sequence_parallel, params_dtype, device, get_rng_state_tracker,
                         **{key[3:]: value for key, value in overlap.items()})
        if self.sequence_parallel and qkv_format != "sbhd":
            raise Unsupported(f"qkv_format is '{qkv_format}' with sequence_parallel, expected 'sbhd': ranks share "
                              "dimension 0")
        if num_attention_heads < 1 or not kv_channels and hidden_size % num_attention_heads:
            raise InvalidArgument(f"num_attention_heads is {num_attention_heads}, expected a divisor of hidden_size, "
                                  f"{hidden_size}, or kv_channels")
        groups = num_gqa_groups or num_attention_heads
        if groups < 1 or num_attention_heads % groups:
            raise InvalidArgument(f"num_attention_heads is {num_attention_heads}, expected a multiple of "
                                  f"num_gqa_groups, {groups}")
        _share("num_attention_heads", num_attention_heads, self.tp_size)
        self.groups = _share("num_gqa_groups", groups, self.tp_size)  # of this rank
        self.queries = num_attention_heads // groups  # heads that share a key and a value
        self.head_dim = kv_channels or hidden_size // num_attention_heads
        self.interleaved, self.attn_mask_type = qkv_weight_interleaved, attn_mask_type
        self.attention_dropout, self.qkv_format = attention_dropout, qkv_format
        self.input_layernorm = input_layernorm
        common = {"sequence_parallel": sequence_parallel, "tp_group": tp_group, "tp_size": tp_size, "bias": bias,
                  "get_rng_state_tracker": get_rng_state_tracker, "params_dtype": params_dtype, "device": device,
                  **overlap}
        features = (num_attention_heads + 2 * groups) * self.head_dim
        column, row = ("column", "row") if set_parallel_mode else (None, None)
        if input_layernorm:
            self.layernorm_qkv = LayerNormLinear(hidden_size, features, layernorm_epsilon, init_method=init_method,
                                                 normalization=normalization, zero_centered_gamma=zero_centered_gamma,
                                                 return_layernorm_output=return_layernorm_output, parallel_mode=column,
                                                 ub_name="qkv", **common)
        else:
            _refuse(return_layernorm_output=return_layernorm_output)
            self.qkv = Linear(hidden_size, features, init_method=init_method, parallel_mode=column, ub_name="qkv",
                              **common)
        self.return_layernorm_output = return_layernorm_output
        self.proj = Linear(num_attention_heads * self.head_dim, hidden_size, init_method=output_layer_init_method,
                           return_bias=return_bias, parallel_mode=row, ub_name="proj", **common)

    def forward(self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None, encoder_output: Any = None,
                attn_mask_type: Optional[str] = None, window_size: Optional[Tuple[int, int]] = None,
                bottom_right_diagonal: Optional[bool] = None, is_first_microbatch: Optional[bool] = None,
                checkpoint_core_attention: bool = False, inference_params: Any = None, rotary_pos_emb: Rotary = None,
                core_attention_bias_type: str = "no_bias", core_attention_bias: Any = None, alibi_slopes: Any = None,
                cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None, cu_seqlens_q_padded: Any = None,
                cu_seqlens_kv_padded: Any = None, max_seqlen_q: Optional[int] = None,
                max_seqlen_kv: Optional[int] = None, fast_zero_fill: bool = True,
                pad_between_seqs: Optional[bool] = None) -> Any:
        """The attention of x; with return_layernorm_output also norm(x). A mask is True where nothing is attended.

        Arguments are in the order of TransformerEngine's. Those that ask for what there is not are refused.
        """
        _refuse_others("MultiheadAttention.forward", encoder_output=encoder_output, window_size=window_size,
                       bottom_right_diagonal=bottom_right_diagonal,
                       checkpoint_core_attention=checkpoint_core_attention, inference_params=inference_params,
                       core_attention_bias_type=core_attention_bias_type, core_attention_bias=core_attention_bias,
                       alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
                       cu_seqlens_q_padded=cu_seqlens_q_padded, cu_seqlens_kv_padded=cu_seqlens_kv_padded,
                       max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, fast_zero_fill=fast_zero_fill,
                       pad_between_seqs=pad_between_seqs)
        if hidden_states.dim() != 3:
            order = "[s, b, hidden_size]" if self.qkv_format == "sbhd" else "[b, s, hidden_size]"
            raise InvalidArgument(f"hidden_states is {shape_of(hidden_states)}, expected {order}")
        mixed = self.layernorm_qkv(hidden_states) if self.input_layernorm else self.qkv(hidden_states)
        normed = None
        if self.return_layernorm_output:
            mixed, normed = mixed
        query, key, value = self._heads(mixed)
        if rotary_pos_emb is not None:
            angles = rotary_pos_emb if isinstance(rotary_pos_emb, tuple) else (rotary_pos_emb, rotary_pos_emb)
            if self.qkv_format != "sbhd":
                raise Unsupported(f"rotary_pos_emb with qkv_format '{self.qkv_format}', expected 'sbhd'")
            query, key = _rotated(query, angles[0]), _rotated(key, angles[1])
        result = self.proj(self._attend(query, key, value, attention_mask, attn_mask_type or self.attn_mask_type))
        if normed is None:
            return result
        return (*result, normed) if isinstance(result, tuple) else (result, normed)

    def _load_from_state_dict(self, state_dict: Dict[str, Any], prefix: str, *rest: Any) -> None:
        # TransformerEngine has a weight each for query, key and value, unless it is told to fuse them.
        whole = prefix + ("layernorm_qkv." if self.input_layernorm else "qkv.")
        for kind in ("weight", "bias"):
            parts = [f"{whole}{part}_{kind}" for part in ("query", "key", "value")]
            if all(part in state_dict for part in parts):
                state_dict[whole + kind] = self._mixed(*(state_dict.pop(part) for part in parts))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The rows of a weight, or the elements of a bias, of those for query, key and value."""
        if not self.interleaved:
            return torch.cat((query, key, value))
        return torch.cat([part.unflatten(0, (self.groups, -1)) for part in (query, key, value)], 1).flatten(0, 1)

    def _heads(self, mixed: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """[..., features] to the heads of query [..., heads, d], key and value [..., groups, d]."""
        parts = self.queries + 2
        if self.interleaved:
            mixed = mixed.view(*mixed.shape[:-1], self.groups, parts, self.head_dim)
            query, key, value = torch.split(mixed, [self.queries, 1, 1], -2)
        else:  # all queries, then all keys, then all values: queries are in the order of heads, as those of a group are neighbours
            mixed = mixed.view(*mixed.shape[:-1], parts, self.groups, self.head_dim)
            query, key, value = torch.split(mixed, [self.queries, 1, 1], -3)
        return query.flatten(-3, -2), key.flatten(-3, -2), value.flatten(-3, -2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], mask_type: str) -> Tensor:
        mask_type = _mask_type(mask_type)
        if mask_type in ("no_mask", "causal"):
            if mask is not None:
                _warn_of_mask(mask_type)
            mask = None
        elif mask is None:
            raise InvalidArgument(f"attention_mask is not given, expected a tensor with attn_mask_type '{mask_type}'")
        order = (1, 2, 0, 3) if self.qkv_format == "sbhd" else (0, 2, 1, 3)  # to [b, heads, s, d]
        query, key, value = (part.permute(order) for part in (query, key, value))
        if self.queries > 1:
            key, value = (part.repeat_interleave(self.queries, 1) for part in (key, value))
        causal = mask_type in ("causal", "padding_causal")
        if mask is not None:
            _check_mask(mask, (*query.shape[:3], key.shape[2]))
            mask = ~mask
            if causal:
                mask = mask & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=mask.device).tril()
        dropout = self.attention_dropout if self.training else 0.0
        with self._generator(dropout):
            heads = self._attend_heads(query, key, value, mask, dropout, causal and mask is None)
        return heads.permute((2, 0, 1, 3) if self.qkv_format == "sbhd" else (0, 2, 1, 3)).flatten(-2)

    def _generator(self, dropout: float) -> Any:
        """That of the tracker, where ranks that share heads would else drop the same of each: with sequence parallelism
        their own generators differ, as in Megatron."""
        if dropout == 0 or self._tracker is None or self.tp_size == 1 or self.sequence_parallel:
            return contextlib.nullcontext()
        return self._tracker().fork()

    @staticmethod
    def _attend_heads(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], dropout: float, causal: bool
                      ) -> Tensor:
        if query.device.type != "cpu" or query.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        # In 16 bits, backward of PyTorch 2.8 crashes on CPUs of ARM.
        with torch.autocast("cpu", enabled=False):
            heads = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=mask,
                                                   dropout_p=dropout, is_causal=causal)
        return heads.to(query.dtype)


class TransformerLayer(_Parallel):
    """x + attention(norm(x)), and to that its MLP: self_attention, then layernorm_mlp, each added to its input."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int,
                 num_gqa_groups: Optional[int] = None, layernorm_epsilon: float = 1e-5, hidden_dropout: float = 0.1,
                 attention_dropout: float = 0.1, init_method: Init = None, output_layer_init_method: Init = None,
                 layer_number: Optional[int] = None, kv_channels: Optional[int] = None,
                 self_attn_mask_type: str = "causal", window_size: Optional[Tuple[int, int]] = None,
                 bottom_right_diagonal: Optional[bool] = None, enc_dec_attn_mask_type: str = "no_mask",
                 enc_dec_bottom_right_diagonal: Optional[bool] = None,
                 enc_dec_window_size: Optional[Tuple[int, int]] = None,
                 tp_group: Any = None, tp_size: int = 1, params_dtype: Optional[torch.dtype] = None,
                 get_rng_state_tracker: Optional[Callable[[], Any]] = None, fuse_wgrad_accumulation: bool = False,
                 seq_length: Optional[int] = None, micro_batch_size: Optional[int] = None,
                 sequence_parallel: bool = False, apply_residual_connection_post_layernorm: bool = False,
                 output_layernorm: bool = False, parallel_attention_mlp: bool = False, layer_type: str = "encoder",
                 drop_path_rate: float = 0.0, set_parallel_mode: bool = False, fuse_qkv_params: bool = False,
                 rotary_pos_interleaved: bool = False, zero_centered_gamma: bool = False,
                 qkv_weight_interleaved: bool = True, ub_tp_comm_overlap: bool = False, ub_overlap_ag: bool = True,
                 ub_overlap_rs: bool = True, ub_overlap_rs_dgrad: bool = False, ub_bulk_dgrad: bool = True,
                 ub_bulk_wgrad: bool = True, bias: bool = True, activation: str = "gelu",
                 activation_params: Optional[Dict[str, Any]] = None, normalization: str = "LayerNorm",
                 device: Device = None, attn_input_format: str = "sbhd",
                 name: Optional[str] = None, qk_norm_type: Optional[str] = None, qk_norm_eps: float = 1e-6,
                 qk_norm_before_rope: bool = False, softmax_type: str = "vanilla") -> None:
        _refuse(apply_residual_connection_post_layernorm=apply_residual_connection_post_layernorm,
                output_layernorm=output_layernorm, parallel_attention_mlp=parallel_attention_mlp,
                drop_path_rate=drop_path_rate, fuse_wgrad_accumulation=fuse_wgrad_accumulation)
        if layer_type != "encoder":
            raise Unsupported(f"layer_type is '{layer_type}', expected 'encoder': there is no cross-attention")
        super().__init__(tp_group if set_parallel_mode else None, tp_size if set_parallel_mode else 1,
                         sequence_parallel, params_dtype, device, get_rng_state_tracker)
        overlap = {"ub_overlap_ag": ub_overlap_ag, "ub_overlap_rs": ub_overlap_rs,
                   "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad, "ub_bulk_dgrad": ub_bulk_dgrad,
                   "ub_bulk_wgrad": ub_bulk_wgrad}
        common = {"tp_group": tp_group, "tp_size": tp_size, "sequence_parallel": sequence_parallel,
                  "set_parallel_mode": set_parallel_mode, "params_dtype": params_dtype, "bias": bias,
                  "get_rng_state_tracker": get_rng_state_tracker, "init_method": init_method,
                  "output_layer_init_method": output_layer_init_method, "normalization": normalization,
                  "zero_centered_gamma": zero_centered_gamma, "device": device,
                  **{key: value and ub_tp_comm_overlap for key, value in overlap.items()}}
        self.hidden_dropout = hidden_dropout
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon,
            attn_mask_type=self_attn_mask_type, window_size=window_size, bottom_right_diagonal=bottom_right_diagonal,
            num_gqa_groups=num_gqa_groups, rotary_pos_interleaved=rotary_pos_interleaved, qk_norm_type=qk_norm_type,
            softmax_type=softmax_type, input_layernorm=True, qkv_weight_interleaved=qkv_weight_interleaved,
            qkv_format=attn_input_format, **common)
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation,
                                          activation_params=activation_params, **common)

    def forward(self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None,
                self_attn_mask_type: Optional[str] = None, window_size: Optional[Tuple[int, int]] = None,
                bottom_right_diagonal: Optional[bool] = None, encoder_output: Any = None, enc_dec_attn_mask: Any = None,
                enc_dec_attn_mask_type: Optional[str] = None, enc_dec_window_size: Optional[Tuple[int, int]] = None,
                enc_dec_bottom_right_diagonal: Optional[bool] = None, is_first_microbatch: Optional[bool] = None,
                checkpoint_core_attention: bool = False, inference_params: Any = None, rotary_pos_emb: Rotary = None,
                core_attention_bias_type: str = "no_bias", core_attention_bias: Any = None, alibi_slopes: Any = None,
                cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None, cu_seqlens_q_padded: Any = None,
                cu_seqlens_kv_padded: Any = None, max_seqlen_q: Optional[int] = None,
                max_seqlen_kv: Optional[int] = None, fast_zero_fill: bool = True,
                pad_between_seqs: Optional[bool] = None) -> Tensor:
        """The layer; a mask is True where nothing is attended to.

        Arguments are in the order of TransformerEngine's. Those that ask for what there is not are refused.
        """
        _refuse_others("TransformerLayer.forward", window_size=window_size, bottom_right_diagonal=bottom_right_diagonal,
                       encoder_output=encoder_output, enc_dec_attn_mask=enc_dec_attn_mask,
                       enc_dec_attn_mask_type=enc_dec_attn_mask_type, enc_dec_window_size=enc_dec_window_size,
                       enc_dec_bottom_right_diagonal=enc_dec_bottom_right_diagonal,
                       checkpoint_core_attention=checkpoint_core_attention, inference_params=inference_params,
                       core_attention_bias_type=core_attention_bias_type, core_attention_bias=core_attention_bias,
                       alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
                       cu_seqlens_q_padded=cu_seqlens_q_padded, cu_seqlens_kv_padded=cu_seqlens_kv_padded,
                       max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, fast_zero_fill=fast_zero_fill,
                       pad_between_seqs=pad_between_seqs)
        attended = self.self_attention(hidden_states, attention_mask, attn_mask_type=self_attn_mask_type,
                                       rotary_pos_emb=rotary_pos_emb)
        hidden = hidden_states + F.dropout(attended, self.hidden_dropout, self.training)
        return hidden + F.dropout(self.layernorm_mlp(hidden), self.hidden_dropout, self.training)
