"""Pools and changes of size as layers."""

from .modules import plain
from .table import function


def max_pool(t, node, x, kernel, stride=(), padding=0, dilation=1, ceil=False):
    name = str(node.target).split(".")[1]
    size = name.removesuffix("_with_indices")[-2:]
    arguments = window(kernel, stride, padding)
    if plain(dilation) != 1:
        arguments["dilation"] = plain(dilation)
    if ceil:
        arguments["ceil_mode"] = True
    made = t.emit(node, f"MaxPool{size}", arguments, [x])
    if not name.endswith("_with_indices"):
        return made
    made.fake = node.meta["val"][0]
    return [made]


for size in ("1d", "2d", "3d"):
    function(f"max_pool{size}", f"max_pool{size}_with_indices")(max_pool)


def window(kernel, stride, padding):
    arguments = {"kernel_size": plain(kernel)}
    if stride and plain(stride) != plain(kernel):
        arguments["stride"] = plain(stride)
    if plain(padding) != 0:
        arguments["padding"] = plain(padding)
    return arguments


def avg_pool(t, node, x, kernel, stride=(), padding=0, ceil=False, count=True, divisor=None):
    arguments = window(kernel, stride, padding)
    if ceil:
        arguments["ceil_mode"] = True
    if not count:
        arguments["count_include_pad"] = False
    if divisor is not None:
        arguments["divisor_override"] = divisor
    return t.emit(node, f"AvgPool{str(node.target).split('.')[1][-2:]}", arguments, [x])


def adaptive(kind):
    def handler(t, node, x, size):
        return t.emit(node, kind, {"output_size": plain(size)}, [x])

    return handler


for size in ("1d", "2d", "3d"):
    function(f"avg_pool{size}")(avg_pool)
    function(f"adaptive_avg_pool{size}")(adaptive(f"AdaptiveAvgPool{size}"))


@function("adaptive_max_pool2d")
def adaptive_max_pool(t, node, x, size):
    made = t.emit(node, "AdaptiveMaxPool2d", {"output_size": plain(size)}, [x])
    made.fake = node.meta["val"][0]
    return [made]


def upsample(mode):
    def handler(t, node, x, size, *more):
        arguments = {"mode": mode}
        align = more[0] if mode != "nearest" and more else None
        scales = more[-1] if more and isinstance(more[-1], list) else None
        if size is not None:
            arguments = {"size": plain(size), **arguments}
        else:
            arguments = {"scale_factor": plain(scales), **arguments}
        if align:
            arguments["align_corners"] = True
        return t.emit(node, "Upsample", arguments, [x])

    return handler


for name in ("nearest", "bilinear", "bicubic"):
    function(f"upsample_{name}2d")(upsample(name))
