"""The example models once more, in PyTorch and by hand, with the parameter names that BossMan gives
them; and data for them."""

import gzip
import math

import setup_libtorch

EXAMPLES = setup_libtorch.CHECKOUT / "examples"
SAMPLES = 64


def models(torch):
    """For each model: (layers as a ModuleDict, forward function of the layers and x). Needs the
    torch module."""
    nn, f = torch.nn, torch.nn.functional

    def residual(width):
        layers = {"0": nn.Linear(1, width), "9": nn.Linear(width, 1)}
        layers.update({name: nn.Linear(width, width) for name in ("2", "4", "7")})

        def forward(layer, x):
            res_1 = layer["2"](f.relu(layer["0"](x)))
            x = f.relu(layer["4"](f.relu(res_1)))
            x = f.relu(layer["7"](x + res_1))
            return torch.sigmoid(layer["9"](x))

        return nn.ModuleDict(layers), forward

    def branchy():
        layers = {
            "stem": nn.Linear(8, 16),
            "left": nn.Linear(16, 16),
            "left_norm": nn.LayerNorm(16),
            "right": nn.Linear(16, 16, bias=False),
            "join": nn.Linear(48, 16),
            "head": nn.Linear(16, 4),
        }

        def forward(layer, x):
            stem = layer["stem"](x)
            left = layer["left_norm"](f.gelu(layer["left"](stem), approximate="tanh"))
            right = torch.tanh(layer["right"](stem))
            x = f.silu(layer["join"](torch.cat([right * left, left, right], dim=-1)))
            return layer["head"](x + stem)

        return nn.ModuleDict(layers), forward

    def skip():
        blocks = nn.ModuleList(nn.ModuleDict({"inner": nn.Linear(12, 12)}) for _ in range(3))
        layers = {
            "0": nn.Linear(4, 12),
            "blocks": blocks,
            "late": nn.Linear(24, 8),
            "head": nn.Linear(8, 1),
        }

        def forward(layer, x):
            early = layer["0"](x)
            x = f.silu(early)
            for block in layer["blocks"]:
                res = block["inner"](x)
                x = f.relu(res) + res
            return layer["head"](torch.sigmoid(layer["late"](torch.cat([x, early], dim=1))))

        return nn.ModuleDict(layers), forward

    def convnet(bias=True):
        layers = {
            "conv1": nn.Conv2d(1, 8, 3, padding="same", bias=bias),
            "norm1": nn.BatchNorm2d(8),
            "conv2": nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
            "norm2": nn.BatchNorm2d(8),
            "conv3": nn.Conv2d(8, 16, 3, stride=(2, 1), padding=(1, 1)),
            "head": nn.Linear(32, 10),
        }

        def forward(layer, x):
            first = f.relu(layer["norm1"](layer["conv1"](x)))
            x = layer["norm2"](layer["conv2"](first)) + first
            x = f.relu(layer["conv3"](f.max_pool2d(x, 3, stride=2, ceil_mode=True)))
            x = f.adaptive_avg_pool2d(f.avg_pool2d(x, 2, stride=1), (1, 2))
            return layer["head"](x.flatten(1))

        return nn.ModuleDict(layers), forward

    def tied():
        layers = {
            "embed": nn.Embedding(32, 16, padding_idx=0),
            "norm": nn.LayerNorm(16),
            "up": nn.Linear(16, 64),
            "down": nn.Linear(64, 16),
        }

        def forward(layer, x):
            normed = layer["norm"](layer["embed"](x))
            x = layer["down"](f.gelu(layer["up"](normed))) + normed
            return f.linear(x, layer["embed"].weight)

        return nn.ModuleDict(layers), forward

    def encoder(bias=True):
        def layer(**arguments):
            return nn.TransformerEncoderLayer(
                16, 4, 32, dropout=0.0, batch_first=True, bias=bias, **arguments
            )

        blocks = nn.ModuleList(nn.ModuleDict({"encoder": layer(norm_first=True)}) for _ in range(2))
        layers = {"blocks": blocks, "last": layer(activation="gelu"), "head": nn.Linear(16, 1)}

        def forward(layer, x):
            for block in layer["blocks"]:
                x = block["encoder"](x)
            return layer["head"](layer["last"](x))

        return nn.ModuleDict(layers), forward

    return {
        "residual": residual,
        "branchy": branchy,
        "skip": skip,
        "convnet": convnet,
        "tied": tied,
        "encoder": encoder,
    }


def data(torch, name):
    """(x, target) for a model: points of a sine, or what its inputs can take of the digits."""
    if name == "residual":
        x = torch.tensor([[2 * math.pi * i / SAMPLES - math.pi] for i in range(SAMPLES)])
        return x, (torch.sin(x) + 1) / 2
    pixels, label = digits(torch)
    picture = pixels.view(SAMPLES, 8, 8)
    if name == "branchy":
        return picture.mean(dim=2), label % 4
    if name == "skip":
        return picture.view(SAMPLES, 2, 4, 2, 4).mean(dim=(2, 4)).view(SAMPLES, 4), label.view(
            SAMPLES, 1
        ) / 10
    if name == "convnet":
        return picture.view(SAMPLES, 1, 8, 8), label
    if name == "encoder":
        return pixels.unfold(1, 16, 11), pixels[:, 16::11].unsqueeze(
            2
        )  # five windows, and the pixel after each
    tokens = (
        picture[:, 2:6].reshape(SAMPLES, 32)[:, :9] * 16
    ).long()  # a model of language, of a kind: what comes next?
    return tokens[:, :-1], torch.nn.functional.one_hot(tokens[:, 1:], 32).float()


def digits(torch):
    with gzip.open(EXAMPLES / "digits" / "digits-test.csv.gz", "rt") as file:
        rows = [
            [float(word) for word in line.split(",")]
            for line in file.read().splitlines()[1 : SAMPLES + 1]
        ]
    table = torch.tensor(rows)
    return table[:, :-1], table[:, -1].long()
