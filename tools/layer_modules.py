"""Layers that are called otherwise than in PyTorch, or that it has none of, for layer_oracle.py.

Each function is named as the layer and takes its arguments; it gives a module, and a function of
the layer's inputs."""

import functools
import math

from rope_frequencies import frequencies


def later(torch, queries, keys):
    """True if a key comes later than the query."""
    return torch.ones(queries, keys, dtype=torch.bool).triu(1)


def merged(torch, mask, more):
    """One mask of two, of bool or added to scores."""
    if mask is None or mask.dtype == torch.bool:
        return more if mask is None else mask | more
    return mask.masked_fill(more, -math.inf)


def Linear(torch, transposed=False, **arguments):
    """The transposed one is `Conv1D` of transformers, initialised as `Linear` is."""
    module = torch.nn.Linear(**arguments)
    if not transposed:
        return module, module
    module.weight = torch.nn.Parameter(module.weight.detach().t().contiguous())
    return module, lambda x: torch.nn.functional.linear(x, module.weight.t(), module.bias)


def MultiheadAttention(
    torch,
    attn_mask=False,
    key_padding_mask=False,
    is_causal=False,
    num_key_value_heads=None,
    **arguments,
):
    heads, along = arguments["num_heads"], 1 if arguments.get("batch_first") else 0
    module = torch.nn.MultiheadAttention(**arguments)
    if num_key_value_heads is not None:
        module = grouped(torch, num_key_value_heads, **arguments)

    def call(*inputs):
        inputs = list(inputs)
        padding = inputs.pop() if key_padding_mask else None
        mask = inputs.pop() if attn_mask else None
        query, key, value = inputs if len(inputs) == 3 else inputs * 3
        if mask is not None and mask.dim() == 3 and mask.shape[0] == query.shape[1 - along]:
            mask = mask.repeat_interleave(heads, 0)
        alone = mask is None and padding is None
        if is_causal:
            mask = merged(torch, mask, later(torch, query.shape[along], key.shape[along]))
        # PyTorch takes `is_causal` for a promise of what the mask holds.
        promise = is_causal and alone
        return module(
            query, key, value, padding, need_weights=False, attn_mask=mask, is_causal=promise
        )[0]

    return module, call


def grouped(torch, num_key_value_heads, embed_dim, num_heads, bias=True, batch_first=False):
    """Attention of which several heads of the query share one of keys and values."""
    head = embed_dim // num_heads
    widths = [embed_dim, num_key_value_heads * head, num_key_value_heads * head]

    class Grouped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.in_proj_weight = torch.nn.Parameter(torch.empty(sum(widths), embed_dim))
            torch.nn.init.xavier_uniform_(self.in_proj_weight)
            self.in_proj_bias = torch.nn.Parameter(torch.zeros(sum(widths))) if bias else None
            self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias)
            if bias:
                torch.nn.init.zeros_(self.out_proj.bias)

        def forward(self, query, key, value, key_padding_mask, need_weights, attn_mask, is_causal):
            biases = self.in_proj_bias.split(widths) if bias else [None] * 3
            parts = []
            for source, weight, added in zip(
                [query, key, value], self.in_proj_weight.split(widths), biases
            ):
                part = torch.nn.functional.linear(
                    source if batch_first else source.transpose(0, 1), weight, added
                )
                parts.append(part.unflatten(-1, (-1, head)).transpose(1, 2))
            keys, values = [
                part.repeat_interleave(num_heads // num_key_value_heads, 1) for part in parts[1:]
            ]
            attended = attention(torch, parts[0], keys, values, is_causal, key_padding_mask)
            output = self.out_proj(attended.transpose(1, 2).flatten(2))
            return [output if batch_first else output.transpose(0, 1)]

    return Grouped()


def attention(torch, queries, keys, values, causal, padding, window=None, scale=None, cap=None):
    """By heads: [batch, heads, positions, width]."""
    mask, sizes = None, (queries.shape[-2], keys.shape[-2])
    if padding is not None:
        mask = ~padding[:, None, None, :]
        if causal:
            mask = mask & ~later(torch, *sizes)
    if window is not None:
        near = ~later(torch, *sizes) & torch.ones(sizes, dtype=torch.bool).triu(1 - window)
        mask = near if mask is None else mask & near
    if cap is not None:
        scores = queries @ keys.transpose(-2, -1) * (scale or queries.shape[-1] ** -0.5)
        scores = torch.tanh(scores / cap) * cap
        if causal:
            scores = scores.masked_fill(later(torch, *sizes), -math.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        # Nothing at all where all keys are masked.
        return torch.ops.aten._safe_softmax(scores, -1) @ values
    return torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=causal and mask is None, scale=scale
    )


def with_activation(torch, arguments):
    """The arguments as PyTorch takes them, which has no name for `gelu_tanh`."""
    if arguments.get("activation") != "gelu_tanh":
        return arguments
    gelu_tanh = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    return {**arguments, "activation": gelu_tanh}


def TransformerEncoderLayer(
    torch, src_mask=False, src_key_padding_mask=False, is_causal=False, **arguments
):
    module = torch.nn.TransformerEncoderLayer(**with_activation(torch, arguments))

    def call(*inputs):
        inputs = list(inputs)
        padding = inputs.pop() if src_key_padding_mask else None
        mask = inputs.pop() if src_mask else None
        if is_causal:
            positions = inputs[0].shape[1 if arguments.get("batch_first") else 0]
            mask = merged(torch, mask, later(torch, positions, positions))
        return module(inputs[0], src_mask=mask, src_key_padding_mask=padding)

    return module, call


def TransformerDecoderLayer(torch, tgt_is_causal=False, **arguments):
    names = ["tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask"]
    names = [name for name in names if arguments.pop(name, False)]
    module = torch.nn.TransformerDecoderLayer(**with_activation(torch, arguments))

    def call(target, memory, *inputs):
        masks = dict(zip(names, inputs))
        if tgt_is_causal:
            positions = target.shape[1 if arguments.get("batch_first") else 0]
            alone = "tgt_mask" not in masks
            masks["tgt_mask"] = merged(
                torch, masks.get("tgt_mask"), later(torch, positions, positions)
            )
            masks["tgt_is_causal"] = alone
        return module(target, memory, **masks)

    return module, call


def PositionalEncoding(torch, d_model, dropout=0.1, max_len=5000, batch_first=False):
    """As https://pytorch.org/tutorials/beginner/transformer_tutorial.html has it."""
    dropped = torch.nn.Dropout(dropout)

    def call(x):
        position = torch.arange(max_len).unsqueeze(1)
        speeds = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        table = torch.zeros(max_len, d_model)
        table[:, 0::2] = torch.sin(position * speeds)
        table[:, 1::2] = torch.cos(position * speeds)[:, : d_model // 2]
        rows = table[: x.shape[1]] if batch_first else table[: x.shape[0]].unsqueeze(1)
        return dropped(x + rows)

    return dropped, call


def LearnedPositions(torch, num_positions, d_model, batch_first=False, offset=0):
    rows = torch.nn.Embedding(num_positions, d_model)

    def call(x):
        if batch_first:
            return x + rows(offset + torch.arange(x.shape[1]))
        return x + rows(offset + torch.arange(x.shape[0])).unsqueeze(1)

    return rows, call


def Parameter(torch, shape, std=0.0, expand=True):
    class Held(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.value = torch.nn.Parameter(torch.randn(shape) * std)

    held = Held()

    def call(x):
        # An input that is not used has no gradient, but the layer gives zeros.
        value = held.value.expand(len(x), *shape[1:]) if expand else held.value
        return value + 0 * x.sum()

    return held, call


def DropPath(torch, p, mode="row"):
    """As torchvision.ops.stochastic_depth."""
    module = torch.nn.Module()

    def call(x):
        if not module.training or p == 0.0:
            return x
        drawn = x.new_empty([len(x) if mode == "row" else 1] + [1] * (x.dim() - 1))
        drawn.bernoulli_(1.0 - p)
        return x * (drawn if p == 1.0 else drawn.div_(1.0 - p))

    return module, call


def ScaledDotProductAttention(torch, dropout_p=0.0, **arguments):
    module = torch.nn.Module()

    def call(query, key, value, mask=None):
        p = dropout_p if module.training else 0.0
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, dropout_p=p, **arguments
        )

    return module, call


def turned(torch, heads, base, interleaved=False, scaling=None, most=None):
    """The rotary embedding of [batch, heads, positions, width], by complex numbers."""
    positions, width = heads.shape[-2:]
    if scaling is None:
        speeds, times = base ** (-torch.arange(0, width, 2).double() / width), 1.0
    else:
        speeds, times = frequencies(torch, positions, width, base, scaling, most)
    angles = torch.outer(torch.arange(positions).double(), speeds.double())
    turns = torch.polar(torch.full_like(angles, times), angles)
    pairs = (
        heads.unflatten(-1, (-1, 2))
        if interleaved
        else heads.unflatten(-1, (2, -1)).transpose(-2, -1)
    )
    pairs = torch.view_as_real(torch.view_as_complex(pairs.double().contiguous()) * turns).float()
    return (pairs if interleaved else pairs.transpose(-2, -1)).flatten(-2)


def RotaryEmbedding(
    torch,
    head_dim,
    base=10000.0,
    interleaved=False,
    num_heads=None,
    rope_scaling=None,
    max_position_embeddings=None,
):
    def turn(heads):
        return turned(torch, heads, base, interleaved, rope_scaling, max_position_embeddings)

    def call(x):
        if num_heads is None:
            return turn(x)
        heads = x.unflatten(-1, (num_heads, head_dim)).transpose(1, 2)
        return turn(heads).transpose(1, 2).flatten(2)

    return torch.nn.Module(), call


def half_turned(torch, heads, base, scaling=None, most=None):
    """The same without `interleaved`, as in Hugging Face's transformers."""
    positions, width = heads.shape[-2:]
    speeds, times = frequencies(torch, positions, width, base, scaling, most)
    angles = torch.outer(torch.arange(positions).float(), speeds)
    angles = torch.cat([angles, angles], -1)
    first, second = heads.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return heads * (angles.cos() * times) + turned * (angles.sin() * times)


def offset_norm(torch, width, eps, offset):
    """The norm of Gemma: the weight begins at zero, and 1 is added to it."""

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full([width], 1.0 - offset))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (offset + self.weight)

    return Norm()


def RMSNorm(torch, normalized_shape, offset=0.0, **arguments):
    if offset == 0.0:
        module = torch.nn.RMSNorm(normalized_shape, **arguments)
    else:
        module = offset_norm(torch, normalized_shape, arguments["eps"], offset)
    return module, module


def LlamaAttention(
    torch,
    hidden_size,
    num_attention_heads,
    num_key_value_heads=None,
    head_dim=None,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position_embeddings=None,
    partial_rotary_factor=1.0,
    fused=False,
    fused_by_head=False,
    attention_bias=False,
    qkv_bias=False,
    qk_norm_eps=None,
    qk_norm_offset=0.0,
    query_pre_attn_scalar=None,
    attn_logit_softcapping=None,
    attention_dropout=0.0,
    is_causal=True,
    sliding_window=None,
    key_padding_mask=False,
):
    """As in Hugging Face's transformers, with what Mistral, Qwen2, Qwen3, Gemma, Phi-3 and GPT-NeoX
    add."""
    queries, keys = num_attention_heads, num_key_value_heads or num_attention_heads
    width = head_dim or hidden_size // queries
    module = torch.nn.Module()
    bias = attention_bias or qkv_bias
    widths = [queries * width, keys * width, keys * width]
    if fused:
        module.qkv_proj = torch.nn.Linear(hidden_size, sum(widths), bias=bias)
    else:
        for name, size in zip(["q_proj", "k_proj", "v_proj"], widths):
            setattr(module, name, torch.nn.Linear(hidden_size, size, bias=bias))
    module.o_proj = torch.nn.Linear(queries * width, hidden_size, bias=attention_bias)
    if qk_norm_eps is not None:
        norm = {"eps": qk_norm_eps, "offset": qk_norm_offset}
        module.q_norm, module.k_norm = [RMSNorm(torch, width, **norm)[0] for _ in range(2)]

    def projected(x):
        if fused_by_head:
            heads = module.qkv_proj(x).unflatten(-1, (queries, 3 * width))
            return [part.flatten(-2) for part in heads.chunk(3, -1)]
        if fused:
            return module.qkv_proj(x).split(widths, -1)
        return [part(x) for part in [module.q_proj, module.k_proj, module.v_proj]]

    def turn(heads, *scaled):
        if partial_rotary_factor == 1.0:
            return half_turned(torch, heads, *scaled)
        first, rest = heads.tensor_split([int(width * partial_rotary_factor)], -1)
        return torch.cat([half_turned(torch, first, *scaled), rest], -1)

    def call(x, padding=None):
        q, k, v = [part.unflatten(-1, (-1, width)).transpose(1, 2) for part in projected(x)]
        if qk_norm_eps is not None:
            q, k = module.q_norm(q), module.k_norm(k)
        if rope_theta is not None:
            scaled = rope_theta, rope_scaling, max_position_embeddings
            q, k = turn(q, *scaled), turn(k, *scaled)
        k, v = [part.repeat_interleave(queries // keys, 1) for part in [k, v]]
        scale = None if query_pre_attn_scalar is None else query_pre_attn_scalar**-0.5
        scores = sliding_window, scale, attn_logit_softcapping
        attended = attention(torch, q, k, v, is_causal, padding, *scores)
        return module.o_proj(attended.transpose(1, 2).flatten(2))

    return module, call


def LlamaMLP(
    torch, hidden_size, intermediate_size, mlp_bias=False, activation="silu", fused=False
):
    """As in Hugging Face's transformers."""
    module = torch.nn.Module()
    if fused:
        module.gate_up_proj = torch.nn.Linear(hidden_size, 2 * intermediate_size, bias=mlp_bias)
    else:
        module.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, bias=mlp_bias)
        module.up_proj = torch.nn.Linear(hidden_size, intermediate_size, bias=mlp_bias)
    module.down_proj = torch.nn.Linear(intermediate_size, hidden_size, bias=mlp_bias)
    function = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }[activation]

    def call(x):
        if fused:
            gate, up = module.gate_up_proj(x).chunk(2, -1)
        else:
            gate, up = module.gate_proj(x), module.up_proj(x)
        return module.down_proj(function(gate) * up)

    return module, call


def recurrent(torch, kind, arguments):
    module = getattr(torch.nn, kind)(**arguments)

    def call(x, *states):
        output, last = module(x, (states if kind == "LSTM" else states[0]) if states else None)
        return (output, *(last if kind == "LSTM" else [last]))

    return module, call


def RNN(torch, **arguments):
    return recurrent(torch, "RNN", arguments)


def GRU(torch, **arguments):
    return recurrent(torch, "GRU", arguments)


def LSTM(torch, **arguments):
    return recurrent(torch, "LSTM", arguments)
