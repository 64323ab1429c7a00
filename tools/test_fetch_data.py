"""The readers of examples/attention-is-all-you-need/fetch_data.py, on texts like those of the
packages."""

import struct
import sys
import tempfile
import unittest
from pathlib import Path

import setup_libtorch

sys.path.append(str(setup_libtorch.CHECKOUT / "examples" / "attention-is-all-you-need"))
import fetch_data

MESSAGES = [
    ("", "Content-Type: text/plain"),
    ("menu\x04_Save <b>all</b>", "Alles ~speichern"),
    ("%1 file\0%1 files", "%1 Datei\0%1 Dateien"),
    ("Not yet", ""),
]
ENGLISH = """\
Package: a
Description-md5: 01
Description-en: short title
 It reads
 mail. It is small.
 .
 Features:
  * many
 .
 Last one.

Package: b
Description-md5: 02
Description-en: other
 Text.
"""


def mo_file(texts, order):
    tables, content = b"", b""
    for text in [english for english, _ in texts] + [german for _, german in texts]:
        tables += struct.pack(f"{order}2I", len(text), 28 + 16 * len(texts) + len(content))
        content += text.encode() + b"\0"
    head = [0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0]
    return struct.pack(f"{order}7I", *head) + tables + content


class FetchData(unittest.TestCase):
    def test_texts_are_cut_into_sentences_if_both_have_equally_many(self):
        found = fetch_data.by_sentence("A b? C e.g. d.", "E f. Ü g. h.")
        self.assertEqual(found, [("A b?", "E f."), ("C e.g. d.", "Ü g. h.")])
        found = fetch_data.by_sentence("A b. C d.", "E f, g h.")
        self.assertEqual(found, [("A b. C d.", "E f, g h.")])

    def test_a_line_of_the_dictionary_gives_its_entries(self):
        lines = (
            "# Der Kopf. :: The head.\n"
            "Hund {m} [zool.]; Köter {m} | Der Hund (da) bellt.; Er bellt.; Laut. :: "
            "dog; cur | The dog  barks.; It barks.\n"
            "eins | zwei :: one\nnothing\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "usr/share/trans/de-en")
            path.parent.mkdir(parents=True)
            path.write_text(lines, encoding="utf-8")
            phrases = list(fetch_data.ding_phrases(Path(folder)))
            sentences = list(fetch_data.ding_sentences(Path(folder)))
        self.assertEqual(phrases, [("dog", "Hund"), ("The dog barks.", "Der Hund bellt.")])
        self.assertEqual(
            sentences, [("The dog barks.", "Der Hund bellt."), ("It barks.", "Er bellt.")]
        )
        self.assertEqual(fetch_data.without_remarks("open (to the end"), "open")

    def test_paragraphs_of_help_are_found_by_their_ids(self):
        page = (
            '<html><h1 id="hd_id1"><b>Cut</b> &amp; paste</h1>\n<p id="other">no</p>'
            '<p class="a" id="par_id2">\nChoose <span id="par_id9">View &gt;\n Zoom</span>. '
            "&amp;lt;</p>"
            '<p id="par_id2">again</p><p id="par_id3"> </p>'
        )
        expected = {"hd_id1": "Cut & paste", "par_id2": "Choose View > Zoom. &lt;"}
        self.assertEqual(fetch_data.help_paragraphs(page), expected)
        start = '<p id="par_id1'
        for page in ("", "<", "<>", start, f'{start}">', f'{start}">a</q>', "< >é"):
            self.assertEqual(fetch_data.help_paragraphs(page), {})

    def test_messages_are_read_in_both_byte_orders(self):
        for order in "<>":
            found = list(fetch_data.mo_messages(mo_file(MESSAGES, order)))
            self.assertEqual(found, [("Save all", "Alles speichern"), ("%1 file", "%1 Datei")])

    def test_broken_message_files_are_refused(self):
        whole = mo_file(MESSAGES, "<")
        # The last byte ends the last text, which is empty.
        for length in range(len(whole) - 1):
            with self.subTest(length=length), self.assertRaises((ValueError, struct.error)):
                list(fetch_data.mo_messages(whole[:length]))

    def test_descriptions_meet_by_their_sum(self):
        german = (
            "Package: a\nDescription-md5: 01\nDescription-de: Titel\n Es liest Post. Es\n ist "
            "klein.\n"
            " .\n Merkmale:\n  * viele\n .\n Letzter.\n\n"
            "Description-md5: 03\nDescription-de: Titel\n Anderes.\n"
        )
        expected = [("It reads mail.", "Es liest Post."), ("It is small.", "Es ist klein.")]
        expected += [("Last one.", "Letzter.")]
        self.assertEqual(list(fetch_data.translated_descriptions(ENGLISH, german)), expected)

    def test_incomplete_translations_are_left_out(self):
        key = "Description-md5: 02"
        broken = ["", key, f"{key}\nDescription-fr: Titre\n Texte."]
        broken += [f"{key}\nSection: x\nDescription-de: Titel\n Text."]
        for text in ("", "\n Text.\n .\n Mehr.", "\n Text <trans>", "\n - Text."):
            broken.append(f"{key}\nDescription-de: Titel{text}")
        for german in broken:
            self.assertEqual(list(fetch_data.translated_descriptions(ENGLISH, german)), [], german)

    def test_pairs_that_start_alike_are_on_one_side(self):
        def pairs(numbers, end):
            english = "Number {} begins a sentence like {}."
            return [(english.format(n, end), f"Ein Satz mit der Nummer {n}.") for n in numbers]

        def start(line):
            return " ".join(line[0].split(" ")[:6])

        first = pairs(range(200), "this")
        second = pairs(range(100, 300), "that") + first + [("Yes.", "Ja.")]
        train, test = fetch_data.split([("a", first, True), ("b", second, False)])
        starts = {start(line) for line in test}
        self.assertTrue(2 <= len(test) < 30 and {name for *_, name in test} == {"a"}, test)
        self.assertFalse(starts & {start(line) for line in train})
        # Pairs of the second source alone are all to train on, and none is there twice.
        left_out = sum(start(line) in starts for line in pairs(range(100, 200), ""))
        self.assertEqual(len(train) + len(test), 400 - left_out)
        self.assertEqual(sum(name == "b" for *_, name in train), 200 - left_out)

    def test_words_and_untranslated_texts_do_not_suit(self):
        self.assertTrue(fetch_data.suits("The dog barks.", "Der Hund bellt."))
        self.assertFalse(fetch_data.suits("dog", "Hund"))
        self.assertFalse(fetch_data.suits("The same words.", "The same words."))
        self.assertFalse(fetch_data.suits("It is so.", "Das ist aber wirklich ganz anders."))

    def test_other_files_than_expected_are_refused(self):
        with self.assertRaisesRegex(
            fetch_data.Unusable, "test.tsv has 2 lines, expected 1500 to 6000"
        ):
            fetch_data.check("test.tsv", b"a\nb\n", ding=False)
        with self.assertRaisesRegex(fetch_data.Unusable, "train.tsv has SHA-256 "):
            fetch_data.check("train.tsv", b"a\nb\n", ding=True)


if __name__ == "__main__":
    unittest.main()
