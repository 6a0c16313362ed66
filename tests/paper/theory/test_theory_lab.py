import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from aesam.lab.errors import UsageError
from aesam.paper.theory.bounds import (
    full_batch_bound,
    full_batch_gap,
    larger_step_bound,
    learning_rate,
    least_steps,
    mini_batch_bound,
    mini_batch_gap,
    radius,
    sam_bound,
)
from aesam.paper.theory.descent import (
    ADAPTIVE,
    ERM,
    HALF,
    PATTERNS,
    SAM,
    full_batch,
    mini_batch,
)
from aesam.paper.theory.experiment import (
    SIZES,
    Sizes,
    TheoryResult,
    compute,
    sizes_of,
    steps_and_patterns,
)
from aesam.paper.theory.lemmas import (
    all_batches,
    full_batch_lemma,
    mini_batch_lemma,
    variance_check,
)
from aesam.paper.theory.problems import (
    ShiftedCosines,
    problems,
    shifted_cosines,
    tilted_cosine,
    without_noise,
)
from aesam.paper.theory.sides import (
    FULL_BATCH,
    LARGER_STEP,
    MINI_BATCH,
    SAM_ALONE,
    full_batch_sides,
    larger_step_sides,
    mini_batch_sides,
    standard_error,
)
from aesam.paper.theory.theory_figures import figures
from aesam.paper.theory.theory_text import conclusions, text
from aesam.parts.policies import Always, Never

pytestmark = pytest.mark.slow
TINY = Sizes(
    full_steps=(5, 20),
    mini_steps=(16, 51),
    most_steps=51,
    larger_steps=(51,),
    counter_steps=(16, 256),
    repetitions=64,
    adaptive_steps=64,
    functions=3,
    points=20,
)
EACH_PROBLEM = pytest.mark.parametrize("problem", problems(), ids=lambda p: p.name)


@pytest.fixture(scope="module")
def tiny() -> TheoryResult:
    return compute("tiny", TINY)


@pytest.fixture(scope="module")
def drawn(tiny):
    return {drawing.name: drawing.svg for drawing in figures(tiny)}


# Problems: the constants are what they are said to be ---------------------------------------------


@EACH_PROBLEM
def test_gradients_are_those_of_the_losses(problem):
    draw = torch.Generator().manual_seed(0)
    size = (7, len(problem.start))
    w = torch.randn(size, generator=draw, dtype=torch.float64).requires_grad_()
    rows = torch.randint(problem.count, (7, 3), generator=draw)
    (full,) = torch.autograd.grad(problem.loss(w).sum(), w)
    (batch,) = torch.autograd.grad(problem.batch_loss(w, rows).sum(), w)
    at = w.detach()
    torch.testing.assert_close(problem.gradient(at), full)
    torch.testing.assert_close(problem.batch_gradient(at, rows), batch)


@EACH_PROBLEM
def test_the_loss_is_the_mean_of_the_samples(problem):
    w = problem.start + torch.randn(5, len(problem.start), dtype=torch.float64)
    everything = torch.arange(problem.count).expand(5, -1)
    torch.testing.assert_close(problem.batch_loss(w, everything), problem.loss(w))
    torch.testing.assert_close(problem.batch_gradient(w, everything), problem.gradient(w))


def curvatures(function, points):
    hessians = [torch.autograd.functional.hessian(function, w) for w in points]
    return [torch.linalg.eigvalsh(h).abs().max().item() for h in hessians]


@EACH_PROBLEM
def test_beta_is_an_upper_bound_and_is_reached(problem):
    draw = torch.Generator().manual_seed(0)
    points = 2 * torch.randn(60, len(problem.start), generator=draw, dtype=torch.float64)
    sample = torch.tensor([[problem.count - 1]])
    each = [lambda w: problem.batch_loss(w[None], sample)[0], lambda w: problem.loss(w[None])[0]]
    for function, beta in zip(each, (problem.beta, problem.full_beta), strict=True):
        met = curvatures(function, [torch.zeros_like(points[0]), *points])
        assert max(met) <= beta * (1 + 1e-9)
        assert max(met) >= 0.6 * beta


@EACH_PROBLEM
def test_no_gradient_noise_is_above_its_variance(problem):
    draw = torch.Generator().manual_seed(0)
    points = 3 * torch.randn(300, len(problem.start), generator=draw, dtype=torch.float64)
    met = problem.variance_at(torch.cat([torch.zeros_like(points[:1]), points]))
    assert met.max() <= problem.variance * (1 + 1e-9)
    if problem.name != "logistic regression":  # its variance is a bound only
        assert met.max() >= problem.variance * (1 - 1e-9)


# Right-hand sides and conditions, by hand ---------------------------------------------------------


def test_right_hand_sides_are_those_of_the_paper():
    # (2 − 1) / (10 · 0.1 · (1 − 2·0.1/2 − 2·0.2·0.5))
    assert full_batch_bound(1.0, beta=2.0, lr=0.1, rho=0.2, zeta=0.5, steps=10) == pytest.approx(
        1 / 0.7
    )
    # 32·2·0.5/(10·4) + (1 + ½ + 5·4·½)·3/(4·10·4)
    known = {"beta": 2.0, "variance": 3.0, "batch": 4, "steps": 100}
    assert mini_batch_bound(0.5, zeta=0.5, **known) == pytest.approx(0.8 + 0.215625)
    # 32·2·0.5/√400/4 + (1 + ½ + 5·4·½)·3/√400/4
    assert larger_step_bound(0.5, zeta=0.5, **known) == pytest.approx(0.4 + 0.43125)
    # 32·2·0.5/10 + (2 + 5·4)·3/(4·10)
    assert sam_bound(0.5, **known) == pytest.approx(3.2 + 1.65)
    assert sam_bound(0.5, **known) == pytest.approx(mini_batch_bound(0.5, zeta=1.0, **known))
    assert learning_rate(2.0, 100) == pytest.approx(1 / 80)
    assert learning_rate(2.0, 100, batch=16) == pytest.approx(1 / 20)
    assert radius(16) == 0.5


def test_few_steps_a_large_batch_and_a_policy_that_looks_are_not_claimed():
    assert least_steps(3.0) == 4096.0
    assert "4096" in mini_batch_gap(beta=3.0, steps=4095, by_batch=False)
    assert mini_batch_gap(beta=3.0, steps=4096, by_batch=False) is None
    assert "batch" in mini_batch_gap(beta=3.0, steps=4096, by_batch=True)
    assert "b = 32" in mini_batch_gap(beta=0.5, steps=16, by_batch=False, largest_batch=32)
    assert "ρ" in full_batch_gap(beta=1.0, lr=0.1, rho=0.5)
    assert "η" in full_batch_gap(beta=1.0, lr=1.0, rho=0.1)
    assert full_batch_gap(beta=1.0, lr=0.99, rho=0.49) is None


def test_a_larger_batch_than_steps_is_marked():
    sides = larger_step_sides(tilted_cosine(0.5, 0.1, 1.0), ERM, 8, batch=16, repetitions=2)
    assert sides.gap == "b = 16 is above T = 8"
    assert sides.verdict.startswith("not claimed")


# Runs ---------------------------------------------------------------------------------------------


def test_the_counter_example_has_the_two_numbers():
    theorem_itself, corollary = mini_batch_sides(without_noise(), SAM, 16, batch=1, repetitions=1)
    assert theorem_itself.left == pytest.approx(0.92, abs=0.005)
    assert theorem_itself.right == pytest.approx(-5.3, abs=0.05)
    assert theorem_itself.verdict == "not claimed, fails"
    assert theorem_itself.ratio is None
    assert theorem_itself.decrease < 0  # SAM climbs
    assert (corollary.bound, corollary.right) == (SAM_ALONE, pytest.approx(theorem_itself.right))


def test_one_step_of_sam_is_the_one_computed_by_hand():
    done = full_batch(without_noise(), Always(), lr=0.1, rho=0.5, steps=1)
    g = -3 * math.sin(0.5)
    after = 0.5 - 0.1 * (-3 * math.sin(0.5 + 0.5 * g))
    assert done.squares.tolist() == [[pytest.approx(g**2)]]
    assert done.decreases == pytest.approx(3 * math.cos(0.5) - 3 * math.cos(after))
    assert done.zetas.tolist() == [1.0]


def test_repetitions_side_by_side_are_sam_steps_of_their_own():
    seen = []

    class Recorded(ShiftedCosines):
        def batch_gradient(self, w, rows):
            seen.append(rows)
            return super().batch_gradient(w, rows)

    problem = shifted_cosines(3)
    done = mini_batch(
        Recorded(**vars(problem)),
        Always(),
        lr=0.3,
        rho=0.4,
        steps=6,
        batch=2,
        repetitions=3,
        seed=5,
    )
    assert all(torch.equal(*pair) for pair in zip(seen[::2], seen[1::2], strict=True))
    for place in range(3):
        w = problem.start[None]
        for t, rows in enumerate(seen[::2]):
            own = rows[place : place + 1]
            assert done.squares[t, place] == pytest.approx(problem.gradient(w).square().sum())
            g = problem.batch_gradient(w, own)
            w = w - 0.3 * problem.batch_gradient(w + 0.4 * g, own)
        decrease = problem.loss(problem.start[None]) - problem.loss(w)
        assert done.decreases[place] == pytest.approx(decrease.item())


def test_steps_have_the_mean_and_the_spread_of_batches_drawn_with_replacement():
    problem = tilted_cosine(1.0, sigma=2.0, start=1.0)
    done = mini_batch(problem, Never(), lr=0.1, rho=0.0, steps=1, batch=4, repetitions=4000, seed=0)
    moved = np.arccos(math.cos(1.0) - done.decreases) - 1.0
    assert moved.mean() == pytest.approx(0.1 * math.sin(1.0), abs=4 * 0.1 / 4000**0.5)
    assert moved.std() == pytest.approx(0.1 * 2.0 / math.sqrt(4), rel=0.05)  # η σ/√b


def test_every_claimed_bound_holds_in_a_tiny_size(tiny):
    assert tiny.broken == ()
    claimed = [row for row in tiny.rows if row.claimed]
    assert {row.bound for row in claimed} == {FULL_BATCH, MINI_BATCH, SAM_ALONE, LARGER_STEP}
    assert {row.verdict for row in claimed} == {"holds"}
    full = [row for row in claimed if row.bound == FULL_BATCH]
    assert {row.policy for row in full} == {pattern.label for pattern in PATTERNS}


def test_what_is_not_claimed_is_marked_with_its_reason(tiny):
    mini = [row for row in tiny.rows if row.bound == MINI_BATCH]
    for row in mini:
        few = row.steps < least_steps(row.beta)
        assert row.claimed == (not few and row.policy != ADAPTIVE.label)
        assert row.verdict.startswith("not claimed") != row.claimed
    assert any(row.gap and "depends on the batch" in row.gap for row in mini)


def test_a_problem_that_needs_more_steps_gets_them():
    planned = dict(steps_and_patterns(without_noise(), replace(TINY, most_steps=4096)))
    assert planned == {16: PATTERNS, 51: PATTERNS, 4096: (ERM, HALF, SAM)}
    assert list(dict(steps_and_patterns(without_noise(), TINY))) == [16, 51]


def test_expectations_say_of_how_many_runs_and_how_sure(tiny):
    mini = [row for row in tiny.rows if row.bound == MINI_BATCH]
    assert {r.n for r in mini if r.policy != ADAPTIVE.label} == {64}
    assert {r.n for r in mini if r.policy == ADAPTIVE.label} == {4}
    assert all(row.error > 0 for row in mini)
    assert standard_error(np.asarray([1.0, 3.0])) == pytest.approx(1.0)


# A broken bound is seen ---------------------------------------------------------------------------


def test_a_wrong_beta_breaks_the_full_batch_bound_and_is_reported(tiny):
    flatter = replace(tilted_cosine(3.0, 0.0, 0.5), full_beta=0.9)
    wrong = full_batch_sides(flatter, SAM, 10)
    assert wrong.claimed
    assert wrong.verdict == "BROKEN"
    told = replace(tiny, rows=(*tiny.rows, wrong))
    assert told.broken == (wrong,)
    said = conclusions(told)
    assert "BROKEN" in said[0]
    assert "BROKEN where it is claimed: full-batch theorem on 3 cos w, T = 10" in "\n".join(said)
    assert len(told.as_json()["broken"]) == 1


def test_a_wrong_beta_breaks_the_lemmas():
    flatter = replace(tilted_cosine(3.0, 0.1, 0.5), full_beta=1.0)
    assert not full_batch_lemma([flatter], 0.5, 100).holds
    steeper = shifted_cosines(0)
    flatter = replace(steeper, beta=steeper.beta / 20)
    assert not mini_batch_lemma([flatter], 0.4, 100, 1).holds


def test_a_wrong_variance_is_seen():
    assert not variance_check(replace(problems()[1], variance=0.2), batch=1, points=2).holds


def test_a_difference_within_the_noise_is_neither_held_nor_broken(tiny):
    row = next(row for row in tiny.rows if row.bound == MINI_BATCH and row.claimed)
    near = replace(row, left=1.0, right=0.9, error=0.05)
    assert near.verdict == "undecided"
    assert replace(near, error=0.01).verdict == "BROKEN"
    assert replace(near, right=1.1, error=0.01).verdict == "holds"


# Lemmas and the variance identity -----------------------------------------------------------------


def test_the_full_batch_lemma_is_tight_on_top_of_a_cosine():
    check = full_batch_lemma([tilted_cosine(3.0, 0.0, 0.0)], 0.5, 2000)
    assert check.holds
    assert check.smallest < 1e-3


def test_lemmas_hold_on_random_functions(tiny):
    assert all(check.holds for check in tiny.lemmas)
    assert {check.functions for check in tiny.lemmas} == {1, TINY.functions}


def test_all_batches_are_those_drawn_with_replacement():
    assert all_batches(3, 2).tolist() == [[i, j] for i in range(3) for j in range(3)]


@EACH_PROBLEM
def test_variance_is_the_mean_squared_norm_less_the_squared_mean(problem):
    check = variance_check(problem, batch=2, points=2)
    assert check.holds
    assert check.left == pytest.approx(check.right, rel=1e-9)
    assert check.batches == problem.count**2


# What is handed out -------------------------------------------------------------------------------


def test_json_is_valid_without_nan_and_has_every_number(tiny):
    text = json.dumps(tiny.as_json(), allow_nan=False)
    read = json.loads(text)
    assert len(read["rows"]) == len(tiny.rows)
    wanted = {"problem", "steps", "zeta", "policy", "left", "right", "ratio", "claimed", "n"}
    assert wanted <= read["rows"][0].keys()
    assert read["counter_example"][0]["ratio"] is None
    assert read["counter_example"][0]["gap"] == "T = 16 is below (8β/3)⁴ = 4096"


def test_text_says_where_the_bounds_hold_and_where_not(tiny):
    shown, said = text(tiny), "\n".join(conclusions(tiny))
    assert "0.92 on the left and −5.3 on the right" in said
    assert "T ≥ (8β/3)⁴" in said
    assert "At its tightest" in said
    assert max(map(len, shown.splitlines())) <= 100
    assert "nan" not in shown.lower()


def test_figures_are_svg_with_labelled_axes(drawn):
    shown = {name: "\n".join(ElementTree.fromstring(svg).itertext()) for name, svg in drawn.items()}
    over_steps = [name for name in shown if "ratio" not in name and "lemmas" not in name]
    assert len(over_steps) == 2 * len(problems()) + 1
    for name in over_steps:
        assert "number of steps T" in shown[name]
        assert "‖∇L‖²" in shown[name]
    for name in ("theory-full-batch-ratio", "theory-mini-batch-ratio"):
        assert "share ζ of steps that use SAM" in shown[name]
        assert "/ bound, T =" in shown[name]
    assert "radius ρβ" in shown["theory-lemmas"]
    assert "−5.3" in shown["theory-counter-example"]
    assert all("mathdefault" not in text for text in shown.values())


def test_figures_have_headings_and_captions(tiny):
    headings = [drawing.heading for drawing in figures(tiny)]
    assert "Full-batch theorem: least squares" in headings
    assert len(set(headings)) == len(headings)
    assert all(drawing.caption.endswith(".") for drawing in figures(tiny))


def test_figures_have_the_methods_colours(drawn):
    svg = drawn["theory-mini-batch-least-squares"].lower()
    for colour in ("#000000", "#0072b2", "#e69f00", "#d55e00"):
        assert colour in svg


def test_progress_counts_to_the_end():
    calls = []
    smallest = replace(
        TINY, full_steps=(1,), mini_steps=(1,), most_steps=1, larger_steps=(1,), repetitions=1
    )
    compute("smallest", smallest, lambda done, total: calls.append((done, total)))
    total = calls[0][1]
    assert calls == [(done, total) for done in range(1, total + 1)]


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="unknown preset 'smal': did you mean small"):
        sizes_of("smal")
    assert {"small", "paper"} <= SIZES.keys()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tilted_cosine(0.0, 1.0, 0.0), "beta must be"),
        (lambda: tilted_cosine(1.0, -1.0, 0.0), "sigma must be"),
        (lambda: shifted_cosines(-1), "seed must be"),
        (lambda: radius(0), "steps must be"),
        (lambda: full_batch(without_noise(), Never(), lr=0.1, rho=0.1, steps=0), "steps must be"),
        (lambda: all_batches(2, 0), "batch must be"),
    ],
)
def test_a_bad_number_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
