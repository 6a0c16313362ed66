"""The King James Bible: pieces that do not overlap, whole chapters apart, and what is refused."""

import stat
from dataclasses import replace

import pytest
import torch
from support.commands import aesam
from support.fixtures_data import write_bible

from aesam.lab import data, validation
from aesam.lab.config import Data, Model
from aesam.lab.data import TextSplit, kjv_text
from aesam.lab.draws import together
from aesam.lab.errors import UsageError


@pytest.fixture
def root(tmp_path):
    return write_bible(tmp_path / "data")


def text_of(split):
    return ["".join(kjv_text.ALPHABET[i] for i in piece.tolist()) for piece in split.pieces]


def run_on(root, **changes):
    usual = data.data_record("kjv-text").usual
    return replace(usual, data=replace(usual.data, root=str(root), **changes))


def chapters_of(root):
    found = {}
    for line in (root / "kjv.txt").read_text().splitlines():
        place, said = line.split(" ", 1)
        found.setdefault(place.split(":")[0], []).append(said)
    return ["\n".join(verses) for verses in found.values()]


def test_each_piece_is_the_next_65_characters_of_its_chapter_and_none_is_used_twice(root):
    found = data.load("kjv-text", root)
    expected = [c[i : i + 65] for c in chapters_of(root) for i in range(0, len(c) - 64, 65)]
    pieces = [*text_of(found.train), *text_of(found.test)]
    assert sorted(pieces) == sorted(expected)
    assert (found.classes, found.size, found.is_text) == (63, 64, True)


def test_no_chapter_is_in_two_of_what_trains_validates_and_tests(root):
    found = data.load("kjv-text", root)
    whole = len(chapters_of(root))
    tested = set(found.test.blocks.tolist())
    assert tested
    assert not tested & set(found.train.blocks.tolist())
    assert len(tested | set(found.train.blocks.tolist())) == whole
    samples = data.samples_of(run_on(root, holdout=0.5))
    shared = set(samples.train.blocks.tolist()) & set(samples.held.blocks.tolist())
    assert len(shared) <= 1  # the last one is cut between two pieces
    rows = [*samples.train.pieces.tolist(), *samples.held.pieces.tolist()]
    assert sorted(rows) == sorted(found.train.pieces.tolist())
    assert samples.kind == "validation"


def test_a_part_of_a_text_is_whole_blocks_and_a_larger_one_contains_it():
    blocks = torch.arange(6).repeat_interleave(10)
    few, more = together(blocks, 20, seed=1), together(blocks, 35, seed=1)
    assert blocks[few].bincount(minlength=6).sort().values.tolist() == [0, 0, 0, 0, 10, 10]
    assert blocks[more].bincount(minlength=6).sort().values.tolist() == [0, 0, 5, 10, 10, 10]
    assert bool((more >= few).all())
    assert not torch.equal(few, together(blocks, 20, seed=2))


def test_batches_are_characters_and_those_that_follow(root):
    found = data.load("kjv-text", root)
    batches = data.Batches(found.train, found, 4, seed=0, augment=False, device="cpu")
    seen = [(x, y) for x, y in batches.epoch(0)]
    order = torch.randperm(len(found.train), generator=data.batches.draws.generator("order", 0, 0))
    for i, (x, y) in enumerate(seen):
        rows = found.train.pieces[order[4 * i : 4 * i + 4]].long()
        assert torch.equal(x, rows[:, :-1])
        assert torch.equal(y, rows[:, 1:])
    later = list(batches.epoch(0, start=3))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(seen[3:], later, strict=True))
    chunks = list(data.evaluation_chunks(found.test, found, 3, "cpu"))
    assert torch.equal(torch.cat([y for _, y in chunks]), found.test.labels)


def test_without_file_and_program_both_places_and_the_remedy_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        data.load("kjv-text", tmp_path)
    for told in (str(tmp_path / "kjv.txt"), "'bible'", "apt-get install bible-kjv-text"):
        assert told in str(refused.value)


def program(folder, script):
    path = folder / "bible"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_what_the_program_prints_is_the_text(root, tmp_path, monkeypatch):
    empty = tmp_path / "elsewhere"
    expected = data.load("kjv-text", root)
    program(tmp_path, f'[ "$*" = "-f gen1:1-rev22:21" ] && exec /bin/cat {root / "kjv.txt"}')
    monkeypatch.setenv("PATH", str(tmp_path))
    found = data.load("kjv-text", empty)
    assert torch.equal(found.train.pieces, expected.train.pieces)
    assert data.describe("kjv-text", empty)["verified"] == "no"


def test_a_program_that_prints_nothing_is_told_with_what_it_said(tmp_path, monkeypatch):
    program(tmp_path, "echo no data file >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"printed no text \(code 1\): no data file"):
        data.load("kjv-text", tmp_path / "elsewhere")


@pytest.mark.parametrize("line", ["In the beginning", "Ge1:2 And the earth was void — and dark"])
def test_a_line_that_is_no_verse_in_plain_letters_is_told_by_its_number(line, root):
    with (root / "kjv.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match="line 97 of the text is no verse"):
        data.load("kjv-text", root)


def test_a_text_of_one_chapter_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has 1 chapters: at least 2"):
        data.load("kjv-text", write_bible(tmp_path, chapters=1))


def test_the_command_describes_a_text_in_pieces(root, capsys):
    code, told = aesam("data", "kjv-text", "--root", root, capsys=capsys)
    assert code == 0
    assert "pieces: " in told
    assert "context: 64" in told
    assert "images" not in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"noise": 0.2}}, "noise must be 0 for a text: its labels are its own next"),
        ({"data": {"augment": True}}, "augment is for images and kjv-text is text"),
        ({"data": {"cutout": 4}}, "cutout is for images and kjv-text is text"),
        ({"training": {"channels_last": True}}, "channels_last is for images"),
        ({"model": {"name": "mlp"}}, "model mlp reads images .* choose among text-transformer"),
    ],
    ids=["noise", "augment", "cutout", "channels_last", "model"],
)
def test_what_is_for_images_is_refused_for_a_text_before_it_is_read(changes, message, root):
    run = run_on(root)
    for section, values in changes.items():
        run = replace(run, **{section: replace(getattr(run, section), **values)})
    with pytest.raises(UsageError, match=message):
        validation.check(run)


def test_a_model_of_text_is_refused_for_images_with_those_that_fit():
    usual = data.data_record("digits").usual
    with pytest.raises(UsageError, match="reads text and digits is images: choose among digits-cn"):
        validation.check(replace(usual, model=Model("text-transformer")))


def test_noise_is_refused_also_where_only_the_samples_are_asked_for(root):
    with pytest.raises(UsageError, match="noise must be 0 for a text"):
        data.samples_of(run_on(root, noise=0.1))


def test_cutout_of_a_text_is_refused_by_its_batches(root):
    found = data.load("kjv-text", root)
    with pytest.raises(UsageError, match="cutout=4 is for sets in memory, not for a text"):
        data.Batches(found.train, found, 4, 0, augment=False, device="cpu", cutout=4)


def test_pieces_that_are_no_text_are_refused():
    with pytest.raises(ValueError, match="pieces must be uint8"):
        TextSplit(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="must be int64"):
        TextSplit(torch.zeros(3, 5, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))


def test_where_a_text_lies_is_the_run_s_root(root):
    assert data.samples_of(run_on("nowhere"), root).data_set.is_text
    assert Data("kjv-text").root == "data"
