"""torch_import: text of a model file without torch; with torch, what modules become and which are
refused."""

import copy
import re
import sys
import tempfile
import unittest
from pathlib import Path

import from_torch
import pytorch
import run_entries
import setup_libtorch
import tensor_file
import to_torch
from torch_import import inputs, names, yaml_text
from torch_import.entries import Entry, Value, formal_inputs, used
from torch_import.problem import Unknown
from torch_import.weights import DTYPES, MORE_DTYPES, save

try:
    torch = pytorch.load()
except ImportError:
    torch = None


class Text(unittest.TestCase):
    def entry(self, kind, given, arguments=None, name=None):
        entry = Entry(kind, arguments or {}, given, name)
        entry.outputs = [Value(None, f"{kind.lower()}_out", entry)]
        return entry

    def test_only_values_that_are_used_elsewhere_are_variables(self):
        x = Value(None, "x")
        first = self.entry("Linear", [x], {"in_features": 4, "out_features": 4}, "a.fc")
        relu = self.entry("ReLU", first.outputs)
        added = self.entry("Add", [relu.outputs[0], first.outputs[0]])
        last = self.entry("MaskedFill", added.outputs + [x], {"value": float("-inf")})
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], [first, relu, added, last], last.outputs)
        self.assertEqual(
            text,
            "model: m\ninputs:\n  x: [batch, 4]\nlayers:\n"
            '  - Linear: {in_features: 4, out_features: 4}\n    name: "a.fc"\n'
            "    out_variables: [linear_out]\n"
            "  - ReLU\n"
            "  - Add:\n    in_variables: [linear_out]\n"
            "  - MaskedFill: {value: -.inf}\n    in_variables: [x]\n",
        )

    def test_each_unused_output_before_a_used_one_has_a_name_of_its_own(self):
        x = Value(None, "x")
        splits = [self.entry("Split", [x], {"split_size": 2}) for _ in range(2)]
        for split in splits:
            split.outputs.append(Value(None, "second", split, 1))
        added = self.entry("Add", [split.outputs[1] for split in splits])
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], [*splits, added], added.outputs)
        self.assertIn("    out_variables: [split_unused_0, second]\n", text)
        self.assertIn("    out_variables: [split_unused_0_, second_]\n", text)

    def chain(self, count, odd=None):
        """Blocks `b.0` and so on of a linear layer, an activation and a sum with what comes in;
        in the block `odd` the activation is another one."""
        x = Value(None, "x")
        entries = [self.entry("Linear", [x], {"in_features": 4}, "first")]
        for block in range(count):
            into = entries[-1].outputs[0]
            linear = self.entry("Linear", [into], {"in_features": 4}, f"b.{block}.fc")
            kind = "GELU" if block == odd else "ReLU"
            active = self.entry(kind, linear.outputs)
            entries += [linear, active, self.entry("Add", [active.outputs[0], into])]
        return x, entries

    def test_equal_blocks_are_a_repetition(self):
        x, entries = self.chain(3)
        last = self.entry("Tanh", entries[-1].outputs)
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], [*entries, last], last.outputs)
        self.assertEqual(
            text,
            "model: m\ninputs:\n  x: [batch, 4]\nlayers:\n"
            '  - Linear: {in_features: 4}\n    name: "first"\n'
            '  - name: "b"\n    repeat: 3\n    layers:\n'
            "      - Identity:\n        out_variables: [b_input]\n"
            '      - Linear: {in_features: 4}\n        name: "fc"\n'
            "      - ReLU\n"
            "      - Add:\n        in_variables: [b_input]\n"
            "  - Tanh\n",
        )
        names_of_linear = [entries[place].name for place in (1, 4, 7)]
        self.assertEqual(names_of_linear, ["b.0.fc", "b.1.fc", "b.2.fc"])

    def test_what_a_block_makes_can_have_a_name_below(self):
        x, entries = self.chain(2)
        more = self.entry("Tanh", entries[-1].outputs)
        last = self.entry("Add", [more.outputs[0], entries[-1].outputs[0]])
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], [*entries, more, last], last.outputs)
        below = "  - Identity:\n    out_variables: [add_out]\n  - Tanh\n"
        self.assertIn(below + "  - Add:\n    in_variables: [add_out]\n", text)

    def test_blocks_that_differ_or_are_read_from_outside_are_none(self):
        x, entries = self.chain(3, odd=2)
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], entries, entries[-1].outputs)
        self.assertIn("repeat: 2\n", text)
        self.assertIn('name: "b.2.fc"', text)
        x, entries = self.chain(3, odd=1)
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], entries, entries[-1].outputs)
        self.assertNotIn("repeat", text)
        x, entries = self.chain(3)
        outside = self.entry("Add", [entries[-1].outputs[0], entries[2].outputs[0]])
        text = yaml_text.text("m", [x], ["x: [batch, 4]"], [*entries, outside], outside.outputs)
        self.assertNotIn("repeat", text)

    def test_outputs_are_listed_unless_they_are_the_last_layers(self):
        x = Value(None, "x")
        first, second = self.entry("ReLU", [x]), self.entry("Tanh", [x])
        text = yaml_text.text(
            "m", [x], ["x: [batch]"], [first, second], first.outputs + second.outputs
        )
        self.assertIn("  - Tanh:\n    input: x\n", text)
        self.assertTrue(text.endswith("outputs: [relu_out, tanh_out]\n"))

    def test_a_layer_is_not_called_as_the_place_of_another(self):
        x = Value(None, "x")
        first = self.entry("ReLU", [x])
        second = self.entry("Linear", first.outputs, {"in_features": 1}, "0")
        yaml_text.names([first, second])
        self.assertEqual(first.name, "relu_0")

    def test_entries_without_use_go_and_formal_inputs_are_the_layer_above(self):
        x = Value(None, "x")
        first, unused = self.entry("ReLU", [x]), self.entry("Tanh", [x])
        held = self.entry("Parameter", [])
        held.formal = "any"
        added = self.entry("Add", first.outputs + held.outputs)
        entries = used([first, unused, held, added], added.outputs)
        self.assertEqual([entry.kind for entry in entries], ["ReLU", "Parameter", "Add"])
        formal_inputs(entries, x, lambda value: False)
        self.assertEqual(held.inputs, first.outputs)
        held.formal = "batch"
        formal_inputs(entries, x, lambda value: False)
        self.assertEqual(held.inputs, [x])

    def test_inputs_are_written_as_in_a_model_file(self):
        found = inputs.parse("ids: {shape: [batch, 16], dtype: int64}")
        self.assertEqual((found.name, found.sizes, found.dtype), ("ids", ["batch", 16], "int64"))
        self.assertEqual(inputs.parse("x: [n, 3, 8, 8]").sizes, ["n", 3, 8, 8])
        for wrong in ("x", "x: 3", "x: [8, 3]", "x: {shape: [batch], dtype: float}"):
            with self.assertRaises(Unknown):
                inputs.parse(wrong)


class Back(unittest.TestCase):
    """to_torch.py, without torch."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.names, self.to = self.folder / "names.json", self.folder / "state.safetensors"

    def written(self, file, **numbers):
        path = self.folder / file
        found = {name: ("F32", [len(own)], own) for name, own in numbers.items()}
        tensor_file.write(path, found)
        return path

    def converted(self, weights):
        to_torch.convert(weights, self.names, self.to)
        return {name: own for name, (_, _, own) in tensor_file.read(self.to).items()}

    def test_tensors_get_all_their_names_and_the_rest_is_added(self):
        names.write(self.folder, {"a": ["x.a"], "b": ["x.b", "y.b"]}, ["mask"])
        self.written("rest.safetensors", mask=[7, 8])
        found = self.converted(self.written("weights.safetensors", a=[1], b=[2, 3]))
        self.assertEqual(found, {"x.a": [1], "x.b": [2, 3], "y.b": [2, 3], "mask": [7, 8]})

    def test_weights_in_several_files(self):
        names.write(self.folder, {"a": ["a"], "b": ["b"]}, [])
        self.written("1.safetensors", a=[1])
        self.written("2.safetensors", b=[2])
        index = self.folder / "weights.safetensors.index.json"
        index.write_text('{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}')
        self.assertEqual(self.converted(index), {"a": [1], "b": [2]})

    def test_all_missing_and_surplus_names_are_one_error(self):
        names.write(self.folder, {"a": ["a"], "b": ["b"], "c": ["c"]}, ["mask"])
        weights = self.written("weights.safetensors", b=[1], d=[2], e=[3])
        why = r"missing a, c, mask \(of rest.safetensors\); surplus d, e$"
        with self.assertRaisesRegex(to_torch.Wrong, why):
            self.converted(weights)
        left = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(left, ["names.json", "weights.safetensors"])

    def test_files_that_are_others_or_too_short(self):
        weights = self.written("weights.safetensors", a=[1, 2])
        for text in ('{"a": "b"}', "[]", '{"tensors": {"a": 1}, "rest": []}', "{"):
            self.names.write_text(text)
            with self.assertRaises(to_torch.Wrong):
                self.converted(weights)
        names.write(self.folder, {"a": ["a"]}, [])
        whole = weights.read_bytes()
        parts = [whole[:-1], whole[:20], b"", b"\xff" * 16]
        parts += [whole.replace(old, new) for old, new in ((b"[2]", b"[3]"), (b"F32", b"Q32"))]
        parts += [whole.replace(b"[0,8]", new) for new in (b"[-8,0]", b"[8,0]", b"[0.,8]")]
        for part in parts:
            self.assertNotEqual(part, whole)
            weights.write_bytes(part)
            with self.assertRaisesRegex(to_torch.Wrong, "weights.safetensors"):
                self.converted(weights)

    def test_an_index_names_files_beside_it_with_its_tensors(self):
        names.write(self.folder, {"a": ["a"]}, [])
        self.written("1.safetensors", a=[1], b=[2])
        index = self.folder / "weights.safetensors.index.json"
        index.write_text('{"weight_map": {"a": "1.safetensors"}}')
        self.assertEqual(self.converted(index), {"a": [1]})
        for text in ("[]", "{}", "[1]", "{", '"../1.safetensors"', '["1.safetensors"]'):
            index.write_text(text if text in "[]{}" else '{"weight_map": {"a": ' + text + "}}")
            with self.assertRaisesRegex(to_torch.Wrong, "index"):
                self.converted(index)
        index.write_text('{"weight_map": {"c": "1.safetensors"}}')
        with self.assertRaisesRegex(to_torch.Wrong, "do not have: c"):
            self.converted(index)


def made(forward, parts):
    """A module with these parts, whose forward() is a function of it and the inputs."""

    class Module(torch.nn.Module):
        def forward(self, *given):
            return forward(self, *given)

    module = Module()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


@unittest.skipUnless(torch, "needs torch")
class Traced(unittest.TestCase):
    def traced(self, forward, *lines, **parts):
        from torch_import.traced import Traced as Made

        torch.manual_seed(0)
        return Made(made(forward, parts), list(lines) or ["x: [batch, 3, 8]"], "m")

    def same(self, forward, *lines, **parts):
        """The text of a module whose translation computes what it does."""
        traced = self.traced(forward, *lines, **parts)
        samples = {}
        for given in traced.inputs:
            sizes = [4] + [6 if size == "seq" else size for size in given.sizes[1:]]
            samples[given.name] = {
                "float32": torch.randn(sizes),
                "int64": torch.randint(0, 5, sizes),
                "bool": torch.rand(sizes) > 0.5,
            }[given.dtype]
        module = traced.module.eval()
        with torch.no_grad():
            expected = module(*samples.values())
        expected = expected if isinstance(expected, tuple) else [expected]
        found = run_entries.run(torch, traced.translation, samples)
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other)
        return traced.text

    def refused(self, why, forward, *lines, **parts):
        with self.assertRaisesRegex(Unknown, why):
            self.traced(forward, *lines, **parts)

    def test_arithmetic(self):
        text = self.same(lambda m, x: 2 - (x * 3 + 1.5) / 4 - x**3 + x.square())
        self.assertIn("Add: {number: 1.5}", text)
        self.same(lambda m, x: torch.add(x, x.tanh(), alpha=3).sub(x, alpha=0.5).neg())
        self.same(lambda m, x: x.sigmoid() @ x.transpose(1, 2) - x.mean((1, 2), keepdim=True))
        self.same(lambda m, x: torch.rsqrt(x * x + 1).sum(-1))
        self.same(lambda m, x: torch.add(x, 2, alpha=3) + torch.add(x, 0.5, alpha=-2))
        self.same(lambda m, x: x / 0 + x / torch.zeros(8))
        whole = "k: {shape: [batch, 6], dtype: int64}"
        for exponent in (2, 2.0, 3.0, 1.0, 1, -0.5):
            self.same(lambda m, k, exponent=exponent: (k + 1) ** exponent, whole)
        self.same(lambda m, k: m.fc(k**2.0), whole, fc=torch.nn.Linear(6, 2))
        self.same(lambda m, x: (x > 0) ** 2 + (x > 1).square())

    def test_elementary_functions(self):
        self.same(lambda m, x: 1 / (x.abs() + x.exp()).sqrt() + x / (x.square() + 2))
        text = self.same(lambda m, x: x.clamp(min=0).clamp_max(1.0).flip(1))
        self.assertIn("Clamp: {min: 0}", text)

    def test_a_sum_with_zero_and_a_product_with_one_change_the_dtype(self):
        self.assertIn("to.dtype", self.same(lambda m, x: (x > 0).long() + 0.0))
        self.assertIn("to.dtype", self.same(lambda m, x: (x > 0).long() * 1.0))

    def test_shapes(self):
        self.same(lambda m, x: x.reshape(x.shape[0], 3, 2, 4).permute(0, 2, 1, 3).flatten(2))
        self.same(lambda m, x: torch.cat([*x.split([2, 6], -1), *x.chunk(2, 2)], 2)[:, 1:, ::2])
        parts = self.same(lambda m, x: torch.cat(x.tensor_split((1, 4), 2)[::-1], 2))
        self.assertIn("Split: {split_size_or_sections: [1, 3, 4], dim: 2}", parts)
        self.same(lambda m, x: torch.cat(x.tensor_split(3, -1)[1:], -1))
        self.same(lambda m, x: torch.stack(x.unbind(1), 2)[:, -1].unsqueeze(1).expand(-1, 5, -1))
        self.same(lambda m, x: torch.cat([x[..., :0], x, x[..., 8:]], -1).tanh())
        self.same(lambda m, x: x.roll((1, 2), (1, 2))[:, [2, 0]].squeeze().view(-1, 4))
        self.same(lambda m, x: x + x.narrow(1, -1, 1))
        self.same(lambda m, x: x.narrow(1, -3, 3) * x.narrow(2, -3, 2).sum(-1, keepdim=True))

    def test_constants_are_computed_and_their_numbers_are_arguments(self):
        text = self.same(lambda m, x: x * torch.arange(8).float() + torch.full((1,), 3.0))
        constant = 'Constant: {path: "constants.safetensors", tensor: "constant_0", shape: [8]}'
        self.assertIn(constant, text)
        self.assertIn("Add: {number: 3.0}", text)
        mask = torch.ones(3, 3).triu(1).bool()
        text = self.same(
            lambda m, x: (x @ x.transpose(1, 2)).masked_fill(m.mask, float("-inf")).softmax(-1),
            mask=torch.nn.Buffer(mask),
        )
        self.assertIn('shape: [3, 3], dtype: "bool"}', text)

    def test_modules_functions_and_parameters_have_the_modules_names(self):
        text = self.same(
            lambda m, x: (
                torch.nn.functional.layer_norm(m.fc(x), (8,), m.norm.weight, m.norm.bias) * m.gamma
                + m.token.expand(x.shape[0], -1, -1)
            ),
            fc=torch.nn.Linear(8, 8),
            norm=torch.nn.LayerNorm(8),
            gamma=torch.nn.Parameter(torch.rand(8)),
            token=torch.nn.Parameter(torch.rand(1, 3, 8)),
        )
        for line in (
            'name: "fc"',
            'name: "norm"',
            'name: "gamma"',
            "- Parameter: {shape: [1, 3, 8]}",
        ):
            self.assertIn(line, text)

    def test_the_linear_layers_of_transformers_are_transposed_ones(self):
        class Conv1D(torch.nn.Module):
            __module__ = "transformers.pytorch_utils"

            def __init__(self, nf, nx):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(nx, nf))
                self.bias = torch.nn.Parameter(torch.randn(nf))

            def forward(self, x):
                rows = x.view(-1, x.size(-1))
                product = torch.addmm(self.bias, rows, self.weight)
                return product.view(*x.shape[:-1], self.weight.shape[1])

        text = self.same(lambda m, x: m.wide(x).tanh(), wide=Conv1D(5, 8))
        self.assertIn("Linear: {in_features: 8, out_features: 5, transposed: true}", text)

    def test_attention_and_recurrent_layers_are_one_layer_each(self):
        text = self.same(
            lambda m, x: m.lstm(m.attention(x, x, x)[0])[0],
            attention=torch.nn.MultiheadAttention(8, 2, batch_first=True),
            lstm=torch.nn.LSTM(8, 4, batch_first=True),
        )
        self.assertEqual(text.count("\n  - "), 2)

    def test_states_that_forward_gives_are_refused_by_their_name(self):
        why = "states that forward\\(\\) gives it.*call it without states"

        def states(m, x):
            zeros = torch.zeros(1, x.shape[0], 4)
            return m.lstm(x, (zeros, zeros))[0]

        self.refused(why, states, lstm=torch.nn.LSTM(8, 4, batch_first=True))
        start = lambda m, x: m.gru(x, m.fc(x[:, :1]).transpose(0, 1))[0]  # noqa: E731
        gru = torch.nn.GRU(8, 4, batch_first=True)
        self.refused(why, start, gru=gru, fc=torch.nn.Linear(8, 4))
        hooked = torch.nn.RNN(8, 4, batch_first=True)
        hooked.register_forward_hook(lambda module, given, made: made[0])
        self.refused("as a module that is called", lambda m, x: m.rnn(x), rnn=hooked)

    def test_repetitions_share_constants_from_above(self):
        mask = torch.ones(3, 3).tril().bool()
        attention = torch.nn.functional.scaled_dot_product_attention

        def forward(m, x):
            x = torch.tanh(m.first(x))
            for block in m.blocks:
                x = x + attention(block(x), x, x, attn_mask=mask)
            return x

        blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        blocks = torch.nn.ModuleList(torch.nn.Sequential(block) for block in blocks)
        text = self.same(forward, first=torch.nn.Linear(8, 8), blocks=blocks)
        self.assertEqual(text.count("ScaledDotProductAttention"), 1)
        self.assertIn("repeat: 3\n", text)

    def test_a_module_called_twice_and_tied_weights_are_shared(self):
        text = self.same(lambda m, x: m.fc(m.fc(x).relu()), fc=torch.nn.Linear(8, 8))
        self.assertIn('share: "fc"', text)
        embedding, head = torch.nn.Embedding(5, 8), torch.nn.Linear(8, 5, bias=False)
        head.weight = embedding.weight
        text = self.same(
            lambda m, ids: m.head(m.tokens(ids)),
            "ids: {shape: [batch, 6], dtype: int64}",
            tokens=embedding,
            head=head,
        )
        self.assertIn('share: "tokens"', text)

    def test_sizes_that_are_known_at_run_time_only(self):
        text = self.same(
            lambda m, x: m.fc(x).flatten(1).unflatten(1, (-1, 8)).softmax(-1),
            "x: [batch, seq, 4]",
            fc=torch.nn.Linear(4, 8),
        )
        self.assertIn("x: [batch, seq, 4]", text)

    def test_several_inputs_and_outputs(self):
        text = self.same(
            lambda m, x, drop: (torch.where(drop, -1.0, x).relu(), x.tanh()),
            "x: [batch, 4]",
            "drop: {shape: [batch, 4], dtype: bool}",
        )
        self.assertIn("outputs: [relu, tanh]", text)

    def test_changes_in_place(self):
        def forward(m, x):
            y = x.tanh()
            z = y.clone()
            y += x
            y.relu_()
            return y * z

        self.same(forward)

    def test_views_of_a_tensor_that_is_written_to(self):
        def later(m, x):
            y = x.tanh()
            z = y.transpose(1, 2)[:, 2:5]
            first, second = y.chunk(2, -1)
            y.relu_()
            return z.tanh(), first + second

        self.assertNotIn("Aten", self.same(later))

        def parts(m, x):
            y = x.tanh()
            y[:, 1:, 2:-2] = y[:, 1:, 2:-2].view(-1, 2, 2, 2).flip(1).flatten(2)
            y[:, 0] *= 3
            y[..., -1] = 2
            y[:, 1].zero_()
            y.transpose(1, 2)[:, 3] = x[:, :, 0]
            y.view(-1, 24)[:, 20:].add_(m.w)
            return y

        self.same(parts, w=torch.nn.Parameter(torch.rand(4)))

        def within(m, x):
            y = x.tanh()
            part = y[:, :, 1:4]
            other = y[:, 1]
            part.mul_(2)
            part[:, 0].neg_()
            return y + other.unsqueeze(1) + part.sum(-1, keepdim=True)

        self.same(within)

        def perhaps_a_view(m, x):
            y = x.tanh()
            z = y.reshape(-1, 24)
            y.relu_()
            return z.sin()

        self.refused("a view is used later", perhaps_a_view)

        def steps(m, x):
            y = x.tanh()
            y[:, :, ::2] = 1
            return y

        self.refused("a view is used later", steps)

    def test_a_function_without_a_layer_is_an_operator(self):
        text = self.same(lambda m, x: torch.erfinv(x.tanh()))
        self.assertIn('- Aten: {op: "erfinv"}', text)
        text = self.same(lambda m, x: torch.linalg.vector_norm(x, 3, -1))
        self.assertIn(
            '- Aten: {op: "linalg_vector_norm", args: {ord: 3, dim: [-1]}, out: ["batch", 3]}', text
        )
        text = self.same(lambda m, x: torch.einsum("...j,...j->...", x, x.sin()))
        self.assertIn("einsum", text)
        text = self.same(lambda m, x: x.cumsum(-1).cos_())
        self.assertIn('- Aten: {op: "cos"}', text)
        values = self.same(lambda m, x: torch.topk(x, 2)[0])
        self.assertIn('dtype: "int64"', values)
        self.same(lambda m, x: torch.isfinite(x))
        branch = "branches on the values of a tensor at .*test_torch_import.py, line .*torch.where"
        self.refused(branch, lambda m, x: x * 2 if x.sum() > 0 else x)
        self.refused(branch, lambda m, x: x * 2 if float(x.sum()) > 0 else x)
        self.refused("across the samples", lambda m, x: x.cumsum(0))
        self.refused("across the samples", lambda m, x: x.roll(1, 0).cumsum(1).sort(0)[0])
        self.refused("is a number", lambda m, x: x.cumsum(1).prod())
        # With one number of 0 or 1 a sample, or two, results of a part are often those of all.
        few = "k: {shape: [batch, 1], dtype: bool}"
        self.refused("across the samples", lambda m, k: k.cummax(0)[0], few)
        self.refused("across the samples", lambda m, k: k.sort(0)[0], few)
        self.refused("across the samples", lambda m, x: x.cummax(0)[0], "x: [batch, 1]")

    def test_the_rules_of_names_are_those_of_the_worker(self):
        from torch_import import operators

        text = (setup_libtorch.CHECKOUT / "crates/tensor/cpp/aten.cpp").read_text(encoding="utf-8")
        rules = re.findall(r'\{(kBegins|kContains|kIs), "([^"]+)", ', text)
        for kind, here in (
            ("kBegins", operators.REFUSED_BEGINNINGS),
            ("kContains", operators.REFUSED_PARTS),
            ("kIs", operators.REFUSED_NAMES),
        ):
            self.assertEqual({name for rule, name in rules if rule == kind}, set(here))

    def test_a_change_of_dtype_is_an_operator(self):
        mask = "m: {shape: [batch, 3, 8], dtype: bool}"
        text = self.same(lambda m, x, k: x * k.float(), "x: [batch, 3, 8]", mask)
        self.assertIn('- Aten: {op: "to.dtype", args: {dtype: "float32"}, out: ["batch", 3', text)
        self.same(lambda m, x, k: x + k.to(x.dtype).cumsum(1), "x: [batch, 3, 8]", mask)
        self.same(lambda m, x, k: torch.cat([x, k.type_as(x)], -1), "x: [batch, 3, 8]", mask)
        self.same(lambda m, x, k: x * k, "x: [batch, 3, 8]", mask)
        self.same(lambda m, x: (x * 4).long().sum(-1) // 2)
        self.same(lambda m, x: (1 - (x > 0).int()) * 2 + 3)
        self.same(lambda m, k: k.sum(-1, dtype=torch.float32).sigmoid(), mask)
        self.same(lambda m, x: x.double().mean(-1))
        self.same(lambda m, x: x[:, torch.tensor([2, 0], dtype=torch.int32)])
        self.refused("complex64", lambda m, x: x.to(torch.complex64).abs())

    def test_comparisons_and_choices_are_operators(self):
        for compare in ("eq", "ne", "lt", "le", "gt", "ge"):
            text = self.same(lambda m, x, name=compare: getattr(torch, name)(x, 0.1))
            self.assertIn(f'{{op: "{compare}.Scalar", args: {{other: 0.1}}', text)
            self.same(lambda m, x, name=compare: getattr(torch, name)(x, x.roll(1, 1)))
        text = self.same(lambda m, x: torch.where(x > 0, x, 0.5))
        self.assertIn('- Aten: {op: "where.ScalarOther", args: {other: 0.5}', text)
        self.same(lambda m, x: torch.where(x > 0, x, x.sin()) + torch.where(x > 0.1, 2.0, x))
        self.same(lambda m, x: torch.where(x > 0, 2.0, -1.0) * x)
        self.same(lambda m, x: torch.where(x > 0, x, torch.arange(8.0)))
        self.same(lambda m, x: torch.where(x > 0, torch.tensor(2.0, dtype=torch.float64), x))
        self.same(lambda m, x: torch.where(x > 0, x, -float("inf")).softmax(-1))
        self.same(lambda m, x: x.masked_fill((x > 0) & (x < 0.5) | ~(x < 1), 3.0))
        self.same(lambda m, x: (x > 0).long().masked_fill(x > 1, 7))
        zeros = torch.zeros(6, 8)
        for filling in (
            lambda m, x: torch.where(x[:, :1, :1] > 0, zeros, x[:, :1, :1]),
            lambda m, x: torch.where(x[:, :1, :1] > 0, x[:, :1, :1], zeros),
            lambda m, x: torch.where(x[:, :1, :1] > 0, torch.ones(x.shape[0], 6, 1), x[:, :1, :1]),
        ):
            self.assertIn("where", self.same(filling))
        one = torch.ones(1, 1, 1)
        self.refused("with the batch", lambda m, x: torch.where(x[:, 0, 0] > 0, one, x[:, 0, 0]))
        # Either the mask or the other tensor has the result's sizes.
        narrow = lambda m, x: torch.where((x > 0).cumsum(1) > 1, 0.5, x[:, :1])  # noqa: E731
        self.assertIn("MaskedFill", self.same(narrow))
        self.refused("fills with NaN", lambda m, x: x.masked_fill(x > 0, float("nan")))
        weight = torch.nn.Parameter(torch.rand(8))
        self.refused("is a mask", lambda m, x: x[:, :, m.w > 0], w=weight)

    def test_sums_of_products_are_products_of_matrices(self):
        weight = lambda *sizes: torch.nn.Parameter(torch.rand(sizes))  # noqa: E731
        for equation, *sizes in (
            ("bij,bkj->bik", "x"),
            ("bij,bij->bi", "x"),
            ("bij,bij->b", "x"),
            ("bij,bkl->bkilj", "x"),
            ("bij,ji->b", 8, 3),
            ("bij,jkil->bkl", 8, 5, 3, 2),
            ("bij,jk->kbi", 8, 4),
            ("bij,ikj->bik", 3, 4, 8),
            ("bij,k->bkij", 4),
        ):
            own = weight(*sizes) if sizes != ["x"] else None
            text = self.same(
                lambda m, x, equation=equation: torch.einsum(
                    equation, x, x.tanh() if m.w is None else m.w
                ),
                w=own,
            )
            self.assertNotIn("Aten", text)
        self.same(lambda m, x: torch.einsum("ijk,bkj->bi", m.w, x), w=weight(5, 8, 3))
        windows = lambda m, x: torch.einsum("nc,kc->nk", x.reshape(-1, 8), m.w)  # noqa: E731
        self.same(lambda m, x: windows(m, x).view(-1, 3, 4), w=weight(4, 8))
        self.refused("begin with the batch", lambda m, x: torch.einsum("bij,bkj->ik", x, x))
        self.refused("einsum", lambda m, x: torch.einsum("bij,ckj->bcik", x, x))

    def test_repeated_elements(self):
        token = torch.nn.Parameter(torch.rand(2, 3, 8))
        text = self.same(lambda m, x: x.repeat_interleave(3, 1) + x.repeat_interleave(9, 1)[:, ::3])
        self.assertNotIn("Aten", text)
        self.same(lambda m, x: x.repeat_interleave(2, 0).unflatten(0, (-1, 2)))
        self.same(lambda m, x: x.repeat(1, 2, 3) + x.tile((2, 3)))
        text = self.same(
            lambda m, x: m.token.repeat(x.shape[0], 1, 2).unflatten(0, (-1, 2)), token=token
        )
        self.assertIn('"repeat", args: {repeats: [1, 1, 1, 2]}, out: ["batch", 2, 3, 16]}', text)
        self.refused("across the samples", lambda m, x: x.repeat(2, 1, 1))

    def test_constants_of_known_sizes_are_folded(self):
        text = self.same(
            lambda m, x: (
                x * torch.full_like(x, 2.0)
                + torch.ones_like(x)
                + torch.zeros_like(x[:, :1])
                + torch.arange(x.shape[-1]).to(x.dtype)
            )
        )
        self.assertNotIn("Aten", text)

    def test_windows_of_samples_are_taken_apart_for_an_operator(self):
        text = self.same(
            lambda m, x: torch.nn.functional.normalize(x.reshape(-1, 8), dim=1).view(-1, 3, 8)
        )
        for line in (
            "- Unflatten: {dim: 0, unflattened_size: [-1, 3]}",
            '"linalg_vector_norm", args: {dim: [2], keepdim: true}, out: ["batch", 3, 1]',
            "- Flatten: {start_dim: 0, end_dim: 1}",
        ):
            self.assertIn(line, text)
        self.refused("across the samples", lambda m, x: x.reshape(-1, 8).cumsum(0).view(-1, 3, 8))

    def test_constants_with_rows_for_each_window_of_a_sample(self):
        mask = torch.nn.Buffer(torch.rand(3, 8))
        text = self.same(
            lambda m, x: (x.reshape(-1, 8) + m.mask.repeat(x.shape[0], 1)).view(-1, 3, 8), mask=mask
        )
        self.assertIn("shape: [1, 3, 8], expand: true}", text)
        self.refused(
            "depends on the batch size",
            lambda m, x: x + torch.arange(x.shape[0]).float().view(-1, 1, 1),
        )

    def test_a_computed_place_of_each_sample(self):
        places = "k: {shape: [batch, 3], dtype: int64}"
        last = lambda m, x, k: x[torch.arange(x.shape[0]), k.sum(-1) % 3 - 2]  # noqa: E731
        text = self.same(last, "x: [batch, 3, 8]", places)
        self.assertIn('"gather", args: {dim: 1}, out: ["batch", 1, 8]', text)
        self.same(last, "x: [batch, 3]", places)
        self.refused(
            "several dimensions",
            lambda m, x, k: x[torch.arange(x.shape[0]).flip(0), k.sum(-1) % 3],
            "x: [batch, 3, 8]",
            places,
        )

    def test_norms_and_convolutions_with_computed_weights(self):
        functions = torch.nn.functional
        weight = lambda *sizes: torch.nn.Parameter(torch.rand(sizes))  # noqa: E731
        images = "x: [batch, 4, 6, 5]"

        def norm(m, x):
            w = 1 + m.scale.tanh()
            y = functions.layer_norm(x, (5,), m.last * 2, m.last)
            y = functions.group_norm(y, 2, w, w.exp())
            return functions.batch_norm(y, m.bn.running_mean, m.bn.running_var, w, w, m.training)

        text = self.same(
            norm, images, scale=weight(4), last=weight(5), bn=torch.nn.BatchNorm2d(4, affine=False)
        )
        self.assertIn("GroupNorm: {num_groups: 2, num_channels: 4, affine: false}", text)
        self.assertIn("BatchNorm2d: {num_features: 4, affine: false}", text)

        def standard(m, x):
            w = functions.batch_norm(
                m.w.reshape(1, 6, -1), None, None, m.gain * 0.5, training=True, eps=1e-6
            )
            return functions.conv2d(x, w.reshape_as(m.w), m.gain, stride=(2, 1), padding=1)

        text = self.same(standard, images, w=weight(6, 4, 3, 3), gain=weight(6))
        self.assertIn('"unfold", args: {dimension: 2, size: 3, step: 2}', text)
        self.same(
            lambda m, x: functions.conv2d(x, m.w * 2, None, 1, (2, 0), (2, 1), 2),
            images,
            w=weight(6, 2, 3, 2),
        )
        self.same(
            lambda m, x: functions.conv1d(x, m.w.sin(), m.b.sin(), 2, 1, 1, 4),
            "x: [batch, 4, 9]",
            w=weight(8, 1, 3),
            b=weight(8),
        )
        conv = torch.nn.Conv1d(4, 8, 3, groups=2)
        conv = torch.nn.utils.parametrizations.weight_norm(conv, dim=2)
        self.same(lambda m, x: m.conv(x), "x: [batch, 4, 9]", conv=conv)
        blur = torch.nn.Buffer(torch.rand(4, 1, 3, 3))
        self.same(lambda m, x: functions.conv2d(x, m.blur, groups=4), images, blur=blur)
        self.refused(
            "without running statistics",
            lambda m, x: functions.batch_norm(x, None, None, training=True),
        )

    def test_an_operator_of_parameters_alone(self):
        text = self.same(
            lambda m, x: x @ torch.nn.functional.normalize(m.w, dim=0).erf(),
            w=torch.nn.Parameter(torch.rand(8, 4)),
        )
        self.assertIn("out: [1, 4]}", text)

    def test_a_learned_number(self):
        number = torch.nn.Parameter(torch.tensor(1.5))
        text = self.same(lambda m, x: x.tanh().mul_(m.a) + m.a * x - x / m.a, a=number)
        self.assertIn("- Parameter: {shape: [1], expand: false}", text)
        self.refused("a is a number", lambda m, x: x + m.a.exp(), a=number)
        module = made(lambda m, x: x * m.a, {"a": number})
        with tempfile.TemporaryDirectory() as path:
            from_torch.write(module, ["x: [batch, 8]"], Path(path))
            (tensor,) = tensor_file.read_bytes(Path(path) / "model.safetensors").values()
        self.assertEqual(list(tensor[1]), [1])
        # As trained weights have it.
        module.load_state_dict({"a": torch.ones(1)})
        self.assertEqual((module.a.dim(), module.a.item()), (0, 1))

    def test_a_slice_that_is_filled_with_zeros_is_a_mask(self):
        def forward(m, x):
            bias = m.bias.clone()
            bias[2:4].zero_()
            y = x.tanh()
            y = y.clone()
            return y + bias + m.bias

        text = self.same(forward, bias=torch.nn.Parameter(torch.ones(8)))
        self.assertIn("Mul:", text)

        def view_is_used(m, x):
            bias = m.bias.clone()
            part = bias[2:4]
            part.zero_()
            return x + bias + part.sum()

        self.refused("zero_.default", view_is_used, bias=torch.nn.Parameter(torch.ones(8)))

    def test_what_the_cut_or_the_mode_would_show_is_refused(self):
        across = "across the samples"
        self.refused(across, lambda m, x: x.roll(1, 0))
        self.refused(across, lambda m, x: x.flip(0))
        self.refused(across, lambda m, x: x.transpose(0, 1).softmax(1))
        self.refused("with each other", lambda m, x: x @ x.t(), "x: [batch, 8]")
        attention = torch.nn.functional.scaled_dot_product_attention

        def turned(forward):
            return lambda m, x: forward(m, x.transpose(0, 1)).transpose(0, 1)

        nn = torch.nn
        self.refused(across, turned(lambda m, x: attention(x, x, x)))
        softmax = turned(lambda m, x: m.softmax(x))
        self.refused(across, softmax, softmax=nn.Softmax(dim=1))
        self.refused(across, softmax, softmax=nn.LogSoftmax(dim=-2))
        encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.refused(across, lambda m, x: m.encoder(x), encoder=encoder)
        mixing = nn.MultiheadAttention(8, 2)
        result = lambda m, x: m.attention(x, x, x, need_weights=False)[0]  # noqa: E731
        self.refused(across, result, attention=mixing)
        weights = lambda m, x: m.attention(x, x, x)[0]  # noqa: E731
        self.refused("with each other|across", weights, attention=mixing)

        def last(forward):
            return lambda m, x: forward(m, x.permute(1, 2, 0)).permute(2, 0, 1)

        for layer in (
            nn.Conv1d(8, 8, 3, padding=1),
            nn.AvgPool1d(3, 1, 1),
            nn.GroupNorm(2, 8),
        ):
            self.refused(across, last(lambda m, x: m.layer(x)), layer=layer)
        pool = nn.functional.avg_pool1d
        self.refused(across, last(lambda m, x: pool(x, 3, 1, 1)))
        self.refused(across, lambda m, x: nn.functional.pad(x, (1, 1, 0, 0, 1, 1)))
        # Samples that lie along the second dimension stay apart.
        self.assertIn("encoder", self.same(turned(lambda m, x: m.encoder(x)), encoder=encoder))
        evaluation = "in evaluation, too"
        self.refused(evaluation, lambda m, x: torch.nn.functional.dropout(x, 0.5))
        two = torch.nn.Module()
        two.register_buffer("a", torch.arange(8.0))
        two.register_buffer("b", torch.arange(8.0) + 1)

        def other_constant(m, x):
            return x + (m.two.a if m.training else m.two.b)

        self.refused("computes in training", other_constant, two=two)
        self.refused(
            "computes in training",
            lambda m, x: (x.sin(), x.cos()) if m.training else (x.cos(), x.sin()),
        )

    def test_frozen_parameters_stay_frozen(self):
        text = self.same(lambda m, x: m.fc(x), fc=torch.nn.Linear(8, 8).requires_grad_(False))
        self.assertIn("freeze: true", text)

    def test_a_buffer_in_the_place_of_a_parameter_is_not_trained(self):
        nn, functions = torch.nn, torch.nn.functional
        cases = (
            (lambda m, x: functions.linear(x, m.weight), (4, 8), "Linear", "x: [batch, 3, 8]"),
            (
                lambda m, x: functions.conv2d(x, m.weight, groups=3, padding=1),
                (3, 1, 3, 3),
                "Conv2d",
                "x: [batch, 3, 5, 5]",
            ),
            (
                lambda m, ids: functions.embedding(ids, m.weight),
                (5, 8),
                "Embedding",
                "ids: {shape: [batch, 6], dtype: int64}",
            ),
        )
        for forward, sizes, kind, line in cases:
            text = self.same(forward, line, weight=nn.Buffer(torch.rand(sizes)))
            self.assertRegex(text, rf"- {kind}: .*\n(    .*\n)*    freeze: true\n")
            learned = self.same(forward, line, weight=nn.Parameter(torch.rand(sizes)))
            self.assertNotIn("freeze", learned)
        norm = nn.LayerNorm(8)
        for name in ("weight", "bias"):
            kept = nn.Buffer(torch.rand(8))
            delattr(norm, name)
            setattr(norm, name, kept)
        text = self.same(lambda m, x: m.norm(x), norm=norm)
        self.assertIn("freeze: true", text)
        self.assertFalse(from_torch.is_plain(nn.Sequential(norm)))
        mixed = nn.LayerNorm(8)
        del mixed.weight
        mixed.weight = nn.Buffer(torch.rand(8))
        self.refused("are trained and others are not", lambda m, x: m.norm(x), norm=mixed)
        # A state_dict has neither of these, so they are constants.
        for weight in (torch.rand(8), nn.Buffer(torch.rand(8), persistent=False)):
            norm = nn.LayerNorm(8)
            del norm.weight
            norm.weight = weight
            text = self.same(lambda m, x: m.norm(x), norm=norm)
            self.assertIn("- Constant:", text)
            self.assertFalse(from_torch.is_plain(nn.Sequential(norm)))

    def test_dropout_is_a_layer_and_not_in_evaluation(self):
        text = self.same(
            lambda m, x: torch.nn.functional.dropout(m.drop(x), 0.3, m.training),
            drop=torch.nn.Dropout(0.2),
        )
        self.assertIn("Dropout: {p: 0.2}", text)
        self.assertIn("Dropout: {p: 0.3}", text)

    def test_what_has_no_layer_is_refused_with_its_place(self):
        fft = lambda m, x: torch.fft.fft(x).real  # noqa: E731
        self.refused("aten.fft_fft.*test_torch_import.py, line", fft)
        self.refused("across the samples", lambda m, x: x - x.mean(0))
        self.refused("random numbers", lambda m, x: x + torch.rand(8))
        self.refused("stops gradients", lambda m, x: x.detach() + x)
        self.refused("for batch = 2 only|cannot follow", lambda m, x: x * int(x.shape[0]))
        self.refused("in training what it does not", lambda m, x: x.relu() if m.training else x)

        def counts(m, x):
            m.count.add_(1)
            return x * m.count

        self.refused("writes to the buffer count", counts, count=torch.nn.Buffer(torch.zeros(1)))

        def without_gradient(m, x):
            with torch.no_grad():
                y = x * 2
            return x + y

        self.refused("no_grad", without_gradient)

    def test_what_has_a_backward_of_its_own_is_refused_with_its_place(self):
        class Straight(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sign()

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        class Reversal(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, gradient):
                return -gradient

        nn = torch.nn
        place = r" at .*test_torch_import.py, line \d+ has a backward of its own"
        linear = nn.Linear(8, 8)
        apply, register_hook = torch.autograd.Function.apply, torch.Tensor.register_hook
        self.refused("Straight" + place, lambda m, x: Straight.apply(m.fc(x)), fc=linear)
        self.refused("Reversal" + place, lambda m, x: m.fc(Reversal.apply(x)), fc=linear)

        def hooked(m, x):
            y = m.fc(x)
            if y.requires_grad:
                y.register_hook(lambda gradient: -gradient)
            return y

        self.refused(r"register_hook\(\)" + place, hooked, fc=linear)
        self.assertEqual(torch.autograd.Function.apply, apply)
        self.assertIs(torch.Tensor.register_hook, register_hook)
        double = lambda module, given, made: (given[0] * 2,)  # noqa: E731
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        module[1].register_full_backward_hook(double)
        with self.assertRaisesRegex(Unknown, "has a backward of its own"):
            from_torch.write(module, ["x: [batch, 8]"], "none")
        module = nn.Sequential(nn.Linear(8, 8))
        module[0].weight.register_hook(lambda gradient: gradient * 2)
        with self.assertRaisesRegex(Unknown, "0.weight, which has hooks, has a backward"):
            from_torch.write(module, ["x: [batch, 8]"], "none")

    def test_layers_of_pytorch_have_no_backward_of_their_own(self):
        nn = torch.nn
        self.same(
            lambda m, x: m.lstm(m.encoder(m.norm(m.conv(x))))[0],
            conv=nn.Conv1d(3, 3, 3, padding=1),
            norm=nn.BatchNorm1d(3),
            encoder=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            lstm=nn.LSTM(8, 4, batch_first=True),
        )

    def back(self, module, *lines):
        """Changes all that BossMan learns of a module, and reads that back into a copy."""
        fresh = copy.deepcopy(module)
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            from_torch.write(module, lines, folder)
            found, _ = names.read(to_torch.loaded(folder / names.FILE))
            state = module.state_dict()
            for (own, *_), number in zip(found.values(), range(1000)):
                tensor = state[own]
                drawn = torch.randn(tensor.shape) + number
                tensor.copy_(drawn.to(tensor.dtype))
            weights = folder / "trained.safetensors"
            save(weights, {name: state[own[0]] for name, own in found.items()})
            to_torch.convert(weights, folder / names.FILE, folder / "state.safetensors")
            known = {**DTYPES, **MORE_DTYPES}
            codes = {code: getattr(torch, dtype) for dtype, code in known.items()}
            read = tensor_file.read_bytes(folder / "state.safetensors")
            tensors = {
                name: torch.frombuffer(bytearray(content), dtype=codes[code]).reshape(shape)
                for name, (code, shape, content) in read.items()
            }
        fresh.load_state_dict(tensors, strict=True)
        expected, after = module.state_dict(), fresh.state_dict()
        self.assertEqual(list(expected), list(after))
        for name, tensor in expected.items():
            self.assertEqual(tensor.dtype, tensors[name].dtype, name)
            self.assertTrue(torch.equal(tensor, after[name]), name)
        return found, tensors

    def test_trained_weights_go_back_into_the_module(self):
        nn = torch.nn
        embedding, head = nn.Embedding(5, 8), nn.Linear(8, 5, bias=False)
        head.weight = embedding.weight
        module = made(
            lambda m, ids: m.head(
                m.norm((m.block(m.tokens(ids) * m.gamma) + m.mask).transpose(1, 2)).transpose(1, 2)
            ),
            {
                "tokens": embedding,
                "block": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                "norm": nn.BatchNorm1d(8),
                "gamma": nn.Parameter(torch.rand(8)),
                "head": head,
                "mask": nn.Buffer(torch.rand(6, 8)),
                "unused": nn.Parameter(torch.rand(3)),
                "small": nn.Buffer(torch.arange(3, dtype=torch.int8)),
            },
        )
        found, tensors = self.back(module, "ids: {shape: [batch, 6], dtype: int64}")
        self.assertEqual(found["tokens.weight"], ["tokens.weight", "head.weight"])
        self.assertEqual(found["gamma.value"], ["gamma"])
        self.assertIn("norm.num_batches_tracked", found)
        self.assertFalse({"mask", "unused", "small"} & set(found))
        self.assertTrue(torch.equal(tensors["tokens.weight"], tensors["head.weight"]))

    def test_weights_of_sequential_modules_go_back(self):
        nn = torch.nn
        self.back(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4))), "x: [batch, 4]")
        found, _ = self.back(nn.Linear(4, 4), "x: [batch, 4]")
        self.assertEqual(found["0.weight"], ["weight"])

    def test_numbers_drawn_outside_pytorch_are_refused(self):
        import random

        self.refused(
            "draws random numbers outside", lambda m, x: x * torch.tensor([random.random()] * 8)
        )

        # Few exports would show that a layer may be left out.
        def drops_layers(m, x):
            return m.fc(x) if random.random() > 1e-9 else x

        linear = torch.nn.Linear(8, 8)
        random.seed(0)
        self.refused("draws random numbers outside", drops_layers, fc=linear)
        try:
            import numpy
        except ImportError:
            return
        numpy.random.seed(0)
        self.refused(
            "draws random numbers outside",
            lambda m, x: m.fc(x) if numpy.random.rand() > 1e-9 else x,
            fc=linear,
        )


if __name__ == "__main__":
    sys.exit(unittest.main())
