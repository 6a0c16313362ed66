"""Steps that wait for the device once, tried where nothing counts as being in the host's memory.

On a CPU there is nothing to wait for, and numbers are read when they are made. Here they are not:
every gradient is taken for one on a device, and each transfer is counted.
"""

import copy
import math
from collections import Counter

import pytest
import torch
from support.host_waits import waits
from support.problems import BASES, METHODS, VARIANTS, Problem, mlp
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import aesam
from aesam._core import tensors
from aesam.parts.ascents import AlongGradient, RandomSubset
from aesam.parts.chosen_ascents import Named
from aesam.parts.combine import Mix, Replace
from aesam.parts.composed import AllOf, Composed, Warmup
from aesam.parts.part import Direction, on_device
from aesam.parts.policies import (
    Adaptive,
    Always,
    Bernoulli,
    Decision,
    Late,
    Never,
    Periodic,
    Policy,
    Scheduled,
)

RADIUS = 0.3


@pytest.fixture(autouse=True)
def _away(monkeypatch):
    monkeypatch.setattr(tensors, "is_here", lambda _: False)


def assembled(policy):
    return lambda base, model=None, **o: aesam.SharpnessAware(base, model, policy=policy, **o)


def named(base, model=None, **options):
    """SAM along what is chosen by name, as SAM-ON's is by its layer."""
    ascent = Named("*.weight, *weights.0")
    return aesam.SharpnessAware(base, model, policy=Always(), ascent=ascent, **options)


def subset(base, model=None, **options):
    """SAM along tensors that are drawn, as ESAM does."""
    ascent = RandomSubset(beta=0.5, seed=3)
    return aesam.SharpnessAware(base, model, policy=Always(), ascent=ascent, **options)


class Unmarked(AlongGradient):
    def direction(self, gradient, memory, generator):
        return Direction(gradient.params, gradient.values, gradient.radii, gradient.norm)


def unmarked(base, model):
    return aesam.SharpnessAware(base, model, policy=Always(), ascent=Unmarked())


#: Methods that wait once, with a second gradient and without.
ONCE = {
    "sam": aesam.SAM,
    "ss-sam": METHODS["ss-sam"],
    "periodic": assembled(Periodic(2)),
    "late": assembled(Late(0.5, total_steps=10)),
    "scheduled": assembled(Scheduled(lambda t: 0.5, seed=1)),
    "members": assembled(Warmup(Bernoulli(0.5, seed=2) | ~Periodic(2), steps=1)),
    "compensated": assembled(Periodic(2)),
    "gnp": aesam.GNP,
    "gsam": aesam.GSAM,
    "wsam": aesam.WSAM,
    "looksam": METHODS["looksam"],
    "vasso": aesam.VaSSO,
    "f-sam": aesam.FSAM,
    "asam": aesam.ASAM,
    "fisher-sam": aesam.FisherSAM,
    "sam-on": named,
    "esam": subset,
    "le-sam": aesam.LESAM,
    "erm": METHODS["erm"],
}

#: Of those that need numbers in between: how many transfers a step with a second gradient has.
MORE = {
    "ae-sam": (METHODS["ae-sam"], 2),
    "an ascent without the mark": (unmarked, 2),
}


@pytest.fixture
def transfers(monkeypatch):
    made, to_host = [], tensors.to_host
    monkeypatch.setattr(tensors, "to_host", lambda v: made.append(len(v)) or to_host(v))
    return made


class Factors(TorchDispatchMode):
    """Notes each number on the device that a list of tensors is multiplied by, with the list."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._foreach_mul, torch.ops.aten._foreach_mul_):
            self.found += [args] if isinstance(args[1], torch.Tensor) else []
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["sam", "looksam"])
def test_a_factor_has_the_dtype_of_what_it_multiplies(method):
    """Else a GPU has an operation for each tensor, where one for all would do."""
    model = mlp().float()
    opt = (METHODS | VARIANTS)[method](BASES["sgd"](model.parameters()), model, rho=RADIUS)
    with Factors() as factors:
        for _ in range(2):
            opt.step(lambda: opt.zero_grad() or _backward(model(torch.ones(4, 3)).square().sum()))
    assert factors.found
    for values, factor in factors.found:
        assert {v.dtype for v in values} == {factor.dtype}


def _backward(loss):
    loss.backward()
    return loss


@pytest.mark.parametrize("method", ONCE)
def test_a_policy_that_does_not_look_at_the_norm_waits_once_a_step(method, transfers):
    model = mlp()
    options = {"compensate": 3.0} if method == "compensated" else {}
    opt = ONCE[method](torch.optim.SGD(model.parameters(), lr=0.01), model, **options)
    problem, seen = Problem(model), Counter()
    for t in range(10):
        count, needed = waits(opt, problem, t, transfers)
        assert count == 1
        assert math.isfinite(opt.last_step.squared_norm)
        seen[needed] += 1
    always = {"sam", "gnp", "gsam", "wsam", "vasso", "f-sam", "asam", "fisher-sam"}
    always |= {"sam-on", "esam", "le-sam"}
    assert set(seen) == (
        {True} if method in always else {False} if method == "erm" else {True, False}
    )


@pytest.mark.parametrize("method", MORE)
def test_parts_that_need_numbers_in_between_wait_for_them(method, transfers):
    make, expected = MORE[method]
    model = mlp()
    opt = make(torch.optim.SGD(model.parameters(), lr=0.01), model)
    problem = Problem(model)
    counts = [waits(opt, problem, t, transfers) for t in range(10)]
    assert {count for count, needed in counts if needed} == {expected}
    assert {count for count, needed in counts if not needed} <= {1}


# The same steps ---------------------------------------------------------------------------------


def trained(make, form, base, monkeypatch, here):
    with monkeypatch.context() as patch:
        patch.setattr(tensors, "is_here", lambda _: here)
        model = nn.Sequential(nn.LayerNorm(3).double(), mlp())
        groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "rho": 0.7}]
        opt, problem = make(BASES[base](groups), model, rho=RADIUS), Problem(model)
        for t in range(8):
            problem.step(opt, t) if form == "closure" else problem.own_passes(opt, t)
    return [p.detach() for p in model.parameters()], opt


@pytest.mark.parametrize("form", ["closure", "own passes"])
@pytest.mark.parametrize("method", [*METHODS, *VARIANTS])
def test_every_step_is_what_it_is_in_the_host_s_memory(method, form, monkeypatch):
    make = (METHODS | VARIANTS)[method]
    here, expected = trained(make, form, "sgd", monkeypatch, here=True)
    away, opt = trained(make, form, "sgd", monkeypatch, here=False)
    for a, b in zip(here, away, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    assert opt.last_step.squared_norm == pytest.approx(expected.last_step.squared_norm, rel=1e-10)
    assert opt.sam_fraction == expected.sam_fraction


KINDS = {
    "float64": {"dtype": torch.float64},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "complex": {"dtype": torch.complex64},
    "maximize": {"dtype": torch.float64, "maximize": True},
    "unnormalised": {"dtype": torch.float64, "normalize": False},
    "sparse": {"dtype": torch.float64, "sparse": True},
}


#: Ascents that make their direction, or its length, on the device.
ASCENTS = {
    "sam": aesam.SAM,
    "asam": aesam.ASAM,
    "fisher-sam": aesam.FisherSAM,
    "f-sam": aesam.FSAM,
    "vasso": aesam.VaSSO,
    "sam-on": named,
    "esam": subset,
    "le-sam": aesam.LESAM,
    "le-sam, within rho": lambda *given, **options: aesam.LESAM(*given, rise=1e3, **options),
}


def without_rise(base, model, **options):
    """0/0 where the gradient is zero."""
    return aesam.LESAM(base, model, rise=0.0, **options)


def displaced(kind, here, monkeypatch, make, size=1.0):
    """Where a step takes its second gradient, of two groups with radii of their own; the second."""
    options = dict(KINDS[kind])
    dtype, sparse = options.pop("dtype"), options.pop("sparse", False)
    maximize = options.pop("maximize", False)
    monkeypatch.setattr(tensors, "is_here", lambda _: here)
    draw = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(4, 3, generator=draw).to(dtype)) for _ in range(3)]
    groups = [{"params": params[:2], "rho": 0.5}, {"params": params[2:], "rho": 2.0}]
    model = nn.Module()
    model.weights = nn.ParameterList(params)
    opt = make(torch.optim.SGD(groups, lr=0.0, maximize=maximize), model, **options)
    for _ in range(2):
        grads = [(size * torch.randn(4, 3, generator=draw)).to(dtype) for _ in params]
        for p, g in zip(params, grads, strict=True):
            p.grad = g.to_sparse() if sparse else g.clone()
        assert opt.needs_second_pass()
        with opt.perturbed():
            away = [p.detach().clone() for p in params]
            for p in params:
                p.grad = torch.ones_like(p)
        opt.step()
    assert opt.last_step.index == 1
    return away


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ascent", ASCENTS)
def test_weights_are_moved_as_from_the_host(ascent, kind, monkeypatch):
    if kind == "sparse" and ascent in {"asam", "fisher-sam", "f-sam", "vasso"}:
        kind = "float32"  # which these refuse
    expected = displaced(kind, True, monkeypatch, ASCENTS[ascent])
    for a, b in zip(expected, displaced(kind, False, monkeypatch, ASCENTS[ascent]), strict=True):
        unit = torch.finfo(a.dtype).eps  # ε is rounded before it is added
        torch.testing.assert_close(a, b, rtol=2 * unit, atol=2 * unit)


@pytest.mark.parametrize("size", [1e30, 1e22, 1e-22, 1e-30])
@pytest.mark.parametrize("ascent", ASCENTS)
def test_gradients_of_any_size_move_the_weights_as_in_64_bits(ascent, size, monkeypatch):
    expected = displaced("float64", True, monkeypatch, ASCENTS[ascent], size)
    for a, b in zip(
        expected, displaced("float32", False, monkeypatch, ASCENTS[ascent], size), strict=True
    ):
        torch.testing.assert_close(a.float(), b, rtol=2e-3, atol=2e-3)  # denormals have few bits


@pytest.mark.parametrize("size", [1e30, 1e22, 1e-22, 1e-30, 1e-41])
def test_squares_that_float32_cannot_hold_are_summed_in_more_bits(size, transfers):
    w = nn.Parameter(torch.zeros(2, 2))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.0), rho=2.0)
    for _ in range(2):
        w.grad = torch.full((2, 2), size)
        assert opt.needs_second_pass()
        with opt.perturbed():
            torch.testing.assert_close(w.detach(), torch.ones(2, 2), rtol=1e-3, atol=0.0)
            w.grad = torch.ones(2, 2)
        opt.step()
    assert len(transfers) == 2
    assert opt.last_step.squared_norm == pytest.approx((2 * w.new_tensor(size).item()) ** 2)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("make", [*ASCENTS.values(), without_rise], ids=[*ASCENTS, "no rise"])
def test_a_gradient_of_zero_stays_at_w_and_is_a_step(make, normalize):
    w = nn.Parameter(torch.ones(2))
    model = nn.Module()
    model.weights = nn.ParameterList([w])
    opt = make(torch.optim.SGD([w], lr=0.5), model, rho=2.0, normalize=normalize)
    w.grad = torch.zeros(2)
    assert opt.needs_second_pass()
    with opt.perturbed():
        assert w.tolist() == [1.0, 1.0]
        w.grad = torch.ones(2)
    opt.step()
    assert (w.tolist(), opt.last_step.squared_norm) == ([0.5, 0.5], 0.0)


@pytest.mark.parametrize("size", [0.0, 1e-170])
@pytest.mark.parametrize("here", [True, False], ids=["in memory", "away"])
def test_a_gradient_of_zero_leaves_the_reused_direction_as_it_was(here, size, monkeypatch):
    monkeypatch.setattr(tensors, "is_here", lambda _: here)
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=0.0), k=1, rho=2.0)
    for first in ([3.0, 4.0], [size, 0.0]):
        w.grad = torch.tensor(first, dtype=torch.float64)
        assert opt.needs_second_pass()
        with opt.perturbed():
            w.grad = torch.tensor([1.0, 3.0], dtype=torch.float64)
        opt.step()
        kept = opt._ledger.committed.memory("between")
        torch.testing.assert_close(kept.tensors[w], w.new_tensor([-0.8, 0.6]))
        assert kept.number("norm") == pytest.approx(1.0)
    assert opt.last_step.index == 1


def test_nothing_but_rounding_beside_an_average_is_no_direction():
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = aesam.FSAM(torch.optim.SGD([w], lr=0.0), rho=2.0)
    for first, moves in ((1.0, True), (math.nextafter(1.0, 2.0), False)):
        w.grad = torch.tensor([first, 2.0], dtype=torch.float64)
        assert opt.needs_second_pass()
        with opt.perturbed():
            assert (w.tolist() != [1.0, 1.0]) is moves
            w.grad = torch.ones_like(w)
        opt.step()


def test_vectors_that_a_part_keeps_are_not_written_to():
    kept = torch.tensor([3.0, 4.0])

    class AlongKept(AlongGradient):
        @on_device
        def direction(self, gradient, memory, generator):
            return Direction(gradient.params, [kept], gradient.radii, gradient.length)

    w = nn.Parameter(torch.zeros(2))
    opt = aesam.SharpnessAware(
        torch.optim.SGD([w], lr=0.1), policy=Always(), ascent=AlongKept(), rho=1.0
    )
    w.grad = torch.tensor([0.0, 5.0])
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach(), torch.tensor([0.6, 0.8]))
        w.grad = torch.ones(2)
    assert kept.tolist() == [3.0, 4.0]


# Gradients that are not finite ------------------------------------------------------------------

FORMS = ["closure", "own passes", "scaler", "scaler, own passes", "replay", "replay, scaler"]
NOT_FINITE = [*ASCENTS, "gsam", "wsam", "looksam", "ss-sam"]
BAD = [math.nan, math.inf, -math.inf]


class Spoiled(nn.Module):
    """A model whose loss makes one number of the gradient bad, in the first forward or in all."""

    def __init__(self):
        super().__init__()
        self.net, self.factor, self.once, self.seen = mlp().float(), 1.0, False, []

    def forward(self, x, y):
        self.seen.append([p.detach().clone() for p in self.parameters()])
        loss = (self.net(x) - y).square().sum(1).mean() / 2
        factor, self.factor = self.factor, 1.0 if self.once else self.factor
        return loss + (factor - 1.0) * self.net[0].bias[1] if factor != 1.0 else loss


def take(opt, form, x, y, scaling):
    """One step in a form; the passes it ran at are in ``model.seen``."""
    model = opt.model

    def backward():
        loss = model(x, y)
        (scaling.scale(loss) if scaling else loss).backward()
        return loss

    def closure():
        opt.zero_grad()
        return backward()

    if form in ("closure", "scaler"):
        opt.step(closure, scaler=scaling) if scaling else opt.step(closure)
    elif form.startswith("replay"):
        closure()
        scaling.step(opt) if scaling else opt.step()
    else:
        closure()
        if opt.needs_second_pass(grad_scale=scaling.get_scale() if scaling else 1.0):
            with opt.perturbed():
                backward()
        scaling.step(opt) if scaling else opt.step()
    if scaling:
        scaling.update()


@pytest.mark.parametrize("once", [False, True], ids=["in both passes", "in the first"])
@pytest.mark.parametrize("method", NOT_FINITE)
@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_that_is_not_finite_leaves_no_trace(form, method, once):
    if once and form.startswith("replay"):
        once = False  # what is recorded is run again as it was
    model = Spoiled()
    make = (METHODS | VARIANTS | ASCENTS)[method]
    options = {"replay": True} if form.startswith("replay") else {}
    options |= {"p": 1.0} if method == "ss-sam" else {"k": 1} if method == "looksam" else {}
    opt = make(BASES["sgd"](model.parameters()), model, rho=RADIUS, **options)
    scaling = torch.amp.GradScaler("cpu", init_scale=64.0) if "scaler" in form else None
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 3, generator=draw), torch.randn(8, 2, generator=draw)
    take(opt, form, x, y, scaling)
    before = copy.deepcopy((model.state_dict(), opt.state_dict()))
    last, skipped = opt.last_step, opt.skipped_steps
    for i, bad in enumerate(BAD):
        model.factor, model.once, model.seen = bad, once, []
        if i == 0 and "scaler" not in form:
            with pytest.warns(UserWarning, match="infinite or NaN"):
                take(opt, form, x, y, scaling)
        else:
            take(opt, form, x, y, scaling)
        for weights in model.seen:  # both passes were at w, to the bit
            torch.testing.assert_close(weights, model.seen[0], rtol=0, atol=0)
        model.factor = 1.0
    after = (model.state_dict(), opt.state_dict())
    torch.testing.assert_close(before[0], after[0], rtol=0, atol=0)
    same_state(before[1], after[1])
    # A scaler that sees it first does not call step: the next decision tells, or nobody does.
    counted = {"scaler, own passes": 2, "replay, scaler": 0}.get(form, 3)
    assert (opt.last_step, opt.skipped_steps) == (last, skipped + counted)
    if scaling:
        assert scaling.get_scale() == 64.0 / 8  # it saw all three
    take(opt, form, x, y, scaling)
    assert opt.last_step.index == 1


def same_state(left, right):
    """Equal but for the count of skipped steps."""
    for key, a in left["state"].items():
        for name, value in a.items():
            torch.testing.assert_close(value, right["state"][key][name], rtol=0, atol=0)
    for a, b in zip(left["param_groups"], right["param_groups"], strict=True):
        for name, value in a.items():
            if not (isinstance(value, dict) or name.startswith("aesam")):
                assert value == b[name]


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_gradient_that_is_not_finite_raises_where_asked(form):
    model = Spoiled()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model, nonfinite="raise")
    model.factor = math.nan
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(aesam.NonFiniteGradient, match="step 0"):
        take(opt, form, torch.ones(4, 3), torch.ones(4, 2), None)
    torch.testing.assert_close(before, model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("policy", [Never(), Periodic(2)])
def test_a_step_without_a_second_gradient_sees_it_at_the_decision(policy):
    w = nn.Parameter(torch.ones(2))
    opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=0.1), policy=policy)
    for bad in (1.0, math.nan):
        w.grad = torch.tensor([1.0, bad])
        if opt.needs_second_pass():
            with opt.perturbed():
                w.grad = torch.ones(2)
        elif math.isnan(bad):
            with pytest.warns(UserWarning, match="infinite or NaN"):
                opt.step()
            continue
        opt.step()
    assert (opt.last_step.index, opt.skipped_steps) == (0, 1)


def test_parts_that_ask_for_numbers_are_not_shown_a_gradient_that_is_not_finite():
    shown = []

    class Asking(Replace):
        def combine(self, first, params, second, memory, generator):
            shown.append(first.norm)

    w = nn.Parameter(torch.ones(2))
    opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=0.1), policy=Always(), combine=Asking())
    for number in (math.inf, 3.0):
        w.grad = torch.tensor([0.0, number])
        assert opt.needs_second_pass()
        with opt.perturbed():
            w.grad = torch.ones(2)
        if number == 3.0:
            opt.step()
    assert shown == [3.0]


# Gradients that were changed --------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False], ids=["with the scale", "without it"])
def test_gradients_that_were_unscaled_are_refused_when_the_second_are_there(given):
    model = mlp()
    problem, scaling = Problem(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    before = copy.deepcopy(model.state_dict())
    scaling.scale(problem.losses(0).mean()).backward()
    scaling.unscale_(opt)
    assert opt.needs_second_pass(grad_scale=1024.0 if given else 1.0)
    match = "unscaled between backward" if given else "the gradients were changed"
    with pytest.raises(RuntimeError, match=match), opt.perturbed():
        scaling.scale(problem.losses(0).mean()).backward()
    torch.testing.assert_close(before, model.state_dict(), rtol=0, atol=0)
    assert opt.last_step is None


# Who looks --------------------------------------------------------------------------------------


class Loud(Always):
    def decide(self, now, state):
        return Decision(now.squared_norm > 0.0), state


class Quiet(Always):
    looks_at_norm = False

    def decide(self, now, state):
        return Decision(True), state


class Own(Composed):
    def members(self):
        return (Always(),)

    def fires(self, now, wanted):
        return now.squared_norm > 0.0


LOOKS = {
    Always(): False,
    Never(): False,
    Bernoulli(): False,
    Periodic(): False,
    Late(): False,
    Adaptive(): True,
    Policy(): True,
    Loud(): True,
    Quiet(): False,
    Always() & Periodic(2): False,
    Always() | Adaptive(): True,
    ~Adaptive(): True,
    Warmup(Periodic(2), 3): False,
    Warmup(Loud(), 3): True,
    AllOf((Always(), Loud() | Never())): True,
    Own(): True,
}


@pytest.mark.parametrize("policy", LOOKS, ids=lambda p: type(p).__name__)
def test_a_policy_looks_at_the_norm_unless_it_says_that_it_does_not(policy):
    assert policy.looks_at_norm is LOOKS[policy]


@pytest.mark.parametrize("policy", [Loud(), Own(), Always() & Loud()], ids=["loud", "own", "all"])
def test_a_policy_of_someone_else_is_shown_the_norm(policy):
    w = nn.Parameter(torch.ones(2))
    opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=0.1), policy=policy)
    w.grad = torch.ones(2)
    assert opt.needs_second_pass()
    w.grad = torch.tensor([math.nan, 1.0])
    assert not opt.needs_second_pass()


def test_the_mark_of_a_method_is_not_that_of_the_one_in_its_place():
    class Longer(AlongGradient):
        def direction(self, gradient, memory, generator):
            length = gradient.norm / 2.0
            return Direction(gradient.params, gradient.values, gradient.radii, length)

    class Half(Mix):
        def combine(self, first, params, second, memory, generator):
            second[0].mul_(first.norm)

    w = nn.Parameter(torch.zeros(2))
    base = torch.optim.SGD([w], lr=0.1)
    opt = aesam.SharpnessAware(base, policy=Always(), ascent=Longer(), combine=Half(), rho=1.0)
    assert not opt.parts.ascend_on_device
    assert not opt.parts.finish_on_device
    w.grad = torch.tensor([3.0, 4.0])
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach(), torch.tensor([1.2, 1.6]))
        w.grad = torch.ones(2)
    assert w.grad.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("method", ["sam", "gsam"])
def test_a_number_that_someone_fetched_early_changes_no_bit(method):
    """A recording that is checked now and then does: what is resumed is checked elsewhere."""
    ends = []
    for early in (False, True):
        model = mlp()
        opt = (METHODS | VARIANTS)[method](BASES["sgd"](model.parameters()), model, rho=RADIUS)
        problem = Problem(model)
        for t in range(3):
            problem.losses(t).mean().backward()
            assert opt.needs_second_pass()
            if early:
                opt._ledger.pending.numbers.fetch()
            with opt.perturbed():
                problem.losses(t).mean().backward()
            opt.step()
            opt.zero_grad()
        ends.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(*ends, rtol=0, atol=0)
