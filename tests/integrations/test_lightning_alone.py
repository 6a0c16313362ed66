"""Lightning without the callback, and manual optimization: right, or an error that says why."""

import warnings

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from support.lightning_problems import BATCHES, QUIET, Lit, difference, fit, loader, plain_loop
from support.problems import BASES, METHODS, Problem, mlp

import aesam
from aesam.integrations.lightning import SharpnessAwareCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]
WITH_OR_WITHOUT = pytest.mark.parametrize("callback", [True, False], ids=["with", "without"])
NAMED = r"SharpnessAwareCallback"


# Automatic optimization without the callback --------------------------------------------------


@pytest.mark.parametrize("method", ["erm", "sam", "ss-sam", "looksam", "ae-sam", "ae-looksam"])
def test_automatic_optimization_is_the_closure_form(method, matrix):
    lit = Lit(method)
    trainer = fit(lit, callback=False)
    wrapper = lit.optimizers()
    assert type(wrapper) is not type(aesam.unwrap(wrapper))
    model, opt = plain_loop(method)
    assert difference(lit.net, model) <= 1e-12
    assert lit.opt.sam_fraction == opt.sam_fraction
    assert trainer.global_step == lit.opt.last_step.index + 1 == BATCHES
    matrix.right("Lightning without the callback", "automatic optimization", within=1e-12)


def test_a_training_step_that_returns_none_skips_its_step():
    class Skips(Lit):
        def training_step(self, batch, index):
            return None if index in (0, 7) else self.loss(batch)

    lit = Skips("ae-looksam")
    with warnings.catch_warnings():  # once in a process, Lightning says what it does
        warnings.filterwarnings("ignore", "`training_step` returned `None`")
        fit(lit, callback=False)
    model, opt = plain_loop("ae-looksam", skip={0, 7})
    assert difference(lit.net, model) <= 1e-12
    assert lit.opt.last_step.index == opt.last_step.index


@pytest.mark.parametrize(
    ("use", "options"),
    [
        ("accumulate_grad_batches=4", {"accumulate_grad_batches": 4}),
        ("gradient_clip_val", {"gradient_clip_val": 0.3}),
        ("accumulation and clipping", {"accumulate_grad_batches": 4, "gradient_clip_val": 0.3}),
    ],
)
def test_what_needs_the_callback_says_so(use, options, matrix):
    with pytest.raises(RuntimeError, match=NAMED) as refused:
        fit(Lit("sam"), callback=False, **options)
    matrix.refused("Lightning without the callback", use, refused.value)


def test_a_loss_scaler_needs_the_callback(matrix):
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(RuntimeError, match=NAMED) as refused:
        fit(Lit("sam", mlp().float()), loader(torch.float32), callback=False, plugins=[plugin])
    assert plugin.scaler.is_enabled()
    matrix.refused("Lightning without the callback", "an fp16 scaler", refused.value)


def in_place(batch):
    batch[0].add_(1.0)
    return batch


def popped(batch):
    return [batch.pop(0), batch.pop(0)]


@pytest.mark.parametrize("change", [in_place, popped])
def test_a_training_step_that_changes_its_batch_is_refused(change):
    class Changes(Lit):
        def training_step(self, batch, index):
            return self.loss(change(batch))

    with pytest.raises(RuntimeError, match=NAMED):
        fit(Changes("sam"), callback=False)


# Manual optimization --------------------------------------------------------------------------


class Manual(Lit):
    """Gives ``how`` the batch and the optimizer as Lightning hands it out."""

    def __init__(self, how, method="ae-looksam"):
        super().__init__(method)
        self.automatic_optimization = False
        self.how = [how]  # in a list, it is no method

    def training_step(self, batch, _):
        self.how[0](self, batch, self.optimizers())


def own_passes(lit, batch, opt):
    with opt.first_pass():
        lit.manual_backward(lit.loss(batch))
    if opt.needs_second_pass():
        with opt.perturbed():
            lit.manual_backward(lit.loss(batch))
    opt.step()
    opt.zero_grad()


def closure_form(lit, batch, opt):
    def closure():
        opt.zero_grad()
        loss = lit.loss(batch)
        lit.log("count", 1.0, on_epoch=True, reduce_fx="sum")
        lit.manual_backward(loss)
        return loss

    opt.step(closure)


@WITH_OR_WITHOUT
@pytest.mark.parametrize("how", [own_passes, closure_form])
def test_manual_optimization_is_the_plain_loop(how, callback, matrix):
    lit = Manual(how)
    trainer = fit(lit, callback=callback)
    model, opt = plain_loop("ae-looksam")
    assert difference(lit.net, model) <= 1e-12
    assert lit.opt.sam_fraction == opt.sam_fraction
    assert trainer.global_step == BATCHES
    if how is closure_form:
        assert trainer.callback_metrics["count"] == BATCHES
    if callback:
        assert trainer.callback_metrics["aesam/percent_sam"] == 100 * opt.sam_fraction
    matrix.right("Lightning", f"manual optimization, {how.__name__.replace('_', ' ')}", 1e-12)


@WITH_OR_WITHOUT
def test_a_bare_step_in_manual_optimization_is_refused(callback, matrix):
    def bare(lit, batch, opt):
        opt.zero_grad()
        lit.manual_backward(lit.loss(batch))
        opt.step()

    with pytest.raises(RuntimeError, match="no backward") as refused:
        fit(Manual(bare), callback=callback)
    matrix.refused("Lightning", "manual optimization, bare step()", refused.value)


def scaled_passes(lit, batch, opt, **given):
    with opt.first_pass():
        lit.manual_backward(lit.loss(batch))
    if opt.needs_second_pass(**given):
        with opt.perturbed():
            lit.manual_backward(lit.loss(batch))
    opt.step()
    opt.zero_grad()


@WITH_OR_WITHOUT
def test_manual_optimization_with_a_loss_scaler_says_its_scale(callback, matrix):
    def with_scale(lit, batch, opt):
        scaled_passes(lit, batch, opt, grad_scale=plugin.scaler.get_scale())

    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**22))
    lit, model = Manual(with_scale), mlp().float()
    lit.net.float()
    fit(lit, loader(torch.float32), callback=callback, plugins=[plugin])
    problem, opt = Problem(model), METHODS["ae-looksam"](BASES["sgd"](model.parameters()), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    for t in range(BATCHES):
        opt.step(scaled(problem, opt, scaler, t), scaler=scaler)
        scaler.update()
    assert plugin.scaler.get_scale() == scaler.get_scale() < 2.0**22
    assert difference(lit.net, model) == 0.0
    assert lit.opt.skipped_steps == opt.skipped_steps > 0
    unsaid = Manual(scaled_passes)
    unsaid.net.float()
    with pytest.raises(RuntimeError, match="grad_scale") as refused:
        fit(unsaid, loader(torch.float32), callback=callback, plugins=[plugin])
    matrix.right("Lightning", "manual optimization, an fp16 scaler and grad_scale=", within=0.0)
    matrix.refused("Lightning", "manual optimization, an fp16 scaler alone", refused.value)


def scaled(problem, opt, scaler, t):
    def closure():
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = problem.losses(t).mean()
        scaler.scale(loss).backward()
        return loss

    return closure


def test_two_optimizers_take_their_own_steps():
    class Two(Lit):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.other = mlp(seed=1)

        def configure_optimizers(self):
            nets = {"ae-sam": self.net, "ae-looksam": self.other}
            return [METHODS[m](BASES["sgd"](net.parameters()), net) for m, net in nets.items()]

        def training_step(self, batch, _):
            x, y = batch
            for net, opt in zip((self.net, self.other), self.optimizers(), strict=True):

                def closure(net=net, opt=opt):
                    opt.zero_grad()
                    loss = (net(x) - y).square().sum(1).mean() / 2
                    self.manual_backward(loss)
                    return loss

                opt.step(closure)

    lit = Two()
    trainer = fit(lit)
    assert trainer.global_step == 2 * BATCHES
    assert {"aesam/0/percent_sam", "aesam/1/percent_sam"} <= trainer.callback_metrics.keys()
    for net, start, method in ((lit.net, mlp(), "ae-sam"), (lit.other, mlp(seed=1), "ae-looksam")):
        Problem(start).train(METHODS[method](BASES["sgd"](start.parameters()), start), BATCHES)
        assert difference(net, start) <= 1e-12


# What the callback refuses --------------------------------------------------------------------


def test_other_optimizers_are_refused():
    class Plain(Lit):
        def configure_optimizers(self):
            return BASES["sgd"](self.net.parameters())

    with pytest.raises(TypeError, match="configure_optimizers gave SGD"):
        fit(Plain())


def test_two_of_them_are_refused():
    with pytest.raises(ValueError, match="two SharpnessAwareCallbacks"):
        fit(Lit(), callbacks=[SharpnessAwareCallback()])


def test_methods_that_select_samples_are_refused():
    with pytest.raises(RuntimeError, match="ESAM selects samples"):
        fit(Lit("esam"))


@pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor")
def test_an_iterator_in_the_place_of_a_batch_is_refused():
    class Iterates(Lit):
        def training_step(self, dataloader_iter):
            return self.loss(next(dataloader_iter)[0])

    with pytest.raises(RuntimeError, match="cannot be run again"):
        fit(Iterates("sam"))


def test_a_batch_that_is_written_to_in_place_is_refused():
    class Writes(Lit):
        def training_step(self, batch, _):
            batch[0].add_(0.1)
            return self.loss(batch)

    lit = Writes("sam")
    before = mlp()
    with pytest.raises(RuntimeError, match="written to in place"):
        fit(lit, accumulate_grad_batches=4)
    assert difference(lit.net, before) == 0.0


def test_gradients_that_a_hook_changes_between_micro_batches_are_refused():
    class Halves(Lit):
        def on_after_backward(self):
            self.net[0].weight.grad.mul_(0.5)

    with pytest.raises(RuntimeError, match="between two micro-batches"):
        fit(Halves("sam"), accumulate_grad_batches=4)


@pytest.mark.parametrize("where", ["first pass", "second pass", "backward"])
def test_an_exception_leaves_weights_optimizer_and_trainer_as_they_were(where):
    class Fails(Lit):
        calls = 0

        def training_step(self, batch, _):
            Fails.calls += 1
            if Fails.calls == {"first pass": 5, "second pass": 6, "backward": 0}[where]:
                raise KeyError(where)
            return self.loss(batch)

        def on_before_backward(self, _):
            if where == "backward" and self.opt.last_step is not None:
                raise KeyError(where)

    lit, callback = Fails("sam"), SharpnessAwareCallback()
    trainer = lightning.Trainer(**QUIET, callbacks=[callback])
    with pytest.raises(KeyError, match=where):
        trainer.fit(lit, loader())
    model = mlp()
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    Problem(model).train(opt, lit.opt.last_step.index + 1)
    assert difference(lit.net, model) <= 1e-12
    assert "training_step" not in vars(trainer.strategy)
    lit.opt.state_dict()  # not inside a pass
    assert "on_after_backward" not in vars(lit)


def test_micro_batches_are_kept_by_reference_and_until_the_step_alone():
    seen = []

    class Looks(Lit):
        def training_step(self, batch, _):
            seen.append(batch[0].data_ptr())
            return self.loss(batch)

        def on_train_batch_end(self, *_):
            kept.append(len(callback._passes._kept))

    kept, callback = [], SharpnessAwareCallback()
    fit(Looks("sam"), callback=False, callbacks=[callback], accumulate_grad_batches=4)
    assert kept[:8] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert seen[:4] == seen[4:8]  # both passes saw the same memory
    assert callback._passes is None
