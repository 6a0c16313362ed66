"""A poisoned batch every n steps leaves no trace, and nothing grows however long it runs."""

import gc
import math
import warnings
from contextlib import suppress

import pytest
import torch
from support.problems import BASES, METHODS, VARIANTS, Problem, same, stochastic_net, weights

#: What a batch may do: in which pass, and what becomes of the loss there.
POISONS = {
    "no number": (1, math.nan),
    "infinity": (1, math.inf),
    "no number in pass two": (2, math.nan),
    "minus infinity in pass two": (2, -math.inf),
    "an error": (1, ValueError),
    "an error in pass two": (2, MemoryError),
    "a Ctrl-C in pass two": (2, KeyboardInterrupt),
}
#: Of a training in which every third batch is bad, when all is tried.
STEPS = 240


class Poisoned:
    """A training in which every n-th batch is bad; those leave buffers and draws to be put back."""

    def __init__(self, method):
        self.model = stochastic_net()
        self.problem = Problem(self.model)
        long = {"total_steps": STEPS} if method.startswith("ae-") else {}
        base = BASES["sgd"](self.model.parameters())
        self.opt = (METHODS | VARIANTS)[method](base, self.model, **long)

    def step(self, t):
        torch.manual_seed(t)
        self.problem.step(self.opt, t)

    def poisoned_step(self, t, broken_pass, poison):
        """A step on a bad batch; its first forward counts in BatchNorm's statistics."""
        buffers = [b.clone() for b in self.model.buffers()]
        passes = []

        def spoil(module, args, output):
            if not torch.is_grad_enabled():
                return None  # ESAM looks at the losses at w + ε first
            passes.append(1)
            if len(passes) != broken_pass:
                return None
            if isinstance(poison, float):
                return output * poison
            raise poison

        handle = self.model.register_forward_hook(spoil)
        with suppress(ValueError, MemoryError, KeyboardInterrupt):
            self.step(t)
        handle.remove()
        for buffer, then in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(then)
        return len(passes) >= broken_pass


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS | VARIANTS)
def test_a_poisoned_batch_every_few_steps_leaves_no_trace(method, faults):
    steps, tried = faults.number(24, STEPS), 0
    clean = Poisoned(method)
    for t in range(steps):
        clean.step(t)
    for broken_pass, poison in POISONS.values():
        training = Poisoned(method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # skipped updates
            for t in range(steps):
                if t % 3 == 2 and (broken_pass == 1 or will_fire(training, t)):
                    tried += training.poisoned_step(t, broken_pass, poison)
                training.step(t)
        assert same(weights(training.model), weights(clean.model)), poison
        assert training.opt.sam_fraction == clean.opt.sam_fraction
    faults.held("a poisoned batch", tried, "skipped; goes on to the bit as if it had not been")


def will_fire(training, t):
    """Whether the step would take a second gradient; asked without leaving a trace."""
    opt = training.opt
    buffers = [b.clone() for b in training.model.buffers()]
    torch.manual_seed(t)
    opt.zero_grad()
    losses = training.problem.losses(t)
    losses.mean().backward()
    fires = opt.needs_second_pass(losses=losses)
    opt._ledger.discard()
    for buffer, then in zip(training.model.buffers(), buffers, strict=True):
        buffer.copy_(then)
    return fires


def living_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


#: ESAM chooses rows, which no recording has.
LONG = [
    (method, form)
    for method in ("sam", "ae-looksam", "esam")
    for form in ("closure", "own passes", "replay")
    if (method, form) != ("esam", "replay")
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "form"), LONG)
def test_nothing_grows_in_a_long_training(method, form, faults):
    steps = faults.number(300, 12_500)
    model = stochastic_net()
    options = {"replay": True} if form == "replay" else {}
    lengths = {"total_steps": steps + 100} if method == "ae-looksam" else {}
    base = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    opt = METHODS[method](base, model, **options, **lengths)
    problem, counts = Problem(model), []
    for t in range(steps + 100):
        if form == "closure":
            problem.step(opt, t)
        elif form == "own passes":
            problem.own_passes(opt, t)
        else:
            opt.zero_grad()
            problem.losses(t).mean().backward()
            opt.step()
        if t in (99, steps + 99):
            opt.zero_grad()
            counts.append(living_tensors())
    assert counts[1] <= counts[0] + 2
    assert opt.skipped_steps == 0
    assert all(w.isfinite().all() for w in weights(model))
    faults.held("a step of a long training", steps, "no tensor more than after 100 steps")
