"""torch_import/check.py: what its figures notice. Needs torch."""

import unittest

import pytorch

try:
    torch = pytorch.load()
except ImportError:
    torch = None


@unittest.skipUnless(torch, "needs torch")
class Check(unittest.TestCase):
    def figures(self, gradients, found=None, buffers=None):
        """The errors of the state that has these gradients, beside a state that has those found, by
        kind."""
        from torch_import import check

        def state(of):
            left = {name: 0.5 - check.RATE * check.LAST * of[name] for name in gradients}
            return {**left, "running": torch.tensor([(buffers or [1.0])[-1]])}

        expected = check.Expected({}, [], gradients, state(gradients))
        expected.state["running"] = torch.tensor([(buffers or [1.0])[0]])
        entries = {
            path: ("F32", list(tensor.shape), tensor.numpy().tobytes())
            for path, tensor in state({**gradients, **(found or {})}).items()
        }
        figures = check.state_figures(2, expected, entries)
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

    def test_buffers_are_compared_by_themselves(self):
        found = self.figures({"a": torch.tensor([3.0])}, buffers=[1.0, 1.1])
        self.assertEqual((found["gradient"][1], found["buffer"][1]), (True, False))


if __name__ == "__main__":
    unittest.main()
