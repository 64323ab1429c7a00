"""The pages that are computed from bench/results, and the figures of README.md."""

import faults_page
import page
import readme
import result_files
from programs import CHECKOUT

PAGES = {
    CHECKOUT / "docs" / "performance.md": page.text,
    CHECKOUT / "docs" / "faults.md": faults_page.text,
    readme.README: readme.text,
}


def texts():
    """{path: text} of every page, from what was measured."""
    results = result_files.saved()
    return {path: text(results) for path, text in PAGES.items()}


def write():
    """Writes every page from what was measured."""
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")


def keep(name, result):
    """Stores a measurement and writes every page anew."""
    result_files.save(name, result)
    write()
