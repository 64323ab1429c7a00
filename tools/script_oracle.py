#!/usr/bin/env python3
"""Writes the TorchScript module of the tests, and what PyTorch computes with it, to tests/own.

    "$(python3 tools/pytorch.py)" tools/script_oracle.py

`cargo test -p worker` compares with what is recorded; it needs no PyTorch.
"""

import sys
import typing

import pytorch
import setup_libtorch
import tensor_file

FOLDER = setup_libtorch.CHECKOUT / "tests" / "own"


def record(torch):
    nn = torch.nn

    class Block(nn.Module):
        """Layers with names in names, a constant buffer, control flow, and two outputs."""

        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.inner = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8, bias=False))
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.register_buffer("shift", torch.linspace(-1, 1, 8))
            self.dropout = nn.Dropout(0.5)

        def forward(self, x, y):
            z = self.norm(x + self.shift)
            for _ in range(2):
                z = z + self.scale * self.inner(z)
            if self.training:
                z = self.dropout(z)
            return z * y, z.mean(-1)

    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4, affine=False)

        def forward(self, x):
            return self.norm(x)

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls: int = 0

        def forward(self, x):
            if self.training:
                self.calls += 1
            return x

    class Counting(nn.Module):
        """Attributes that are no buffers and change: a number in training, a list in use."""

        seen: typing.List[torch.Tensor]

        def __init__(self):
            super().__init__()
            self.inner = Steps()
            self.seen = []

        def forward(self, x):
            if not self.training:
                self.seen.append(x)
            return self.inner(x)

    torch.manual_seed(7)
    block = Block()
    FOLDER.mkdir(exist_ok=True)
    torch.jit.save(torch.jit.script(block), FOLDER / "block.pt")
    torch.jit.save(torch.jit.script(Running()), FOLDER / "running.pt")
    torch.jit.save(torch.jit.script(Counting()), FOLDER / "counting.pt")
    # Without the dropout, which draws other numbers there.
    block.dropout.p = 0.0
    torch.jit.save(torch.jit.script(block), FOLDER / "plain.pt")
    x, y = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    outputs = block(x, y)
    grads = [torch.randn_like(output) for output in outputs]
    torch.autograd.backward(outputs, grads)
    tensors = {"input.0": x, "input.1": y, "input_grad.0": x.grad, "input_grad.1": y.grad}
    tensors |= {f"output.{port}": output for port, output in enumerate(outputs)}
    tensors |= {f"grad.{port}": grad for port, grad in enumerate(grads)}
    tensors |= {f"param_grad.{name}": param.grad for name, param in block.named_parameters()}
    tensors |= {f"state.{name}": param for name, param in block.named_parameters()}
    tensor_file.write(FOLDER / "plain.safetensors", tensor_file.plain(tensors))


if __name__ == "__main__":
    if pytorch.version() != setup_libtorch.VERSION:
        sys.exit(
            f"script_oracle: {sys.executable} has no torch {setup_libtorch.VERSION}; `make "
            "oracle` fetches one"
        )
    record(pytorch.load())
