"""from_torch.py writes what BossMan reads. Needs torch, so `make oracle` runs it; without torch
there is nothing to test."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import from_torch
import pytorch
import setup_libtorch

try:
    torch = pytorch.load()
except ImportError:
    torch = None

BOSSMAN = os.environ.get("BOSSMAN") or setup_libtorch.CHECKOUT / "target" / "debug" / "bossman"


@unittest.skipUnless(torch, "needs torch")
class FromTorch(unittest.TestCase):
    def written(self, module, *inputs):
        """The model file of a module, which `bossman check` accepts, and the names of its
        weights."""
        with tempfile.TemporaryDirectory() as folder:
            from_torch.write(module, inputs, folder)
            done = subprocess.run(
                [BOSSMAN, "check", f"{folder}/model.yaml"],
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            weights = Path(folder, "model.safetensors").read_bytes()
            return Path(folder, "model.yaml").read_text(encoding="utf-8"), weights

    def test_nested_sequentials_keep_their_names(self):
        nn = torch.nn
        block = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        net = nn.Sequential(block, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 2))
        text, weights = self.written(net, "x: [batch, 3, 8, 8]")
        self.assertIn(
            "  - Conv2d: {in_channels: 3, out_channels: 8, kernel_size: 3, padding: 1, bias: "
            'false}\n    name: "0.0"',
            text,
        )
        for name in ("0.0.weight", "0.1.running_mean", "3.bias"):
            self.assertIn(f'"{name}"'.encode(), weights)
        self.assertIn(b"0.1.num_batches_tracked", weights)

    def test_an_encoder_is_its_layers(self):
        layer = torch.nn.TransformerEncoderLayer(
            16, 4, 32, activation="gelu", batch_first=True, norm_first=True
        )
        net = torch.nn.Sequential(
            torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(16)),
            torch.nn.Linear(16, 1),
        )
        text, weights = self.written(net, "x: [batch, seq, 16]")
        self.assertIn('activation: "gelu"', text)
        self.assertIn('name: "0.layers.1"', text)
        self.assertIn(b'"0.layers.1.self_attn.in_proj_weight"', weights)

    def test_a_layer_that_runs_twice_is_there_twice(self):
        nn = torch.nn
        act, linear = nn.ReLU(), nn.Linear(8, 8)
        net = nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 2))
        self.assertTrue(from_torch.is_plain(net))
        text, _ = self.written(net, "x: [batch, 8]")
        self.assertIn('ReLU:\n    name: "1"', text)
        self.assertIn('ReLU:\n    name: "3"', text)
        shared = nn.Sequential(linear, act, linear)
        self.assertFalse(from_torch.is_plain(shared))
        text, _ = self.written(shared, "x: [batch, 8]")
        self.assertIn('share: "0"', text)
        # It has running statistics, though nothing is learned.
        norm = nn.BatchNorm1d(8, affine=False)
        self.assertFalse(from_torch.is_plain(nn.Sequential(norm, linear, norm)))

    def test_a_container_with_hooks_is_traced(self):
        nn = torch.nn
        layers = [nn.Linear(8, 8), nn.Identity()]
        self.assertTrue(from_torch.is_plain(nn.Sequential(*layers)))
        hooked = nn.Sequential(*layers)
        hooked.register_forward_hook(lambda module, given, made: made * 2)
        self.assertFalse(from_torch.is_plain(hooked))
        self.assertFalse(from_torch.is_plain(nn.Sequential(hooked, nn.ReLU())))
        text, _ = self.written(hooked, "x: [batch, 8]")
        self.assertIn("Scale: {factor: 2}", text)
        replaced = nn.Sequential(*layers)
        replaced.forward = lambda x: x
        self.assertFalse(from_torch.is_plain(replaced))
        encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder.linear1.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        self.assertFalse(from_torch.is_plain(nn.Sequential(encoder)))

    def test_a_class_of_ones_own_with_a_name_of_pytorch_is_traced(self):
        nn = torch.nn

        class TransformerEncoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
                self.norm = nn.LayerNorm(8)

            def forward(self, x):
                for layer in self.layers:
                    x = x + nn.functional.gelu(layer(x))
                return self.norm(x)

        class Sequential(nn.Sequential):
            def forward(self, x):
                for layer in self:
                    x = x + nn.functional.gelu(layer(x))
                return x

        for net in (TransformerEncoder(), Sequential(nn.Linear(8, 8), nn.Linear(8, 8))):
            self.assertFalse(from_torch.is_plain(net))
            self.assertFalse(from_torch.is_plain(nn.Sequential(net)))
            text, _ = self.written(net, "x: [batch, 6, 8]")
            self.assertIn("- Add:", text)
            self.assertIn("- GELU", text)

    def test_layers_that_compute_across_samples_are_refused(self):
        nn = torch.nn
        encoder = nn.TransformerEncoderLayer(8, 2, 16)
        for last in (nn.Softmax(dim=0), nn.Softmin(dim=-2), nn.LogSoftmax(dim=0), encoder):
            net = nn.Sequential(nn.Linear(8, 8), last)
            line = "x: [batch, 6, 8]" if last is encoder else "x: [batch, 8]"
            self.assertFalse(from_torch.is_plain(net))
            with self.assertRaisesRegex(from_torch.Unknown, "across the samples"):
                self.written(net, line)
        for last in (nn.GLU(dim=0), nn.LSTM(8, 8), nn.Softmax()):
            self.assertFalse(from_torch.is_plain(nn.Sequential(last)))
        for last in (nn.Softmax(dim=-1), nn.Softmax(dim=1), nn.GLU()):
            self.assertTrue(from_torch.is_plain(nn.Sequential(last)))

    def test_a_forward_of_ones_own_is_refused(self):
        class Mine(torch.nn.Module):
            pass

        with self.assertRaisesRegex(from_torch.Unknown, "1 is a Mine, whose forward"):
            from_torch.text(torch.nn.Sequential(torch.nn.ReLU(), Mine()), ["x: [batch, 1]"])


if __name__ == "__main__":
    sys.exit(unittest.main())
