"""``aesam.search``: calls a training of the user's own, goes on after a kill, refuses in words."""

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
import torch

import aesam


class Training:
    """A function that notes how it was called."""

    def __init__(self, score):
        self.score, self.calls = score, []

    def __call__(self, rho, seed):
        self.calls.append((rho, seed))
        return self.score(rho, seed)


def near(at):
    return lambda rho, seed=0: -abs(math.log(rho / at))


@pytest.mark.slow
def test_the_radius_of_a_real_training_is_found():
    """SAM on w²/2 ends in steps between ±a with a = lr (a + ρ) − a, so that ρ = 1.9 has a = 0.1."""

    def train_and_validate(rho):
        w = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
        opt = aesam.SAM(torch.optim.SGD([w], lr=0.1), rho=rho)

        def closure():
            opt.zero_grad()
            loss = w**2 / 2
            loss.backward()
            return loss

        for _ in range(200):
            opt.step(closure)
        return -(w.detach().abs() - 0.1).abs()

    found = aesam.search(train_and_validate, rho=(0.05, 0.1))
    assert found.best == {"rho": 1.6}
    assert found.score == pytest.approx(0.1 * 1.6 / 1.9 - 0.1)


def test_a_function_is_called_with_keywords_and_its_seed():
    train = Training(near(0.1))
    found = aesam.search(train, rho=[0.05, 0.1, 0.2], seeds=(3, 5))
    assert found.best == {"rho": 0.1}
    assert set(train.calls) <= {(rho, seed) for rho in (0.05, 0.1, 0.2) for seed in (3, 5)}
    assert {(0.1, 3), (0.1, 5)} <= set(train.calls)
    assert len(set(train.calls)) == len(train.calls)


def test_seeds_are_three_where_the_function_takes_one_and_one_where_not():
    with_seed = aesam.search(lambda rho, seed: near(0.1)(rho), rho=(0.05, 0.1, 0.2))
    without = aesam.search(lambda rho: -abs(rho - 0.1), rho=(0.05, 0.1, 0.2))
    anything = aesam.search(lambda **given: near(0.1)(given["rho"]), rho=(0.05, 0.1, 0.2))
    of = [max(t.n for t in found.trials) for found in (with_seed, without, anything)]
    assert of == [3, 1, 3]


def test_losses_are_made_small():
    found = aesam.search(lambda rho: (rho - 1.5) ** 2, rho=(0.1, 0.2), mode="min")
    assert found.best == {"rho": 1.6}
    assert found.score == pytest.approx(0.01)
    assert all(trial.mean >= 0 for trial in found.trials)


def test_a_fine_search_finds_what_lies_between_values_that_double():
    train = lambda rho: -9.0 if rho > 0.7 else rho  # noqa: E731
    assert aesam.search(train, rho=(0.1, 0.2)).best == {"rho": 0.4}
    assert aesam.search(train, rho=(0.1, 0.2), fine=True).best == {"rho": 0.566}


@pytest.mark.parametrize(
    ("lost", "more"),
    [
        (lambda: math.nan, {}),
        (lambda: math.inf, {"mode": "min"}),
        (lambda: raise_(aesam.NonFiniteGradient("gone")), {}),
        (lambda: raise_(ZeroDivisionError()), {"diverged": (ZeroDivisionError, KeyError)}),
    ],
)
def test_what_diverges_is_never_the_best(lost, more):
    sign = -1 if more.get("mode") == "min" else 1

    def train(rho):
        return lost() if rho > 0.5 else sign * rho

    found = aesam.search(train, rho=(0.1, 0.2), **more)
    assert found.best == {"rho": 0.4}
    assert found.at_edge == ()
    assert [t.settings["rho"] for t in found.trials if t.diverged] == [0.8]


def raise_(error):
    raise error


def test_another_exception_is_the_user_s():
    with pytest.raises(KeyError):
        aesam.search(lambda rho: raise_(KeyError("mine")), rho=(0.1,))


def test_where_everything_diverges_there_is_no_best():
    found = aesam.search(lambda rho: math.nan, rho=(0.1,), limit=1)
    assert (found.best, found.score) == (None, None)
    assert "every rho that was tried diverged" in found.notes[0]


def test_a_best_value_at_the_edge_is_said_to_be_there():
    found = aesam.search(lambda rho: rho, rho=(0.1, 0.2), limit=2)
    assert found.best == {"rho": 0.8}
    assert found.at_edge == ("rho",)
    assert "still at the edge, 0.8" in found.notes[0]


def test_bounds_are_those_of_the_library_s_settings_or_given():
    found = aesam.search(lambda p: p, p=(0.5, 0.6))
    assert (found.best, found.at_edge) == ({"p": 1.0}, ())
    found = aesam.search(lambda dropout: dropout, dropout=(0.1, 0.2), bounds={"dropout": (0, 0.7)})
    assert (found.best, found.at_edge) == ({"dropout": 0.7}, ())
    found = aesam.search(
        lambda layers: layers, layers=(1, 2), bounds={"layers": (1, None)}, limit=1
    )
    assert (found.best, found.at_edge) == ({"layers": 4}, ("layers",))
    assert all(type(trial.settings["layers"]) is int for trial in found.trials)


def test_a_setting_that_is_not_the_library_s_of_that_name_may_have_other_bounds():
    with pytest.raises(ValueError, match=r"as the library's p.*bounds={'p': \(None, None\)}"):
        aesam.search(lambda p: -abs(p - 4), p=(2.0, 4.0))
    found = aesam.search(lambda p: -abs(p - 4), p=(2.0, 4.0), bounds={"p": (None, None)})
    assert found.best == {"p": 4.0}


def test_settings_are_searched_in_the_order_given_the_others_at_their_defaults():
    calls = []

    def train(rho, alpha=0.7, tau=None):
        calls.append((rho, alpha, tau))
        return near(0.1)(rho) - (alpha - 0.7) ** 2 - (tau - 3) ** 2

    found = aesam.search(train, rho=(0.05, 0.1, 0.2), alpha=(0.5, 1.0), tau=(1.0, 2.0, 4.0))
    assert {(alpha, tau) for _, alpha, tau in calls[:3]} == {(0.7, 2.0)}
    assert found.best["rho"] == 0.1
    assert found.best["alpha"] == 0.7


def test_a_tensor_with_one_number_is_a_score():
    found = aesam.search(lambda rho: torch.tensor(near(0.1)(rho)), rho=(0.05, 0.1, 0.2))
    assert found.best == {"rho": 0.1}
    assert type(found.score) is float


def test_every_round_is_told():
    told = []
    aesam.search(near(0.4), rho=(0.1, 0.2), seeds=(0, 1), tell=told.append)
    assert told[0] == "rho 0.1 0.2 with 1 seed: 2 trainings"
    assert told[1] == "rho 0.4 with 1 seed: 1 training"
    assert any("with 2 seeds" in line for line in told)


def test_the_result_cannot_be_changed():
    found = aesam.search(near(0.1), rho=(0.05, 0.1, 0.2))
    with pytest.raises(FrozenInstanceError):
        found.best = None


# Kept scores -----------------------------------------------------------------------------------


def test_a_search_goes_on_where_it_was(tmp_path):
    keep = tmp_path / "search.json"
    whole = Training(near(1.0))
    expected = aesam.search(whole, rho=(0.05, 0.1), keep=tmp_path / "whole.json")
    for last in range(len(whole.calls)):
        fails = Training(near(1.0))
        fails.score = lambda rho, seed, fails=fails: (
            raise_(KeyboardInterrupt()) if len(fails.calls) > 1 else near(1.0)(rho)
        )
        with pytest.raises(KeyboardInterrupt):
            aesam.search(fails, rho=(0.05, 0.1), keep=keep)
        assert len(json.loads(keep.read_text())["tried"]) == last + 1
        if last == len(whole.calls) - 2:
            break
    rest = Training(near(1.0))
    assert aesam.search(rest, rho=(0.05, 0.1), keep=keep) == expected
    assert rest.calls == whole.calls[-1:]
    assert keep.read_text() == (tmp_path / "whole.json").read_text()
    again = Training(near(1.0))
    assert aesam.search(again, rho=(0.05, 0.1), keep=str(keep)) == expected
    assert again.calls == []


KILLED = """
import os, sys, aesam

def train(rho, seed):
    if len(open(sys.argv[2]).read()) == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    open(sys.argv[2], "a").write(".")
    return float("nan") if rho > 5 else -(rho - 1.1) ** 2 - 0.1 * seed * rho

found = aesam.search(train, rho=(0.05, 0.1), keep=sys.argv[1])
print(found)
"""


@pytest.mark.slow
def test_a_search_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path):
    def run(name, stop):
        count = tmp_path / f"{name}.count"
        count.touch()
        words = [sys.executable, "-c", KILLED, tmp_path / name, count, str(stop)]
        return subprocess.run(words, capture_output=True, text=True, check=False), count

    undisturbed, count = run("whole", -1)
    assert undisturbed.returncode == 0, undisturbed.stderr
    trainings = len(count.read_text())
    for stop in (1, trainings - 1):
        killed, _ = run("killed", stop)
        assert killed.returncode == -9
    finished, count = run("killed", -1)
    assert finished.stdout == undisturbed.stdout
    assert len(count.read_text()) == trainings, "nothing was trained twice"
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        "whole", "whole.count", "killed", "killed.count",
    }  # fmt: skip


def test_more_seeds_and_values_add_to_what_is_kept(tmp_path):
    first, second = Training(near(0.1)), Training(near(0.1))
    aesam.search(first, rho=(0.05, 0.1, 0.2), seeds=(0,), keep=tmp_path / "kept")
    aesam.search(second, rho=(0.05, 0.1, 0.2, 0.3), seeds=(0, 1), keep=tmp_path / "kept")
    assert not set(first.calls) & set(second.calls)


DAMAGE = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "another file": lambda text: '{"rows": []}',
    "no object": lambda text: "[1]",
    "a number as all": lambda text: "3",
    "nested without end": lambda text: "[" * 100_000,
    "a score in words": lambda text: text.replace('"score": -', '"score": "-", "x": -', 1),
    "a score beyond all": lambda text: text.replace('"score": -', '"score": -Infinity, "x": -', 1),
    "a seed in words": lambda text: text.replace('"seed": 0', '"seed": "0"', 1),
    "a switch as a seed": lambda text: text.replace('"seed": 0', '"seed": true', 1),
    "a setting in words": lambda text: text.replace('"rho": 0', '"rho": "a", "y": 0', 1),
    "another setting": lambda text: text.replace('"rho": 0', '"tau": 0', 1),
    "no scores": lambda text: text.replace('"tried"', '"tired"'),
    "not text": lambda text: b"\xff\xfe\x00",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_and_left_as_it_is(damage, tmp_path):
    keep = tmp_path / "search.json"
    aesam.search(near(0.15), rho=(0.05, 0.1, 0.2), seeds=(0,), keep=keep)
    changed = DAMAGE[damage](keep.read_text())
    keep.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    before = keep.read_bytes()
    train = Training(near(0.15))
    with pytest.raises(ValueError, match=r"keep: .*search.json (is damaged|belongs)"):
        aesam.search(train, rho=(0.05, 0.1, 0.2), keep=keep)
    assert (keep.read_bytes(), train.calls) == (before, [])


def test_the_file_of_another_search_is_refused(tmp_path):
    keep = tmp_path / "search.json"

    def mine(rho, k=1):
        return near(0.1)(rho)

    def other(rho):
        return near(0.1)(rho)

    aesam.search(mine, rho=(0.05, 0.1, 0.2), keep=keep)
    for call, told in (
        (lambda: aesam.search(other, rho=(0.05, 0.1), keep=keep), "function is .*other"),
        (lambda: aesam.search(mine, rho=(0.1,), k=(1, 2), keep=keep), "settings is .*'k'"),
        (lambda: aesam.search(mine, rho=(0.1,), mode="min", keep=keep), "mode is 'min' here"),
    ):
        with pytest.raises(ValueError, match=f"belongs to another search: {told}"):
            call()
    newer = json.loads(keep.read_text()) | {"aesam_search": 99}
    keep.write_text(json.dumps(newer))
    with pytest.raises(ValueError, match="another version of aesam"):
        aesam.search(mine, rho=(0.05, 0.1), keep=keep)


def test_a_place_that_cannot_be_written_to_is_refused_before_any_training(tmp_path):
    train = Training(near(0.1))
    with pytest.raises(OSError, match="nowhere"):
        aesam.search(train, rho=(0.1,), keep=tmp_path / "nowhere/search.json")
    with pytest.raises(OSError, match=str(tmp_path)):
        aesam.search(train, rho=(0.1,), keep=tmp_path)
    assert train.calls == []


# Bad arguments -----------------------------------------------------------------------------------

BAD = {
    "nothing to search": ({}, ValueError, "name at least one setting"),
    "a number alone": ({"rho": 0.1}, TypeError, "rho must be values to start from"),
    "words": ({"rho": "0.1"}, TypeError, "rho must be values to start from"),
    "no values": ({"rho": ()}, ValueError, "rho must have at least one value"),
    "a value in words": ({"rho": ("a",)}, TypeError, "rho must be a finite number, got 'a'"),
    "a switch": ({"rho": (True,)}, TypeError, "rho must be a finite number, got True"),
    "not finite": ({"rho": (math.inf,)}, ValueError, "rho must be a finite number, got inf"),
    "below its bound": ({"rho": (-1.0,)}, ValueError, "rho must be at least 0, got -1.0"),
    "no keyword": ({"tau": (1,)}, ValueError, "takes no keyword tau"),
    "another mode": ({"rho": (1,), "mode": "best"}, ValueError, "mode must be .*got 'best'"),
    "a limit below 0": ({"rho": (1,), "limit": -1}, ValueError, "limit must be .*got -1"),
    "a limit in words": ({"rho": (1,), "limit": "x"}, TypeError, "limit must be .*got 'x'"),
    "fine in words": ({"rho": (1,), "fine": "rho"}, TypeError, "fine must be True .*got 'rho'"),
    "no seeds": ({"rho": (1,), "seeds": ()}, TypeError, r"seeds must be whole .*got \(\)"),
    "one seed alone": ({"rho": (1,), "seeds": 3}, TypeError, "seeds must be whole .*got 3"),
    "seeds in words": ({"rho": (1,), "seeds": ("a",)}, TypeError, "seeds must be a whole"),
    "bounds of another": ({"rho": (1,), "bounds": {"p": (0, 1)}}, ValueError, "bounds has p"),
    "bounds upside down": ({"rho": (1,), "bounds": {"rho": (1, 0)}}, ValueError, r"got \(1, 0\)"),
    "one bound": ({"rho": (1,), "bounds": {"rho": 3}}, ValueError, "bounds of rho .*got 3"),
    "a bound in words": ({"rho": (1,), "bounds": {"rho": ("a", 1)}}, TypeError, "bounds of rho"),
    "outside its bounds": ({"rho": (3,), "bounds": {"rho": (0, 1)}}, ValueError, "most 1, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name_and_value(case):
    given, kind, told = BAD[case]
    train = Training(near(0.1))
    with pytest.raises(kind, match=told):
        aesam.search(train, **given)
    assert train.calls == []


def test_what_is_no_function_or_no_score_is_refused():
    with pytest.raises(TypeError, match="train_and_validate must be a function, got 3"):
        aesam.search(3, rho=(0.1,))
    with pytest.raises(ValueError, match=r"takes no seed, so that seeds=\(0, 1\) mean nothing"):
        aesam.search(lambda rho: rho, rho=(0.1,), seeds=(0, 1))
    for score in (None, "90 %", torch.zeros(2), True):
        with pytest.raises(TypeError, match="what train_and_validate returns for {'rho': 0.1}"):
            aesam.search(lambda rho, score=score: score, rho=(0.1,))
