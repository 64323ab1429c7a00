"""torch_import/check.py: what its figures notice. Needs torch."""

import unittest

import pytorch

try:
    torch = pytorch.load()
except ImportError:
    torch = None


@unittest.skipUnless(torch, "needs torch")
class Check(unittest.TestCase):
    def figures(self, gradients, found=None, buffers=None, change=0.0, loss=2.0):
        """The errors by kind of the training that has these gradients, buffers before and after,
        and a last loss of 2, beside one that has those found."""
        from torch_import import check

        def state(of):
            left = {name: 0.5 - check.RATE * check.LAST * of[name] for name in gradients}
            return {**left, "running": torch.tensor([(buffers or [1.0])[-1]])}

        expected = check.Expected({}, [4.0, 2.0], gradients, state(gradients))
        expected.state["running"] = torch.tensor([(buffers or [1.0])[0]])
        changes = {
            "loss": {"step 1": 0.0, "step 2": change},
            "gradient": dict.fromkeys(gradients, change),
            "buffer": {"running": 0.0},
        }
        found = check.Found([4.0, loss], state({**gradients, **(found or {})}))
        figures = check.training_figures(2, expected, found, lambda: changes)
        return {figure.kind: (figure.error, figure.right) for figure in figures}

    def test_equal_state_has_no_error(self):
        found = self.figures({"a": torch.tensor([3.0, -2.0])})
        self.assertEqual(found, dict.fromkeys(("loss", "gradient", "buffer"), (0.0, True)))

    def test_a_wrong_gradient_is_noticed_however_large_the_parameter_is(self):
        given = torch.tensor([1e-5, -2e-5])
        error, right = self.figures({"a": given}, {"a": given * 1.001})["gradient"]
        self.assertAlmostEqual(error, 1e-3, places=5)
        self.assertFalse(right)

    def test_last_bits_of_a_small_gradient_are_as_large_as_those_of_others(self):
        given = {"a": torch.tensor([1.0]), "b": torch.tensor([1e-8])}
        error, right = self.figures(given, {"b": torch.tensor([-1e-8])})["gradient"]
        self.assertAlmostEqual(error, 2e-6, places=8)
        self.assertTrue(right)
        self.assertFalse(self.figures(given, {"b": torch.tensor([2e-6])})["gradient"][1])

    def test_a_gradient_that_is_no_number_is_the_worst(self):
        given = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
        found = self.figures(given, {"a": torch.tensor([2.0]), "b": torch.tensor([float("nan")])})
        self.assertFalse(found["gradient"][1])
        self.assertNotEqual(found["gradient"][0], found["gradient"][0])

    def test_an_error_that_rounding_explains_is_none(self):
        given, found = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 2.1])}
        self.assertTrue(self.figures(given, found, change=0.09)["gradient"][1])
        self.assertFalse(self.figures(given, found, change=0.03)["gradient"][1])
        self.assertEqual(self.figures(given, found, change=0.3)["gradient"], (None, True))

    def test_rounding_of_gradients_is_none_of_buffers(self):
        given, found = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 2.1])}
        figures = self.figures(given, found, buffers=[1.0, 1.01], change=0.09)
        self.assertEqual((figures["gradient"][1], figures["buffer"][1]), (True, False))

    def test_rounding_explains_losses_too(self):
        given = {"a": torch.tensor([3.0])}
        self.assertEqual(self.figures(given, loss=2.002)["loss"][1], False)
        self.assertEqual(self.figures(given, loss=2.002, change=0.01)["loss"][1], True)
        self.assertEqual(self.figures(given, loss=float("nan"), change=0.01)["loss"][1], False)

    def test_a_gradient_that_no_layer_has_is_named(self):
        from torch_import import check

        one, other = torch.tensor([1.0]), torch.tensor([2.0])
        gradients = {"a": one, "tied": one, "b": other, "unused": torch.zeros(1)}
        self.assertEqual(check.without_layer(gradients, ["a", "b", "mean"]), [])
        self.assertEqual(check.without_layer(gradients, ["tied"]), ["b"])

    def test_last_bits_matter_to_a_unit_at_its_edge_alone(self):
        from types import SimpleNamespace

        from torch_import import check

        samples, targets = {"x": torch.ones(12, 2)}, torch.full((12, 1), 5.0)
        for bias, least, most in ((1.0, 0.0, 1e-5), (-2.0, 0.1, torch.inf)):
            module = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU())
            with torch.no_grad():
                module[0].weight.fill_(1.0)
                module[0].bias.fill_(bias)
            training = SimpleNamespace(argument_names=lambda: ["input"])
            traced = SimpleNamespace(module=module, training=training)
            before = check.copied(module)

            def repeat(change=lambda module: None):
                with check.as_before(module):
                    change(module)
                    losses, repeat.gradients = check.train(traced, samples, targets)
                    return check.Found(losses, check.copied(module))

            losses, state = repeat()
            expected = check.Expected({}, losses, repeat.gradients, state)
            changes = check.last_bits(expected, repeat)
            self.assertEqual(changes["buffer"], {})
            found = max(changes["gradient"].values())
            self.assertTrue(least <= found <= most, (bias, found))
            for name, tensor in module.state_dict().items():
                self.assertTrue(torch.equal(tensor, before[name]))

    def test_what_does_not_repeat_is_not_compared(self):
        from torch_import import check, problem

        expected = check.Expected({}, [], {}, {"a": torch.tensor([1.0])})
        with self.assertRaisesRegex(problem.Unknown, "the same gradients again"):
            check.last_bits(expected, lambda: check.Found([], {"a": torch.tensor([2.0])}))

    def test_buffers_are_compared_by_themselves(self):
        found = self.figures({"a": torch.tensor([3.0])}, buffers=[1.0, 1.1])
        self.assertEqual((found["gradient"][1], found["buffer"][1]), (True, False))


if __name__ == "__main__":
    unittest.main()
