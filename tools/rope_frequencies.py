"""How fast the pairs of a rotary embedding turn, as in transformers' modeling_rope_utils.py, for
layer_modules.py. It needs torch alone."""

import math


def yarn_ramp(torch, width, base, original, fast, slow, truncate):
    """From 0, where pairs turn fast, to 1, where they turn slowly."""

    def pair(turns):
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += 0.001 if low == high else 0
    return ((torch.arange(width // 2).float() - low) / (high - low)).clamp(0, 1)


def mscale(factor, by=1):
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def frequencies(torch, positions, width, base, scaling=None, most=None):
    """The angle of each pair from one position to the next, and the factor of cosines and sines, as
    in transformers' modeling_rope_utils.py."""
    scaling = dict(scaling or {"rope_type": "default"})
    kind, factor = scaling["rope_type"], scaling.get("factor")
    original = scaling.get("original_max_position_embeddings") or most
    exponents = torch.arange(0, width, 2).float() / width
    if kind == "dynamic":
        # Transformers has the length of a sequence above `most` as a tensor.
        length = torch.tensor(positions) if positions > most else most
        base = base * (factor * length / most - (factor - 1)) ** (width / (width - 2))
    powers = base**exponents
    speeds = 1.0 / powers
    if kind == "linear":
        return speeds / factor, 1.0
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        lengths = 2 * math.pi / speeds
        ends = torch.where(lengths > original / low, speeds / factor, speeds)
        smooth = (original / lengths - low) / (high - low)
        between = (1 - smooth) * ends / factor + smooth * ends
        is_between = ~(lengths < original / high) * ~(lengths > original / low)
        return torch.where(is_between, between, ends), 1.0
    if kind == "yarn":
        fast, slow = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
        truncate = scaling.get("truncate", True)
        kept = 1 - yarn_ramp(torch, width, base, original, fast, slow, truncate)
        above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
        times = scaling.get("attention_factor")
        if times is None:
            both = above and below
            times = mscale(factor, above) / mscale(factor, below) if both else mscale(factor)
        return 1.0 / (factor * powers) * (1 - kept) + speeds * kept, times
    if kind == "longrope":
        factor = most / original if factor is None and most else factor or 1.0
        times = scaling.get("attention_factor")
        if times is None:
            times = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        each = scaling["long_factor" if positions > original else "short_factor"]
        return 1.0 / (torch.tensor(each) * powers), times
    return speeds, 1.0
