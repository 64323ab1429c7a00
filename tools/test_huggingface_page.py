"""huggingface_page.py: figures are read from what the tests print."""

import json
import unittest

import huggingface_page

PRINTED = """
running 2 tests
llama            1 workers: outputs 6.0e-7
llama            3 workers: outputs 6.5e-7
pythia           with padding: outputs 2.1e-7
pythia           1 workers: outputs 0.0e0
llama-tied       1 workers: outputs 6.1e-7
llama            1 workers: losses 1.9e-7, weights 2.2e-7, biases of keys 1.5e-5
llama-tied       1 workers: losses 1.8e-7, weights 3.7e-7, biases of keys 0.0e0
pythia           1 workers: losses 1.0e-7, weights 0.0e0, biases of keys 0.0e0
test huggingface::proof::logits_and_training_are_those_of_transformers ... ok
"""


class HuggingfacePage(unittest.TestCase):
    def test_the_worst_of_each_architecture_counts(self):
        figures = huggingface_page.worst(PRINTED, lambda case: case.partition("-")[0])
        self.assertEqual(
            figures["llama"],
            {
                "models": 2,
                "outputs": 6.5e-7,
                "losses": 1.9e-7,
                "weights": 3.7e-7,
                "biases of keys": 1.5e-5,
            },
        )
        text = huggingface_page.page(figures, "5.0.0")
        self.assertIn("| `pythia` | 1 | 2e-07 | 1e-07 | 0 | 0 |\n", text)
        self.assertIn("transformers 5.0.0", text.replace("\n", " "))

    def test_a_figure_that_is_not_printed_is_an_error(self):
        for printed in ("", "llama  1 workers: outputs 6.0e-7\n"):
            with self.assertRaises(ValueError):
                huggingface_page.worst(printed, lambda case: case)

    def test_the_page_is_of_the_figures_that_the_import_shows(self):
        proven = json.loads(huggingface_page.PROVEN.read_text(encoding="utf-8"))
        written = huggingface_page.PAGE.read_text(encoding="utf-8")
        text = huggingface_page.page(proven["architectures"], proven["transformers"])
        self.assertEqual(text, written)


if __name__ == "__main__":
    unittest.main()
