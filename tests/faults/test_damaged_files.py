"""Every file that is read, damaged in every way: refused in words, or the numbers are the same."""

import io
import json
import random
import zipfile
from pathlib import Path

import pytest
import torch
from support.commands import StopsAt, aesam
from support.small_runs import WORDS, content_of, copied, numbers_of, tiny_run

from aesam.lab.errors import UsageError
from aesam.lab.show import as_json, compare, read_runs
from aesam.lab.training import run_checkpoint, sealed, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.restored import load_run

pytestmark = pytest.mark.slow
BEFORE = Path(__file__).parents[1] / "_core/before/run/checkpoint.pt"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    trainer.train(tiny_run(), folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(Stopped):
        trainer.train(tiny_run(), folder, reporter=StopsAt(3))
    return folder


# The checkpoint's bytes ---------------------------------------------------------------------------


def refusal(action):
    """What an action is refused with; None where it is not."""
    try:
        action()
    except UsageError as error:
        return str(error)
    return None


def same(ours, theirs):
    """Whether two contents are the same to the bit, NaN and all."""
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and ours.numpy().tobytes() == theirs.numpy().tobytes()
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and repr(ours) == repr(theirs)


def outside_of_members(saved):
    """The places of all bytes that are no member's content: headers, directory, seal."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        places = set(range(len(saved)))
        for member in archive.infolist():
            begin = _data_of(saved, member)
            places -= set(range(begin, begin + member.compress_size))
    return sorted(places)


def _data_of(saved, member):
    head = saved[member.header_offset : member.header_offset + 30]
    lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return member.header_offset + 30 + lengths


def flips(saved, drawn, bits=range(8)):
    """These bits of every byte outside of the members, and so many anywhere."""
    source = random.Random(0)
    return [
        *((place, bit) for place in outside_of_members(saved) for bit in bits),
        *((source.randrange(len(saved)), source.randrange(8)) for _ in range(drawn)),
    ]


def flipped(saved, place, bit):
    return saved[:place] + bytes([saved[place] ^ (1 << bit)]) + saved[place + 1 :]


def test_every_flipped_bit_of_a_checkpoint_is_refused(faults, stopped):
    saved = (stopped / "checkpoint.pt").read_bytes()
    cases = faults.of(flips(saved, 20_000), 3_000)
    for place, bit in cases:
        with pytest.raises(sealed.Unsound):
            sealed.opened(flipped(saved, place, bit))
    faults.held("a flipped bit in checkpoint.pt", len(cases), "refused")


def test_a_flipped_bit_of_a_checkpoint_without_seal_is_refused_or_changes_nothing(faults):
    saved = BEFORE.read_bytes()
    before, outside = sealed.opened(saved), set(outside_of_members(saved))
    cases = faults.of(flips(saved, 5_000, bits=(0, 3, 7)), 500)
    for place, bit in cases:
        try:
            found = sealed.opened(flipped(saved, place, bit))
        except sealed.Unsound:
            continue
        assert place in outside, (place, bit)
        assert same(found, before), (place, bit)
    what = "a flipped bit in a checkpoint.pt of before there were seals"
    faults.held(what, len(cases), "refused, or the content is the same")


@pytest.mark.parametrize("name", ["sealed", "of before"])
def test_a_checkpoint_that_is_cut_or_mixed_is_refused(name, faults, stopped):
    saved = BEFORE.read_bytes() if name == "of before" else (stopped / "checkpoint.pt").read_bytes()
    size, source = len(saved), random.Random(1)
    cases = [saved[:n] for n in (*range(0, size, size // 97), size - 1, size - 64, size - 65)]
    for _ in range(60):
        begin, end = sorted(source.sample(range(size), 2))
        cases.append(saved[:begin] + bytes(end - begin) + saved[end:])
        cases.append(saved[:begin] + saved[end:])
        cases.append(saved[:end] + saved[begin:])
        cases.append(saved[begin:] + saved[:begin])
    cases = [case for case in faults.of(cases, 60) if case != saved]
    for case in cases:
        with pytest.raises(sealed.Unsound):
            sealed.opened(case)
    faults.held("a checkpoint.pt cut, zeroed, doubled or swapped in parts", len(cases), "refused")


def test_the_commands_refuse_a_flipped_bit_and_leave_everything_as_it_was(
    faults, stopped, finished, tmp_path, capsys
):
    going_on = (*WORDS, "--quiet", "--resume", "--out")
    cases = faults.of(flips((stopped / "checkpoint.pt").read_bytes(), 1_000)[::97], 5)
    for words, folder in ((going_on, stopped), (("sharpness",), finished)):
        for place, bit in cases:
            here = copied(folder, tmp_path / "run")
            saved = (here / "checkpoint.pt").read_bytes()
            (here / "checkpoint.pt").write_bytes(flipped(saved, place % len(saved), bit))
            before = content_of(here)
            code, told = aesam(*words, here, capsys=capsys)
            assert code == 2
            assert "checkpoint.pt is damaged" in told
            assert content_of(here) == before
    what = "a flipped bit in checkpoint.pt, by train --resume and sharpness"
    faults.held(what, 2 * len(cases), "refused; the run is as it was")


# The checkpoint's content -------------------------------------------------------------------------

WRONG = (None, "x", [], {}, -1, 10**30, float("nan"), torch.zeros(3), torch.zeros(0))
#: What a checkpoint holds that is told or kept, and not computed with: any value of its type is.
TOLD = ("seconds", "second_seconds", "metrics", "trace", "sums", "seen")


def paths(value, path=()):
    """Where something stands in nested values; of long lists the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list | tuple) and value:
        for key in sorted({0, len(value) - 1}):
            yield from paths(value[key], (*path, key))


def changed(content, path, wrong):
    """A copy with another value at the path, or without it."""
    if not path:
        return wrong
    here, *rest = path
    new = list(content) if isinstance(content, list | tuple) else dict(content)
    if not rest and wrong is LEFT_OUT:
        del new[here]
    else:
        new[here] = changed(content[here], rest, wrong)
    return tuple(new) if isinstance(content, tuple) else new


LEFT_OUT = object()


def test_a_whole_checkpoint_of_wrong_content_is_refused_or_ends_in_the_same_numbers(
    faults, stopped, tmp_path
):
    trainer.train(tiny_run(), tmp_path / "undisturbed")
    undisturbed = numbers_of(tmp_path / "undisturbed")
    content = run_checkpoint.load(stopped / "checkpoint.pt")
    every = [(path, wrong) for path in paths(content) for wrong in (LEFT_OUT, *WRONG)]
    cases = faults.of(every, 70)
    for path, wrong in cases:
        here = copied(stopped, tmp_path / "run")
        bad = changed(content, path, wrong)
        (here / "checkpoint.pt").write_bytes(sealed.sealed(bad))
        before = content_of(here)
        refused = refusal(lambda here=here: trainer.train(tiny_run(), here, resume=True))
        if refused is not None:
            assert "checkpoint" in refused
            assert content_of(here) == before
        elif not set(path) & set(TOLD):
            assert numbers_of(here) == undisturbed, (path, wrong)
    faults.held(
        "a whole checkpoint.pt of wrong content", len(cases), "refused, or no other numbers"
    )


# The files that are text --------------------------------------------------------------------------

NAMES = ("config.json", "summary.json", "metrics.jsonl")
HUGE = "9" * 400
TEXTS = ("", "{", "[]", "null", '"x"', "1e999", "\0" * 20, "[" * 100_000, "{}\n{}\n{}", HUGE)
VALUES = ("null", "Infinity", "-Infinity", "NaN", "-1", "1e999", "1e300", HUGE, '"x"', "[]", "{}",
          "true", "[null]", '{"x": {"x": []}}')  # fmt: skip
MARK = "the place"


def damages(text):
    """A file of JSON, damaged as a whole, without each value, and with others in its place."""
    lines = [json.loads(line) for line in text.splitlines()] if "}\n{" in text else json.loads(text)
    yield from (each.encode() for each in TEXTS)
    yield from (text.encode()[:n] for n in range(1, len(text) - 2, max(1, len(text) // 40)))
    yield text.encode()[:40] + b"\xff\xfe\x00" + text.encode()[40:]
    for path in paths(lines):
        for value in VALUES:
            yield written(changed(lines, path, MARK)).replace(json.dumps(MARK), value).encode()
        yield written(changed(lines, path, LEFT_OUT)).encode()


def written(lines):
    if isinstance(lines, list):
        return "".join(json.dumps(line) + "\n" for line in lines)
    return json.dumps(lines)


def shown(folder):
    """The numbers of a report on the folder."""
    (comparison,) = as_json(compare(read_runs([folder])), "")["comparisons"]
    names = ("accuracy", "percent_sam", "train_accuracy", "gradients_per_step", "n")
    return [{name: row[name] for name in names} for row in comparison["rows"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_text_file_is_told_or_changes_no_number(name, faults, finished, tmp_path):
    right, run = shown(finished), tiny_run()
    accuracy = trainer.train(run, finished, resume=True)["test_accuracy"]
    weights = dict(load_run(finished).model.state_dict())
    cases = faults.of(list(damages((finished / name).read_text())), 120)
    here, told = copied(finished, tmp_path / "run"), 0

    def reads():
        assert shown(here) == right

    def goes_on():
        assert trainer.train(run, here, resume=True)["test_accuracy"] == accuracy

    def measures():
        assert same(dict(load_run(here).model.state_dict()), weights)

    for case in cases:
        (here / name).write_bytes(case)
        before = content_of(here)
        for action in (reads, goes_on, measures):
            refused = refusal(action)
            told += refused is not None
            assert refused is None or name in refused or "holds another run" in refused
        assert content_of(here) == before
    assert told
    faults.held(f"a damaged {name}", len(cases), "told, or no other numbers")


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_report_is_made_of_what_was_not_refused(name, faults, finished, tmp_path, capsys):
    here = copied(finished, tmp_path / "run")
    cases = faults.of(list(damages((finished / name).read_text()))[::9], 5)
    for case in cases:
        (here / name).write_bytes(case)
        code, told = aesam("report", here, "--out", tmp_path / "out", capsys=capsys)
        assert code in (0, 2), told
        assert code == 0 or told.startswith("aesam: "), told
    faults.held(f"a report on a damaged {name}", len(cases), "told, or no other numbers")
