"""After an interrupt at any line of a step the weights are home and training goes on."""

import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support.interrupts import BETWEEN, OURS, TORCH, Lines
from support.problems import METHODS, VARIANTS, Problem, same, stochastic_net, weights

import aesam

EVERY = METHODS | VARIANTS | {"bi-lora": aesam.BiLoRA}
BEFORE, AFTER = 2, 2  # steps before the one that is interrupted, and after it


class Counted(torch.optim.SGD):
    """Counts the updates that returned."""

    returned = 0

    def step(self, closure=None):
        super().step(closure)
        self.returned += 1


class OfLosses(torch.nn.Module):
    """A model that returns the loss, as those of Transformers do."""

    def __init__(self):
        super().__init__()
        self.net = stochastic_net()

    def forward(self, x, y):
        return (self.net(x) - y).square().sum(1).mean() / 2


def by_closure(problem, opt, t):
    problem.step(opt, t)


def by_own_passes(problem, opt, t):
    opt.zero_grad()
    problem.own_passes(opt, t)


def bare(problem, opt, t):
    opt.zero_grad()
    problem.model(problem.x[t], problem.y[t]).backward()
    opt.step()


def with_adapters():
    from support.adapted import adapted  # PEFT takes seconds to import

    return adapted(dropout=0.3)


def bare_loss(problem, opt, t):
    opt.zero_grad()
    problem.losses(t).mean().backward()
    opt.step()


def with_loss_outside(problem, opt, t):
    opt.zero_grad()
    problem.losses(t).mean().backward()
    opt.step()


def scaled(problem, opt, t):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def closure():
        opt.zero_grad()
        loss = problem.losses(t).mean()
        scaler.scale(loss).backward()
        return loss

    opt.step(closure, scaler=scaler)
    scaler.update()


#: How a step is made, and of which model.
FORMS = {
    "closure": (by_closure, stochastic_net, {}),
    "own passes": (by_own_passes, stochastic_net, {}),
    "replay": (bare, OfLosses, {"replay": True}),
    "scaler": (scaled, stochastic_net, {}),
    "moved": (bare, OfLosses, {}),
    "bare": (with_loss_outside, stochastic_net, {}),
    "bare, adapters": (bare_loss, with_adapters, {}),
    "closure, adapters": (by_closure, with_adapters, {}),
}
CASES = [
    ("closure", "sam"), ("closure", "esam"), ("closure", "ae-looksam"), ("closure", "looksam"),
    ("own passes", "sam"), ("own passes", "looksam"), ("own passes", "esam"),
    ("replay", "sam"), ("replay", "looksam"), ("scaler", "sam"), ("scaler", "ae-looksam"),
    ("closure", "wsam"), ("scaler", "wsam"), ("own passes", "f-sam"),
    ("bare, adapters", "bi-lora"), ("closure, adapters", "bi-lora"),
    ("own passes", "functional-sam"), ("scaler", "functional-sam"),
    ("closure", "anti-pgd"), ("scaler", "anti-pgd"), ("own passes", "lpf-sgd"),
    ("moved", "msam"), ("moved", "stale-sam"), ("replay", "sub-sam"),
    ("closure", "mesa"), ("own passes", "mesa"), ("scaler", "mesa"),
    ("bare", "mesa"), ("bare", "anti-pgd"), ("moved", "lpf-sgd"),
]  # fmt: skip


class Training:
    """A few steps of one form with one method, all randomness seeded step by step."""

    def __init__(self, form, method, **options):
        self.step_with, net, more = FORMS[form]
        self.model = net()
        self.problem = Problem(self.model)
        self.base = Counted(self.model.parameters(), lr=0.1, momentum=0.9)
        self.opt = EVERY[method](self.base, self.model, **more, **options)

    def step(self, t):
        torch.manual_seed(100 + t)
        random.seed(t)
        self.step_with(self.problem, self.opt, t)

    def steps(self, first, count):
        for t in range(first, first + count):
            self.step(t)

    def buffers(self):
        return [b.clone() for b in self.model.buffers()]

    def ends(self):
        return [*weights(self.model), *self.buffers()]

    def home(self):
        """The weights as they are saved: one that waits for its backward saves those at w."""
        self.model.state_dict()
        return weights(self.model)


def undisturbed(form, method):
    """Where the weights are before the step, after it, and at the end."""
    training = Training(form, method)
    training.steps(0, BEFORE)
    before = weights(training.model)
    training.step(BEFORE)
    after = weights(training.model)
    training.steps(BEFORE + 1, AFTER)
    return before, after, training.ends()


def fails_in_pass_two(training, t):
    """The step, but for an error in its second pass."""
    passes = []

    def spoil(*_):
        passes.append(1)
        if len(passes) == 2:
            raise ValueError("no second pass")

    handle = training.model.register_forward_pre_hook(spoil)
    try:
        training.step(t)
    finally:
        handle.remove()


class Interrupted:
    """A training whose third step was interrupted, and what is known of that step."""

    def __init__(self, form, method, lines, inside_base=False, step=Training.step):
        self.training = Training(form, method)
        self.training.steps(0, BEFORE)
        self.buffers = self.training.buffers()
        base = self.training.base
        base.step = lines.only(base.step) if inside_base else lines.apart(base.step)
        before = base.returned
        try:
            with lines:
                step(self.training, BEFORE)
        except (KeyboardInterrupt, ValueError):
            pass
        del base.step
        self.returned = base.returned > before

    def goes_on(self):
        """Where training ends that makes the step again, if it was not taken, and goes on."""
        training = self.training
        assert training.opt._ledger.committed.step == BEFORE + self.returned
        if not self.returned:
            for buffer, then in zip(training.model.buffers(), self.buffers, strict=True):
                buffer.copy_(then)
            training.step(BEFORE)
        training.steps(BEFORE + 1, AFTER)
        assert training.opt.last_step.index == BEFORE + AFTER
        return training.ends()


def check_every_line(form, method, files, faults, short, step=Training.step):
    """How many lines a step was interrupted at; everything holds after each."""
    before, after, ends = undisturbed(form, method)
    counted = Lines(files)
    Interrupted(form, method, counted, step=step)
    chosen = faults.of(range(1, counted.count + 1), short)
    for at in chosen:
        lines = Lines(files, at)
        found = Interrupted(form, method, lines, step=step)
        now = found.training.home()
        assert same(now, after if found.returned else before), lines.where
        assert same(found.goes_on(), ends), lines.where
    return len(chosen)


def each_of(now, before, after):
    """Whether each tensor is that of before or that of after: the base goes one by one."""
    pairs = zip(now, before, after, strict=True)
    return all(torch.equal(w, old) or torch.equal(w, new) for w, old, new in pairs)


HELD = "weights home; counted if and only if the base's update returned; goes on to the bit"


@pytest.mark.slow
@pytest.mark.parametrize(("form", "method"), CASES)
def test_after_an_interrupt_at_any_line_training_goes_on_to_the_bit(form, method, faults):
    tried = check_every_line(form, method, (OURS, BETWEEN), faults, short=40)
    faults.held("an interrupt at a line of a step", tried, HELD)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["closure", "own passes", "replay"])
def test_after_an_interrupt_while_an_error_is_handled_training_goes_on(form, faults):
    files = (OURS, BETWEEN)
    tried = check_every_line(form, "sam", files, faults, short=30, step=fails_in_pass_two)
    faults.held("an interrupt at a line of a step whose second pass fails", tried, HELD)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sam", "looksam"])
def test_an_interrupt_inside_the_base_leaves_no_displaced_weights(method, faults):
    before, after, _ = undisturbed("closure", method)
    counted = Lines((TORCH,))
    Interrupted("closure", method, counted, inside_base=True)
    chosen = faults.of(range(1, counted.count + 1), short=20)
    for at in chosen:
        lines = Lines((TORCH,), at)
        found = Interrupted("closure", method, lines, inside_base=True)
        now = weights(found.training.model)
        assert each_of(now, before, after), lines.where
        training = found.training
        training.steps(BEFORE, AFTER)
        assert training.opt.last_step.index >= BEFORE + AFTER - 1
    faults.held(
        "an interrupt at a line of the base's update", len(chosen),
        "each tensor as before or after it; the next step works",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", ["closure", "own passes", "replay"])
def test_a_signal_at_any_moment_leaves_no_displaced_weights(form, faults):
    before, after, ends = undisturbed(form, "sam")
    draw, tried = random.Random(5), faults.number(25, 500)
    inherited = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(tried):
            found = Interrupted(form, "sam", _Alarm(draw.uniform(1e-5, 6e-3)))
            now = weights(found.training.model)
            counted = found.training.opt._ledger.committed.step > BEFORE
            assert same(now, after) if counted else each_of(now, before, after)
            if counted and found.returned:
                assert same(found.goes_on(), ends)
            else:  # the signal may have come inside the base, with half of its momentum changed
                found.training.steps(BEFORE, AFTER)
                assert found.training.opt.last_step.index >= BEFORE + AFTER - 1
    finally:
        signal.signal(signal.SIGALRM, inherited)
    faults.held("a signal at some moment of a step", tried, HELD)


class _Alarm:
    """Interrupts its block after some time, by a real signal."""

    def __init__(self, seconds):
        self._seconds = seconds

    def apart(self, function):
        return function

    def __enter__(self):
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def test_a_block_that_an_interrupt_left_ends_with_the_next_call():
    training = Training("own passes", "sam")
    training.steps(0, 1)
    model, opt = training.model, training.opt
    before = weights(model)
    training.problem.losses(1).mean().backward()
    assert opt.needs_second_pass()
    exits = str(Path(OURS) / "_core/blocks.py")
    try:
        with opt.perturbed():
            lines = Lines((exits,), 1)  # the first line of __exit__
            lines.__enter__()
    except KeyboardInterrupt:
        lines.__exit__()
        assert not same(weights(model), before)  # the error still holds the block
        opt.state_dict()
        assert same(weights(model), before)
    else:
        pytest.fail("there was no interrupt")
    training.steps(1, 2)


def test_a_block_that_an_interrupt_left_ends_when_the_error_is_handled():
    training = Training("own passes", "sam")
    before = weights(training.model)
    training.problem.losses(0).mean().backward()
    assert training.opt.needs_second_pass()
    lines = Lines((str(Path(OURS) / "_core/blocks.py"),), 1)
    with suppress(KeyboardInterrupt):
        with training.opt.perturbed():
            lines.__enter__()
    lines.__exit__()
    assert same(weights(training.model), before)
