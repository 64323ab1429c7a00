"""Modules of torch.nn that are layers of BossMan, and the arguments that they were made with."""

import inspect

from .problem import Unknown

# Say where and how a layer computes, not what.
LEFT_OUT = {
    "device",
    "dtype",
    "inplace",
    "return_indices",
    "enable_nested_tensor",
    "mask_check",
    "_weight",
    "_freeze",
}

# Layers with one input and one output that have PyTorch's name, arguments and parameters.
NATIVE = set(
    """
    Linear ReLU LeakyReLU PReLU ReLU6 ELU CELU SELU GELU SiLU Mish Softplus Sigmoid LogSigmoid Tanh
    Softsign Hardtanh Hardsigmoid Hardswish Hardshrink Softshrink Tanhshrink Threshold GLU Softmax
    Softmin LogSoftmax Dropout Dropout2d LayerNorm RMSNorm GroupNorm BatchNorm1d BatchNorm2d
    BatchNorm3d InstanceNorm2d Embedding MultiheadAttention TransformerEncoderLayer RNN GRU LSTM
    Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d MaxPool1d MaxPool2d
    MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
    AdaptiveMaxPool2d Upsample PixelShuffle PixelUnshuffle Flatten Unflatten
    """.split()
)

# Layers that compute along one dimension.
ALONG = {"Softmax", "Softmin", "LogSoftmax", "GLU"}

# Arguments that BossMan does not have, with the values that change nothing.
REFUSED = {
    "Embedding": {"max_norm": None, "scale_grad_by_freq": False, "sparse": False},
    "MultiheadAttention": {"bias_k": None, "bias_v": None, "add_zero_attn": False},
    "LSTM": {"proj_size": 0},
    "Upsample": {"recompute_scale_factor": None},
    "MaxPool1d": {"return_indices": False},
    "MaxPool2d": {"return_indices": False},
    "MaxPool3d": {"return_indices": False},
    "AdaptiveMaxPool2d": {"return_indices": False},
}


def is_native(module):
    """Whether a module as a whole is one layer."""
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.") or kind.__name__ not in NATIVE:
        return False
    if any(is_altered(part) or not is_whole(part) for part in module.modules()):
        return False
    if kind.__name__ == "TransformerEncoderLayer" and not known_activation(module):
        return False
    # PyTorch chooses the dimension of a softmax that has none by the input's rank.
    if kind.__name__ in ("Softmax", "Softmin", "LogSoftmax") and module.dim is None:
        return False
    if kind.__name__ == "Upsample" and module.mode not in ("nearest", "bilinear", "bicubic"):
        return False
    if kind.__name__.startswith("Adaptive") and None in listed(module.output_size):
        return False
    return all(
        getattr(module, name) == value for name, value in REFUSED.get(kind.__name__, {}).items()
    )


def may_mix_samples(module):
    """Whether a layer could compute across the samples of a batch, which its shapes would tell."""
    kind = type(module).__name__
    if kind in ALONG:
        # A dimension counted from the last may be the first.
        return module.dim == 0 or module.dim < -1
    return not getattr(getattr(module, "self_attn", module), "batch_first", True)


def is_altered(module):
    """Whether a call of a module runs more than the forward() and backward of its class."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(module)


def is_whole(module):
    """Whether the state_dict of a module has all its tensors."""
    tensors = [value for value in vars(module).values() if hasattr(value, "requires_grad")]
    return not tensors and not module._non_persistent_buffers_set


def is_statistic(name):
    """Whether a tensor of a norm is computed from what passes through it, by its name."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def is_trained(tensor):
    import torch

    return isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad


def listed(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def known_activation(layer):
    import torch

    return layer.activation in (torch.nn.functional.relu, torch.nn.functional.gelu)


def arguments(module):
    """The arguments that a layer was made with, less those that are PyTorch's defaults."""
    kind = type(module).__name__
    if kind in ("RNN", "GRU", "LSTM"):
        return recurrent(module)
    known = TRANSFORMER.get(kind, lambda _: {})(module)
    found = {}
    for parameter in list(inspect.signature(type(module).__init__).parameters.values())[1:]:
        name = parameter.name
        if name in LEFT_OUT or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in known:
            value = known[name]
        elif name in ("bias", "affine", "elementwise_affine") and not isinstance(
            getattr(module, name, None), bool
        ):
            value = getattr(module, "bias" if name == "bias" else "weight", None) is not None
        elif hasattr(module, name):
            value = getattr(module, name)
        else:
            raise Unknown(f"{kind} does not say what its {name} is")
        if plain(value) == plain(parameter.default):
            continue
        found[name] = plain(value)
    return found


def plain(value):
    """As YAML takes it; pairs of equal numbers are one number."""
    if isinstance(value, (tuple, list)):
        value = [plain(part) for part in value]
        return (
            value[0]
            if value and all(part == value[0] for part in value) and not isinstance(value[0], list)
            else value
        )
    return value


def encoder(layer):
    """Arguments that an encoder or decoder layer stores under other names."""
    import torch

    activation = "gelu" if layer.activation is torch.nn.functional.gelu else "relu"
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": activation,
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": layer.self_attn.batch_first,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }


def attention(layer):
    return {"bias": layer.in_proj_bias is not None, "add_bias_kv": layer.bias_k is not None}


# `RNN(*args, **kwargs)` does not name its arguments.
RECURRENT = {
    "input_size": None,
    "hidden_size": None,
    "num_layers": 1,
    "nonlinearity": "tanh",
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
}


def recurrent(layer):
    """The arguments of an RNN, a GRU or an LSTM."""
    return {
        name: getattr(layer, name)
        for name, default in RECURRENT.items()
        if hasattr(layer, name) and getattr(layer, name) != default
    }


TRANSFORMER = {
    "TransformerEncoderLayer": encoder,
    "TransformerDecoderLayer": encoder,
    "MultiheadAttention": attention,
}
