"""The King James Bible as Debian ships it: 4.2 million characters, to be told one by one.

The package ``bible-kjv-text`` keeps the text in a form of its own, which its program ``bible``
reads. A file with what the program prints does as well, where there is no Debian.
"""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import torch

from aesam.lab import draws
from aesam.lab.config import Training
from aesam.lab.data.data_records import DataRecord, Verdict
from aesam.lab.data.sets import DataSet, TextSplit
from aesam.lab.errors import UsageError
from aesam.lab.regular_files import open_regular

PROGRAM, FILE = "bible", "kjv.txt"
WHOLE = ("-f", "gen1:1-rev22:21")  # a line for each verse: its place, and what it says
TEXT_MD5 = "347edc0f3658f7bfc979db479f2a3dcb"

#: Everything that stands in it.
ALPHABET = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZabcdefghijklmnopqrstuvwxyz"
CONTEXT = 64

#: Of its 1,189 chapters so many test, drawn once and for all: 2,000 pieces, give or take.
TEST_CHAPTERS, TEST_SEED = 40, 20230503
_VERSE = re.compile(r"(\S+\d):\d+ (.*)")


def load(root: Path, size: int | None = None) -> DataSet:  # noqa: ARG001
    """Pieces of 65 characters, none of which overlap; those of a chapter are a block.

    What tests is whole chapters, and so is what is held out to validate on, but for the last of
    them, which is cut between two pieces.
    """
    chapters = _chapters(_text(root))
    if len(chapters) < 2:
        raise UsageError(f"the text has {len(chapters)} chapters: at least 2 are needed")
    tests = min(TEST_CHAPTERS, len(chapters) // 2)
    order = torch.randperm(len(chapters), generator=draws.generator("chapters", TEST_SEED))
    whole = _pieces(chapters)
    is_test = torch.isin(whole.blocks, order[:tests])
    return DataSet(
        classes=len(ALPHABET),
        train=whole.select((~is_test).nonzero().flatten()),
        test=whole.select(is_test.nonzero().flatten()),
        mean=(),
        std=(),
        channels=1,
        size=CONTEXT,
        pad=0,
        flips=False,
        class_names=tuple(ALPHABET),
    )


def verify(root: Path) -> Verdict:
    """Whether the text is that of Debian's package, whose chapters were cut here."""
    found = hashlib.md5(_text(root).encode(), usedforsecurity=False).hexdigest()
    return "yes" if found == TEXT_MD5 else "no"


def _text(root: Path) -> str:
    """From ``kjv.txt`` under the root if it is there, or else from the program."""
    path = root / FILE
    if path.exists():
        with open_regular(path) as file:
            return file.read().decode(errors="replace")
    program = shutil.which(PROGRAM)
    if program is None:
        raise UsageError(
            f"there is no King James Bible: looked for {path} and for the program {PROGRAM!r} in "
            f"PATH. On Debian: apt-get install bible-kjv-text. Elsewhere, bring {FILE}, which "
            f"`{PROGRAM} {' '.join(WHOLE)}` prints there"
        )
    ended = subprocess.run([program, *WHOLE], capture_output=True, text=True, check=False)
    if ended.returncode or not ended.stdout:
        raise UsageError(
            f"{program} {' '.join(WHOLE)} printed no text (code {ended.returncode}): "
            f"{ended.stderr.strip() or 'it says nothing'}. Is bible-kjv-text installed whole?"
        )
    return ended.stdout


def _chapters(text: str) -> list[str]:
    """The verses of each chapter, a line each, without their numbers."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        verse = _VERSE.fullmatch(line)
        if verse is None or not set(verse[2]) <= set(ALPHABET):
            raise UsageError(
                f"line {number} of the text is no verse of the King James Bible in plain letters, "
                f"such as 'Ge1:1 In the beginning…': {line!r:.80}"
            )
        found.setdefault(verse[1], []).append(verse[2])
    return ["\n".join(verses) for verses in found.values()]


def _pieces(chapters: list[str]) -> TextSplit:
    """What is left over at the end of a chapter, too little for a piece, is not used."""
    number_of = {character: number for number, character in enumerate(ALPHABET)}
    length, pieces, blocks = CONTEXT + 1, list[list[int]](), list[int]()
    for block, chapter in enumerate(chapters):
        numbers = [number_of[character] for character in chapter]
        own = [numbers[i : i + length] for i in range(0, len(numbers) - length + 1, length)]
        pieces += own
        blocks += [block] * len(own)
    return TextSplit(torch.tensor(pieces, dtype=torch.uint8), torch.tensor(blocks))


RECORD = DataRecord(
    name="kjv-text",
    label="King James Bible",
    help="text of the King James Bible, a package of Debian",
    load=load,
    model="text-transformer",
    training=Training(
        epochs=10, batch_size=64, lr=3e-3, optimizer="adamw", weight_decay=0.1, evaluate_every=5
    ),
    augment=False,
    verify=verify,
    kind="text",
    score="loss",
)
