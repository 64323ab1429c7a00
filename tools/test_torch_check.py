"""torch_import/check.py: what its figures notice. Needs torch."""

import unittest

import pytorch

try:
    torch = pytorch.load()
except ImportError:
    torch = None


@unittest.skipUnless(torch, "needs torch")
class Check(unittest.TestCase):
    def figures(self, gradients, found=None, buffers=None, rounding=0.0):
        """The errors of the state that has these gradients, beside a state that has those found, by
        kind."""
        from torch_import import check

        def state(of):
            left = {name: 0.5 - check.RATE * check.LAST * of[name] for name in gradients}
            return {**left, "running": torch.tensor([(buffers or [1.0])[-1]])}

        expected = check.Expected({}, [], gradients, state(gradients), lambda: rounding)
        expected.state["running"] = torch.tensor([(buffers or [1.0])[0]])
        figures = check.state_figures(2, expected, state({**gradients, **(found or {})}))
        return {figure.kind: (figure.error, figure.right) for figure in figures}

    def test_equal_state_has_no_error(self):
        found = self.figures({"a": torch.tensor([3.0, -2.0])})
        self.assertEqual(found, {"gradient": (0.0, True), "buffer": (0.0, True)})

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
        given, found = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 2.2])}
        self.assertTrue(self.figures(given, found, rounding=0.2)["gradient"][1])
        self.assertFalse(self.figures(given, found, rounding=0.05)["gradient"][1])

    def test_a_gradient_of_which_nothing_is_found_is_an_error(self):
        from torch_import import check, problem

        one = torch.tensor([1.0])
        expected = check.Expected({}, [], {"a": one, "tied": one}, {"a": one}, lambda: 0.0)
        self.assertEqual(len(list(check.state_figures(1, expected, {"a": one}))), 1)
        lost = expected._replace(gradients={"a": one, "b": torch.tensor([2.0])})
        with self.assertRaisesRegex(problem.Unknown, "no layer has the trained b"):
            list(check.state_figures(1, lost, {"a": one}))

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
            with check.as_before(module):
                _, gradients = check.train(traced, samples, targets)
                state = check.copied(module)
            expected = check.Expected({}, [], gradients, state, None)
            found = check.rounding(traced, samples, targets, expected)
            self.assertTrue(least <= found <= most, (bias, found))
            for name, tensor in module.state_dict().items():
                self.assertTrue(torch.equal(tensor, before[name]))

    def test_buffers_are_compared_by_themselves(self):
        found = self.figures({"a": torch.tensor([3.0])}, buffers=[1.0, 1.1])
        self.assertEqual((found["gradient"][1], found["buffer"][1]), (True, False))


if __name__ == "__main__":
    unittest.main()
