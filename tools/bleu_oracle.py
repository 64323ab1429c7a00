#!/usr/bin/env python3
"""Writes tests/bleu/cases.json: small corpora with the BLEU that sacreBLEU gives them (`pip install
sacrebleu==2.5.1`).

`cargo test -p bossman` compares BossMan's with them; it needs no Python.
"""

import json
import random
import sys
from pathlib import Path

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Numbers such as 3.14, 1,000 and 5-6 keep their marks; 7.-8, do not.",
    'He said: "Well, it\'s {not} [that] <easy>, is it?" & left.',
    "Über die Brücke ging er – langsam, aber sicher – nach Hause.",
    "a/b + c*d = e^f; 50% of $20 is #1 @ home!",
    "One, two , three ,four. . . five...",
    "&quot;Quoted&quot; &amp; escaped &lt;tags&gt; <skipped> here",
    "Short one.",
    "It was the best of times, it was the worst of times, it was the age of wisdom.",
    "12.30 p.m. on 1.1.2026, room 4-b",
]


def changed(text, draws):
    """A translation that is not quite right."""
    words = text.split(" ")
    for _ in range(draws.randrange(4)):
        place = draws.randrange(len(words))
        match draws.randrange(4):
            case 0:
                words.insert(place, draws.choice(words))
            case 1:
                words[place] = words[place].lower()
            case 2 if len(words) > 1:
                del words[place]
            case _:
                other = draws.randrange(len(words))
                words[place], words[other] = words[other], words[place]
    return " ".join(words)


def main():
    try:
        import sacrebleu
    except ImportError:
        sys.exit(f"bleu_oracle: needs sacreBLEU: {sys.executable} -m pip install sacrebleu==2.5.1")
    draws, corpora = random.Random(7), []
    for size in [1, 1, 1, 2, 3, 5, 10, 10, 10, 10]:
        references = draws.sample(SENTENCES, size)
        corpora.append(([changed(text, draws) for text in references], references))
    corpora.append((["nothing alike", ""], SENTENCES[:2]))
    corpora.append((SENTENCES, SENTENCES))
    corpora.append((["the cat"], ["the cat"]))
    corpora.append((["the cat is on the mat"], ["the cat sat on the mat"]))
    cases = [
        {
            "translations": list(found),
            "references": list(wanted),
            "bleu": sacrebleu.corpus_bleu(found, [wanted]).score,
        }
        for found, wanted in corpora
    ]
    path = Path(__file__).resolve().parent.parent / "tests" / "bleu" / "cases.json"
    path.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(cases)} corpora, BLEU by sacreBLEU {sacrebleu.__version__}, written to {path}")


if __name__ == "__main__":
    main()
