#!/usr/bin/env python3
"""Fetches English and German sentences with apt-get, and writes train.tsv and test.tsv.

    fetch_data.py               sentences of the Ding dictionary, LibreOffice's help and interface,
                                and descriptions of packages: lines of English, German, source
    fetch_data.py --ding        the dictionary alone, with its phrases: lines of English, German

Needs Debian or Ubuntu. Downloads 30 MB, installs nothing and leaves the machine's lists of
packages as they are. Licences: GPL-2.0-or-later (Ding), MPL-2.0 (LibreOffice), and for a
description of a package that of the package.
"""

import argparse
import functools
import hashlib
import html
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
# A pair with fewer words is rather a name than a phrase.
FEWEST_WORDS, MOST_WORDS = 3, 60
# One pair in 20 is for the test.
TEST_SHARE = 20

# apt reads this after the machine's own settings, which name its archives and proxies. It fetches
# descriptions in the given languages and no other lists. It skips the commands that the machine
# runs after an update. It downloads as root, because apt's own user for downloads cannot read the
# temporary folder.
APT_SETTINGS = """\
#clear Acquire::Languages;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::CNF;
#clear Acquire::IndexTargets::deb::Contents-deb;
#clear APT::Update;
Acquire::GzipIndexes "false";
APT::Sandbox::User "root";
"""

# The dictionary alone does not change, so its files are checked by SHA-256.
DING_SUMS = {
    "train.tsv": "47a648d034c0e74ef1742f8e1105b8bd6bb36dcca519b79046e43809ffded7ad",
    "test.tsv": "c39120dc57b6f1be609233f878c904f40f7a6b31e7e6640f82fe3fd720d4e49c",
}
# The other packages change over time. apt checks their signatures, and the number of lines must be
# in this range.
LINES = {"train.tsv": (70_000, 300_000), "test.tsv": (1_500, 6_000)}


class Unusable(Exception):
    """A package is not as expected."""


# Running text.


def single_spaced(text):
    """The text with single spaces."""
    return " ".join(text.split())


def untagged(text):
    """The text without its tags."""
    return re.sub(r"<[^>]+>", "", text)


def is_sentence(text):
    """Whether the text ends as a sentence does."""
    return text.endswith((".", "!", "?"))


def by_sentence(english, german):
    """Pairs of sentences if both texts have equally many sentences, else the two texts."""
    # A sentence starts with a capital letter after the end of another.
    parts = [re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜÉÈÀ])", text) for text in (english, german)]
    return list(zip(*parts)) if len(parts[0]) == len(parts[1]) else [(english, german)]


def read(path):
    """The text of a file of a package."""
    return path.read_bytes().decode("utf-8", errors="replace")


# The Ding dictionary. Its lines are `de | de :: en | en`. In an entry `;` separates ways to say it.


def ding_entries(text):
    """The entries: ways to say it in English, and in German."""
    for line in text.split("\n"):
        german, separator, english = line.partition("::")
        if line.startswith("#") or not separator:
            continue
        german, english = german.split("|"), english.split("|")
        if len(german) == len(english):
            for pair in zip(english, german):
                yield tuple([without_remarks(way) for way in entry.split(";")] for entry in pair)


def without_remarks(text):
    """The text without remarks in brackets. A bracket that is not closed reaches to the end."""
    return single_spaced(re.sub(r"\{[^}]*\}?|\[[^\]]*\]?|<[^>]*>?|\([^)]*\)?", " ", text))


def ding_phrases(folder):
    """The first way to say each entry."""
    for english, german in ding_entries(read(folder / "usr/share/trans/de-en")):
        yield english[0], german[0]


def ding_sentences(folder):
    """Whole sentences, in each way that both languages have."""
    for entry in ding_entries(read(folder / "usr/share/trans/de-en")):
        yield from (pair for pair in zip(*entry) if all(map(is_sentence, pair)))


# LibreOffice's help. A page has the same path in each language, and a paragraph has the same id.

TAG, ID = r"<(p|h[1-6]|li|td|th|div|span)(?=\s)", r'id="((?:par|hd)_id[^">]*)"'
PARAGRAPH = re.compile(rf"{TAG}[^>]*? {ID}[^>]*>(.*?)</\1>", re.DOTALL)


def help_paragraphs(page):
    """The paragraphs and headings by id, sorted. If an id comes twice, the first text counts."""
    found = {}
    for _, key, content in PARAGRAPH.findall(page):
        text = single_spaced(html.unescape(untagged(content)))
        if text:
            found.setdefault(key, text)
    return dict(sorted(found.items()))


def help_pairs(folder):
    """Sentences of the pages that both languages have."""
    both = folder / "usr/share/libreoffice/help"
    english, german = both / "en-US", both / "de"
    for path in sorted(english.rglob("*.html")):
        other = german / path.relative_to(english)
        if other.is_file():
            translated = help_paragraphs(read(other))
            for key, text in help_paragraphs(read(path)).items():
                if key in translated:
                    yield from by_sentence(text, translated[key])


# LibreOffice's user interface, in gettext's .mo files.

MO_MAGIC = bytes([0xDE, 0x12, 0x04, 0x95])


def interface_pairs(folder):
    """The messages and their translations."""
    for path in sorted((folder / "usr/lib/libreoffice/program/resource/de").rglob("*.mo")):
        try:
            yield from mo_messages(path.read_bytes())
        except (struct.error, ValueError) as error:
            raise Unusable(f"{path.name} is no whole .mo file: {error}") from error


def mo_messages(file):
    """The pairs of a .mo file, which has two tables with the lengths and places of its texts."""
    if file[:4] not in (MO_MAGIC, MO_MAGIC[::-1]):
        raise ValueError("the first bytes are others")
    order = "<" if file[:4] == MO_MAGIC else ">"
    count, *tables = struct.unpack_from(f"{order}3I", file, 8)
    for row in range(count):
        texts = []
        for table in tables:
            length, start = struct.unpack_from(f"{order}2I", file, table + 8 * row)
            if start + length > len(file):
                raise ValueError("a text reaches past the end")
            texts.append(file[start : start + length].decode("utf-8", errors="replace"))
        # The context stands before the English text, and plurals stand after both.
        english = texts[0].rpartition("\x04")[2].partition("\0")[0]
        german = texts[1].partition("\0")[0]
        # The text with an empty key is the header of the file.
        if english and german:
            yield tuple(without_marks(text) for text in (english, german))


def without_marks(text):
    """The text without tags and without the marks of shortcut keys."""
    return single_spaced(untagged(text.replace("_", "").replace("~", "")))


# Descriptions of Debian's packages. In apt's lists an original and its translation have the same
# `Description-md5`.


def description_pairs(folder):
    """Sentences of the descriptions, from the lists of all archives."""
    texts = []
    for language in ("en", "de"):
        lists = sorted(folder.glob(f"lists/*i18n_Translation-{language}"))
        if not lists:
            raise Unusable(f"apt's sources have no descriptions in `{language}`")
        texts.append("\n\n".join(map(read, lists)))
    return translated_descriptions(*texts)


def translated_descriptions(english, german):
    """Sentences of the paragraphs, where original and translation have equally many paragraphs."""
    originals = descriptions(english, "en")
    for key, german in sorted(descriptions(german, "de").items()):
        # `<trans>` stands for a part that is not translated.
        if key not in originals or "<trans>" in german:
            continue
        ours, theirs = map(description_paragraphs, (originals[key], german))
        if len(ours) == len(theirs):
            for pair in zip(ours, theirs):
                if all(pair):
                    yield from by_sentence(*pair)


def descriptions(lists, language):
    """The descriptions by the MD5 of the original."""
    pattern = re.compile(rf"Description-md5: ([^\n]*)\nDescription-{language}: (.*)", re.DOTALL)
    found = map(pattern.search, lists.split("\n\n"))
    return {match[1].strip(): match[2] for match in found if match}


def description_paragraphs(description):
    """The paragraphs after the title. None stands for a paragraph with a list."""
    paragraphs = [[]]
    # Each line is indented by a space. A line with a dot separates paragraphs.
    for line in description.split("\n")[1:]:
        if line.strip() == ".":
            paragraphs.append([])
        else:
            paragraphs[-1].append(line[1:] if line.startswith(" ") else line)
    return [None if is_list(lines) else single_spaced(" ".join(lines)) for lines in paragraphs]


def is_list(lines):
    """Whether some lines are items of a list, or indented."""
    return any(line.startswith((" ", "-", "*")) for line in lines)


# All sources together: name, function, and whether the test has some of the pairs. The messages of
# a program, and descriptions that differ in a name only, would make a test too easy.

SOURCES = [
    ("ding", ding_sentences, True),
    ("lo-help", help_pairs, True),
    ("lo-ui", interface_pairs, False),
    ("ddtp", description_pairs, False),
]


def suits(english, german):
    """Whether the pair is neither a word, nor too long, nor untranslated, nor unequal in length."""
    words = all(FEWEST_WORDS <= len(text.split()) <= MOST_WORDS for text in (english, german))
    alike = len(english) <= 3 * len(german) and len(german) <= 3 * len(english)
    return words and alike and english != german


def lot(english):
    """A number that is the same for sentences whose first six words are the same."""
    return fnv_1a(" ".join(english.split(" ")[:6]))


@functools.lru_cache(maxsize=None)
def fnv_1a(text):
    """The upper half of the 64-bit FNV-1a hash."""
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return number >> 32


def split(sources):
    """The pairs to train on and those to test on, each once: English, German, name of the source.

    `sources` gives name, pairs, and whether the test has some of them. Sentences that start alike
    are on one side, so that the test has no sentence that is nearly known.
    """
    found = {}
    for name, pairs, tested in sources:
        for pair in pairs:
            if suits(*pair):
                found.setdefault(pair, (name, tested))
    lots = {lot(english) for (english, _), (_, tested) in found.items() if tested}
    lots = {number for number in lots if number % TEST_SHARE == 0}
    train, test = [], []
    for pair, (name, tested) in found.items():
        if lot(pair[0]) not in lots:
            train.append((*pair, name))
        elif tested:
            test.append((*pair, name))
    return train, test


# Fetching.


def run(*command, folder):
    """Runs a program. A failure ends this one with the last lines of what it printed."""
    silent = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, cwd=folder, check=False, **silent)
    except OSError as error:
        sys.exit(f"fetch_data: {command[0]} cannot be started: {error}")
    if done.returncode:
        last = "; ".join(done.stderr.split("\n")[-4:]).strip("; ")
        sys.exit(f"fetch_data: `{' '.join(command)}` failed: {last}; is this machine online?")


def fetch(packages, languages, folder):
    """Unpacks packages into the folder, and puts apt's descriptions into `lists` in it.

    apt works with lists of its own, because the machine's may be old or missing and must stay.
    """
    cache, settings = folder / "cache", folder / "apt.conf"
    for path in (folder / "lists/partial", cache / "archives/partial"):
        path.mkdir(parents=True)
    wanted = " ".join(f'"{language}";' for language in languages)
    settings.write_text(f"{APT_SETTINGS}Acquire::Languages {{ {wanted} }};\n", encoding="utf-8")
    apt = ["apt-get", "--quiet", "-c", str(settings)]
    apt += [f"-oDir::State::lists={folder / 'lists'}", f"-oDir::Cache={cache}"]
    run(*apt, "update", folder=folder)
    run(*apt, "download", *packages, folder=folder)
    for archive in sorted(folder.glob("*.deb")):
        run("dpkg-deb", "-x", str(archive), str(folder), folder=folder)


def check(name, content, ding):
    """Raises an error if the content of a file is not as expected."""
    if ding:
        found = hashlib.sha256(content).hexdigest()
        if found != DING_SUMS[name]:
            raise Unusable(f"{name} has SHA-256 {found}, expected {DING_SUMS[name]}")
    else:
        lines, (fewest, most) = content.count(b"\n"), LINES[name]
        if not fewest <= lines <= most:
            raise Unusable(f"{name} has {lines} lines, expected {fewest} to {most}")


def made(ding):
    """The content of both files by name."""
    packages = ["trans-de-en"]
    if not ding:
        packages += ["libreoffice-help-en-us", "libreoffice-help-de", "libreoffice-l10n-de"]
    with tempfile.TemporaryDirectory(prefix="fetch-data-") as folder:
        folder = Path(folder)
        fetch(packages, ["none"] if ding else ["en", "de"], folder)
        sources = [("ding", ding_phrases, True)] if ding else SOURCES
        found = [(name, list(pairs(folder)), tested) for name, pairs, tested in sources]
    for name, pairs, _ in found:
        if not pairs:
            raise Unusable(f"there are no pairs of {name}")
    files = {}
    for name, lines in zip(("train.tsv", "test.tsv"), split(found)):
        columns = 2 if ding else 3
        files[name] = "".join("\t".join(line[:columns]) + "\n" for line in lines).encode()
        check(name, files[name], ding)
    return files


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--ding", action="store_true", help="the dictionary alone, with phrases")
    parser.add_argument("--to", type=Path, default=DATA, help="the folder [default: data/ here]")
    asked = parser.parse_args()
    try:
        files = made(asked.ding)
        asked.to.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            # A file appears whole.
            part = asked.to / f".{name}.part"
            part.write_bytes(content)
            os.replace(part, asked.to / name)
            lines = content.count(b"\n")
            print(f"{asked.to / name}: {lines:,} pairs")
    except Unusable as error:
        sys.exit(f"fetch_data: {error}; the packages may have changed")
    except OSError as error:
        sys.exit(f"fetch_data: {error}")


if __name__ == "__main__":
    main()
