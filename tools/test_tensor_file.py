"""tensor_file.py reads what it writes, in the format's own form."""

import json
import tempfile
import unittest
from pathlib import Path

import tensor_file

TENSORS = {
    "numbers": ("F32", [2, 1], [0.5, -1.0]),
    "places": ("I64", [3], [1, -2, 2**40]),
    "mask": ("BOOL", [1], [1]),
    "none": ("F32", [0, 4], []),
}


class TensorFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "a.safetensors"

    def test_a_file_has_a_head_of_whole_words_and_the_tensors_one_after_the_other(self):
        tensor_file.write(self.path, TENSORS)
        content = self.path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        self.assertEqual((size % 8, len(content)), (0, 8 + size + 8 + 24 + 1))
        head = json.loads(content[8 : 8 + size])
        self.assertEqual(head["mask"], {"dtype": "BOOL", "shape": [1], "data_offsets": [32, 33]})
        self.assertEqual(content[8 + size :][:8].hex(), "0000003f000080bf")

    def test_tensors_come_back_as_numbers_and_as_bytes(self):
        tensor_file.write(self.path, TENSORS)
        self.assertEqual(tensor_file.read(self.path), TENSORS)
        found = tensor_file.read_bytes(self.path)
        self.assertEqual(found["mask"], ("BOOL", [1], b"\1"))
        first = self.path.read_bytes()
        tensor_file.write_bytes(self.path, found)
        self.assertEqual(self.path.read_bytes(), first)

    def test_a_shape_of_other_numbers_is_refused(self):
        tensor_file.write(self.path, {"a": ("F32", [2], [1.0])})
        with self.assertRaisesRegex(ValueError, "a holds 1 numbers"):
            tensor_file.read(self.path)


if __name__ == "__main__":
    unittest.main()
