"""twin.py, what of it needs no torch."""

import sys
import unittest

import setup_libtorch
import twin

EXAMPLES = setup_libtorch.CHECKOUT / "examples"


class Twin(unittest.TestCase):
    def test_chacha_gives_the_words_of_its_test_vector(self):
        random = twin.ChaCha8(0, 0)
        random.head[4:] = [0] * 8
        found = b"".join(random.next_u32().to_bytes(4, "little") for _ in range(8))
        self.assertEqual(
            found.hex(), "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
        )

    def test_the_order_stays_as_it_was_when_it_was_bossmans(self):
        self.assertEqual(twin.order(12, 7, 3), [5, 7, 0, 10, 4, 6, 11, 2, 1, 3, 9, 8])

    def test_an_epoch_has_each_sample_once_and_another_order(self):
        for samples in (1, 2, 3, 17, 1000, 70_000):
            self.assertEqual(sorted(twin.order(samples, 7, 0)), list(range(samples)))
        self.assertNotEqual(twin.order(100, 7, 0), twin.order(100, 7, 1))
        self.assertNotEqual(twin.order(100, 7, 0), twin.order(100, 8, 0))

    def test_a_split_takes_about_its_share(self):
        rest, drawn = twin.split(5000, 5, 0.1)
        self.assertEqual(sorted(rest + drawn), list(range(5000)))
        self.assertTrue(400 < len(drawn) < 600, len(drawn))

    def test_the_run_files_of_the_examples_are_read(self):
        for path in sorted(EXAMPLES.glob("*/*.yaml")):
            text = path.read_text(encoding="utf-8")
            if "\nbatch_size:" not in text:
                continue
            said = twin.parse(text)
            self.assertIsInstance(said["batch_size"], int, path)
            self.assertTrue((path.parent / said["model"]).is_file(), path)
            self.assertIsInstance(twin.sizes(path.parent / said["model"]), dict)

    def test_flows_within_flows(self):
        text = (
            'a: {b: [1, 2.5, x y], c: {d: "e: {f}"}, g: true}   # a comment\n'
            'h:\n  i.{j}: ["k.{j}", "l#m"]\n'
        )
        expected = {
            "a": {"b": [1, 2.5, "x y"], "c": {"d": "e: {f}"}, "g": True},
            "h": {"i.{j}": ["k.{j}", "l#m"]},
        }
        self.assertEqual(twin.parse(text), expected)
        for unknown in ("- a\n", "a\n"):
            with self.assertRaises(ValueError):
                twin.parse(unknown)

    def test_learning_rates_are_those_of_the_run_file(self):
        cosine = {"cosine": {"total_steps": 110, "warmup": 10}}
        self.assertEqual([twin.factor(cosine, step) for step in (0, 5, 10)], [0.0, 0.5, 1.0])
        self.assertAlmostEqual(twin.factor(cosine, 60), 0.5)
        self.assertEqual(twin.factor({"inverse_sqrt": {"warmup": 100}}, 400), 0.5)
        self.assertEqual(twin.factor({"linear": {"total_steps": 100}}, 75), 0.25)
        self.assertEqual(twin.factor("constant", 9), 1.0)


if __name__ == "__main__":
    sys.exit(unittest.main())
