#!/usr/bin/env python3
"""The same network in PyTorch, trained as run.yaml says: what `bossman train run.yaml` is compared
with."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import twin


def make(torch, _):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)

        def forward(self, x):
            inside = self.bn1(self.conv1(x)).relu()
            return (self.bn2(self.conv2(inside)) + x).relu()

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.stem_bn = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
            self.wide = nn.Sequential(Block(16), Block(16))
            self.halve, self.halve_bn = (
                nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(32),
            )
            self.middle = nn.Sequential(Block(32), Block(32))
            self.quarter, self.quarter_bn = (
                nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(64),
            )
            self.narrow = nn.Sequential(Block(64), Block(64))
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            x = self.wide(self.stem_bn(self.stem(x)).relu())
            x = self.middle(self.halve_bn(self.halve(x)).relu())
            x = self.narrow(self.quarter_bn(self.quarter(x)).relu())
            return self.head(x.mean((2, 3)))

    return ResNet()


if __name__ == "__main__":
    twin.main(__doc__, make, ["x"])
