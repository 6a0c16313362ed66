"""Whatever ends a command, nothing of it is left, and the same command goes on to the same end."""

import os
import signal
import time
from dataclasses import dataclass

import psutil
import pytest
from PIL import Image
from support.commands import SMALL, start, summary_of
from support.fixtures_faults import WHOLE as EVERY_CASE

pytestmark = pytest.mark.slow
MARK = "AESAM_TEST_ORPHANS"
LONG = ("--epochs", 60, "--noise", 0.1, "--jobs", 2)
COMPARE = ("compare", *SMALL, "--methods", "erm", "sam", "--seeds", 0, *LONG)
TUNE = ("tune", *SMALL, "--methods", "sam", "--rhos", 0.05, 0.1, "--seeds", 0, "--limit", 1, *LONG)
REPRODUCE = ("reproduce", "fig-normality", "--epochs", 3, "--cache", "none", "--jobs", 2)
COST = ("reproduce", "cost")
DECODED = (
    "compare", "--dataset", "folder", "--model", "mlp", "--batch-size", 8, "--workers", 2,
    "--methods", "erm", "sam", "--seeds", 0, "--epochs", 4, "--noise", 0, "--no-augment",
    "--jobs", 2,
)  # fmt: skip
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

#: How far a command is when the signal comes: a test of its folder.
BEFORE = ("before any worker is there", "while the workers start", "while the workers import")
MOMENTS = {
    BEFORE[0]: lambda folder, mark: has_loaded(left_of(mark), "matplotlib"),
    BEFORE[1]: lambda folder, mark: len(left_of(mark)) > 2,
    BEFORE[2]: lambda folder, mark: has_loaded(workers_of(mark), "_multiarray_umath"),
    "while they train": lambda folder, mark: any(folder.rglob("metrics.jsonl")),
    "when one run is finished": lambda folder, mark: any(folder.rglob("summary.json")),
}
LATER = "in a later round"  # with the workers of the first one
MOMENTS_OF_A_SEARCH = {LATER: lambda folder, mark: len([*folder.rglob("metrics.jsonl")]) > 2}


def left_of(mark):
    """All processes that were started with our mark, by us or by what we started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def workers_of(mark):
    return [one for one in left_of(mark) if any("popen_loky" in word for word in one.cmdline())]


def has_loaded(processes, library):
    """Whether one of them is as far as loading this, which tells how far it has come."""
    try:
        return any(library in file.path for one in processes for file in one.memory_maps())
    except psutil.Error:
        return False


def wait_for(true, what, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def stopped(case, folder):
    """Exit code and output of a command that got a signal at a moment; nothing of it is left."""
    mark = str(folder)
    words = (*case.words, "--out", folder)
    with start(*words, env={MARK: mark}, cwd=folder.parent, start_new_session=True) as process:
        try:
            here = (MOMENTS | MOMENTS_OF_A_SEARCH)[case.moment]
            wait_for(lambda: here(folder, mark) or process.poll() is not None, case.moment)
            assert process.poll() is None, f"it ended by itself: {process.communicate()[0]}"
            (os.killpg if case.group else os.kill)(process.pid, case.signum)
            told = process.communicate(timeout=60)[0]  # also the workers have let go of the pipe
            wait_for(lambda: not left_of(mark), "processes are left", seconds=30)
        finally:
            for left in left_of(mark):
                left.kill()
    return process.returncode, told


def ended(words, folder):
    """The summaries of a command that nobody disturbs, by their places."""
    with start(*words, "--out", folder, cwd=folder.parent) as process:
        told = process.communicate()[0]
    assert process.returncode == 0, told
    found = sorted(folder.rglob("summary.json"))
    return {path.parent.relative_to(folder): summary_of(path.parent) for path in found}


@dataclass(frozen=True)
class Case:
    """A command, and the signal that it or its whole group gets, as from a terminal's Ctrl-C."""

    words: tuple
    signum: int
    moment: str = "while they train"
    group: bool = False
    again: bool = True

    def __str__(self):
        to = "all of " if self.group else ""
        return f"{signal.Signals(self.signum).name} to {to}{self.words[0]} {self.moment}"


#: One of each kind, which are not run again.
SHORT = [
    Case(COMPARE, signal.SIGKILL, again=False),
    Case(COMPARE, signal.SIGINT, BEFORE[2], group=True, again=False),
    Case(COMPARE, signal.SIGTERM, again=False),
    Case(TUNE, signal.SIGINT, LATER, group=True, again=False),
]
WHOLE = [
    *(Case(COMPARE, signum, moment) for moment in MOMENTS for signum in SIGNALS),
    *(Case(COMPARE, signal.SIGINT, moment, group=True) for moment in MOMENTS),
    *(Case(COMPARE, signal.SIGTERM, moment, group=True) for moment in MOMENTS),
    *(Case(words, signum) for words in (TUNE, REPRODUCE, DECODED) for signum in SIGNALS),
    *(Case(TUNE, signum, LATER) for signum in SIGNALS),
    *(Case(TUNE, signum, LATER, group=True) for signum in SIGNALS[1:]),
    *(Case(words, signal.SIGINT, group=True) for words in (TUNE, REPRODUCE, DECODED)),
    Case(COST, signal.SIGTERM, BEFORE[1], again=False),
    Case(COST, signal.SIGINT, BEFORE[1], again=False),
]


def image_folder(folder):
    """Images to decode, which takes processes of the workers' own."""
    for split in ("train", "val"):
        for kind in ("dark", "light"):
            (folder / split / kind).mkdir(parents=True)
            for number in range(16):
                colour = (number, number, number if kind == "dark" else 255 - number)
                Image.new("RGB", (8, 8), colour).save(folder / split / kind / f"{number}.png")


def check_answer(case, code, told):
    """A signal that can be answered is, with what to do next."""
    assert "Traceback" not in told, told
    if case.moment in BEFORE:  # while Python itself starts, the system answers
        assert code in (128 + case.signum, -case.signum), told
    else:
        assert code == 128 + case.signum, told
        assert "run the same command again" in told
        assert "--resume" not in told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a command ends in that nobody disturbs, found once."""
    found, folder = {}, tmp_path_factory.mktemp("undisturbed")
    image_folder(folder / "data")

    def summaries(words):
        if words not in found:
            found[words] = ended(words, folder / str(len(found)))
        return found[words]

    return summaries


@pytest.mark.parametrize("case", WHOLE if EVERY_CASE else SHORT, ids=str)
def test_nothing_of_a_command_is_left_and_it_goes_on_to_the_same_numbers(
    case, undisturbed, faults, tmp_path
):
    image_folder(tmp_path / "data")
    folder = tmp_path / "out"
    code, told = stopped(case, folder)
    if case.signum == signal.SIGKILL:
        assert code == -signal.SIGKILL
        # Loky's own worker, not yet told what to do by whoever is gone, says so.
        assert "Traceback" not in told or case.moment in BEFORE
    else:
        check_answer(case, code, told)
    if case.again:
        assert ended(case.words, folder) == undisturbed(case.words)
    faults.held(
        "kill -9, SIGTERM or Ctrl-C to compare, tune and reproduce", 1,
        "no process is left; the same command goes on to the same numbers",
    )  # fmt: skip
