"""Lightning with the callback trains what a plain loop trains: every option of its trainer."""

import copy
import pickle
import warnings

import lightning
import pytest
import pytorch_lightning
import schedulefree
import torch
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins import MixedPrecision
from support.lightning_problems import (
    BATCHES,
    QUIET,
    Lit,
    difference,
    fit,
    loader,
    plain_loop,
    step_on,
)
from support.problems import BASES, METHODS, AboveAverageLoss, Problem, mlp, stochastic_net
from torch import nn
from torch.utils.data import default_collate

import aesam
from aesam.integrations.lightning import SharpnessAwareCallback
from aesam.parts.budget import Budget

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pytorch_lightning.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]

OPTIONS = {
    "automatic optimization": ({}, {}),
    "accumulate_grad_batches=4": ({"accumulate_grad_batches": 4}, {"together": 4}),
    "gradient_clip_val, by norm": ({"gradient_clip_val": 0.3}, {"clip": 0.3}),
    "gradient_clip_val, by value": (
        {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"},
        {"clip": 0.05, "algorithm": "value"},
    ),
    "accumulation and clipping": (
        {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
        {"together": 4, "clip": 0.1},
    ),
}


def agree(lit, expected, within=1e-10):
    model, opt = expected
    assert difference(lit.net, model) <= within
    assert lit.opt.last_step.index == opt.last_step.index
    assert lit.opt.sam_fraction == opt.sam_fraction


# What a step is made of -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["erm", "sam", "ae-sam", "ae-looksam"])
@pytest.mark.parametrize("use", OPTIONS)
def test_the_trainer_s_options_are_those_of_a_plain_loop(use, method, matrix):
    options, of_loop = OPTIONS[use]
    lit = Lit(method)
    trainer = fit(lit, max_epochs=2, **options)
    expected = plain_loop(method, epochs=2, **of_loop)
    agree(lit, expected)
    steps = expected[1].last_step.index + 1
    assert trainer.global_step == steps == 2 * -(-BATCHES // of_loop.get("together", 1))
    assert "training_step" not in vars(trainer.strategy)
    matrix.right("Lightning", use, within=1e-10)


class OldName(pytorch_lightning.LightningModule):
    __init__, loss, training_step = Lit.__init__, Lit.loss, Lit.training_step
    configure_optimizers, opt = Lit.configure_optimizers, Lit.opt


@pytest.mark.parametrize("listed", [True, False])
def test_pytorch_lightning_is_the_same_under_its_old_name(listed, matrix):
    lit = object.__new__(OldName)
    pytorch_lightning.LightningModule.__init__(lit)
    lit.net, lit.method, lit.settings = mlp(), "ae-sam", {}
    callback = SharpnessAwareCallback()
    assert isinstance(callback, pytorch_lightning.Callback)
    assert isinstance(callback, lightning.Callback)
    trainer = pytorch_lightning.Trainer(
        **QUIET, callbacks=[callback] if listed else callback, accumulate_grad_batches=4
    )
    trainer.fit(lit, loader())
    agree(lit, plain_loop("ae-sam", together=4))
    matrix.right("Lightning", "as pytorch_lightning", within=1e-10)


def test_a_changing_accumulation_is_followed():
    lit = Lit("ae-looksam")
    schedule = GradientAccumulationScheduler({0: 1, 1: 4})
    fit(lit, max_epochs=3, callbacks=[schedule])
    agree(lit, plain_loop("ae-looksam", together=[1, 4, 4], epochs=3))


@pytest.mark.parametrize("together", [1, 4])
def test_a_training_step_that_returns_none_skips_its_batch(together):
    class Skips(Lit):
        def training_step(self, batch, index):
            return None if index in skip else self.loss(batch)

    skip = {0, 3, 9, 16, 17, 18, 19, 31}  # first, last and all of a group; alone
    lit = Skips("ae-looksam")
    with warnings.catch_warnings():  # once in a process, Lightning says what it does
        warnings.filterwarnings("ignore", "`training_step` returned `None`")
        fit(lit, accumulate_grad_batches=together)
    agree(lit, plain_loop("ae-looksam", together=together, skip=skip))


def test_a_loss_that_is_given_up_at_the_perturbed_weights_skips_the_step():
    class GivesUp(Lit):
        calls = 0

        def training_step(self, batch, index):
            again = index == self.seen
            self.__dict__["seen"] = index
            type(self).calls += 1
            return None if again and index == 5 else self.loss(batch)

    lit = GivesUp("sam")
    lit.seen = None
    with pytest.warns(UserWarning, match="the update was skipped"):
        fit(lit, limit_train_batches=10)
    assert lit.opt.skipped_steps == 1
    agree(lit, ended_without_batch_5())


def ended_without_batch_5():
    model = mlp()
    problem = Problem(model)
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    for t in range(10):
        if t != 5:
            problem.step(opt, t)
    return model, opt


def test_a_training_step_may_return_a_dict():
    class Returns(Lit):
        def training_step(self, batch, _):
            return {"loss": self.loss(batch), "rows": len(batch[0])}

    class Sees(Callback):
        rows = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, *_):
            self.rows += outputs["rows"]

    lit, sees = Returns("ae-sam"), Sees()
    fit(lit, accumulate_grad_batches=4, callbacks=[sees])
    agree(lit, plain_loop("ae-sam", together=4))
    assert sees.rows == 8 * BATCHES


def test_a_training_step_may_take_its_batch_apart():
    class Pops(Lit):
        def training_step(self, batch, _):
            return self.loss((batch.pop("x"), batch.pop("y")))

    data = loader(collate_fn=lambda rows: dict(zip("xy", default_collate(rows), strict=True)))
    lit = Pops("sam")
    fit(lit, data, accumulate_grad_batches=4)
    agree(lit, plain_loop("sam", together=4))


class Graph:
    """A batch that is no container."""

    def __init__(self, x, y):
        self.x, self.y = x, y


def test_a_training_step_may_set_what_its_batch_holds():
    class Sets(Lit):
        def training_step(self, batch, _):
            batch.x = 2.0 * batch.x
            return self.loss((batch.x, batch.y))

    class Doubles(Lit):
        def training_step(self, batch, _):
            return self.loss((2.0 * batch[0], batch[1]))

    sets, doubles = Sets("sam"), Doubles("sam")
    fit(sets, loader(collate_fn=lambda rows: Graph(*default_collate(rows))))
    fit(doubles)
    assert difference(sets.net, doubles.net) == 0.0


@pytest.mark.parametrize("callback", [True, False], ids=["with", "without"])
def test_an_optimizer_step_may_leave_steps_out_or_go_around_lightning(callback):
    class EveryOther(Lit):
        def optimizer_step(self, epoch, index, optimizer, closure):
            if index % 2 == 0:
                optimizer.optimizer.step(closure)
            else:
                closure()

    lit = EveryOther("ae-looksam")
    fit(lit, callback=callback)
    agree(lit, plain_loop("ae-looksam", skip=range(1, BATCHES, 2)))


def test_validation_in_the_middle_of_an_accumulation_changes_nothing():
    class Validates(Lit):
        def validation_step(self, batch, _):
            self.log("validation", self.loss(batch))

        def val_dataloader(self):
            return loader()

    lit = Validates("ae-sam")
    trainer = fit(lit, val_check_interval=7, accumulate_grad_batches=4)
    agree(lit, plain_loop("ae-sam", together=4))
    trainer.validate(lit, loader(), verbose=False)


def test_weight_averaging_ends_at_the_average():
    averaging = StochasticWeightAveraging(0.05, swa_epoch_start=2)
    lit = Lit("sam", stochastic_net())
    fit(lit, max_epochs=4, callbacks=[averaging])
    assert difference(lit.net, averaging._average_model.net) == 0.0
    assert lit.opt.last_step.index == 4 * BATCHES - 1


def test_a_compiled_module_is_compiled_once():
    compiled, graphs = Lit("ae-sam"), []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    fit(torch.compile(compiled, backend=keep), accumulate_grad_batches=4)
    agree(compiled, plain_loop("ae-sam", together=4))
    assert len(graphs) == 1


def test_a_policy_sees_the_mean_loss_of_all_micro_batches():
    class ByLoss(Lit):
        def configure_optimizers(self):
            return by_loss(self.net)

    def by_loss(net):
        base = BASES["sgd"](net.parameters())
        return aesam.SharpnessAware(base, net, policy=AboveAverageLoss(), rho=0.2)

    lit, model = ByLoss(), mlp()
    fit(lit, accumulate_grad_batches=2)
    problem, opt = Problem(model), by_loss(model)
    for t in range(0, BATCHES, 2):
        opt.step(both(problem, opt, t))
    agree(lit, (model, opt))
    assert 0.0 < opt.sam_fraction < 1.0


def both(problem, opt, t):
    def closure():
        opt.zero_grad()
        loss = (problem.losses(t).mean() + problem.losses(t + 1).mean()) / 2
        loss.backward()
        return loss

    return closure


# Steps --------------------------------------------------------------------------------------------


class LeftOut(Lit):
    """Does not say how many steps there will be."""

    def __init__(self, method="ae-sam"):
        super().__init__(method, total_steps=None)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 100),
        ({"accumulate_grad_batches": 4}, 26),
        ({"max_steps": 30}, 30),
        ({"limit_train_batches": 10}, 20),
        ({"callbacks": [GradientAccumulationScheduler({0: 1, 1: 4})]}, 63),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_total_steps_is_what_the_trainer_will_take(options, steps, matrix):
    lit = LeftOut()
    trainer = fit(lit, max_epochs=2, **options)
    assert trainer.global_step == lit.opt.policy.total_steps == steps
    assert not lit.opt.needs_total_steps
    matrix.right("Lightning", "total_steps left out", within=0.0)


def test_total_steps_that_was_given_stays():
    lit = Lit("ae-sam", total_steps=77)
    fit(lit)
    assert lit.opt.policy.total_steps == 77


def test_a_budget_is_not_told_how_long_the_training_is():
    lit = Lit("ae-sam", total_steps=None, budget=0.5)
    trainer = fit(lit, max_epochs=2)
    assert lit.opt.policy == Budget(0.5)
    assert 0.5 * trainer.global_step - 9 <= lit.opt.sam_fraction * trainer.global_step
    assert lit.opt.sam_fraction <= 0.5


def test_total_steps_of_a_training_without_an_end_must_be_given():
    with pytest.raises(ValueError, match="total_steps was left out"):
        fit(LeftOut(), max_epochs=-1)


def test_total_steps_left_out_without_the_callback_is_refused():
    with pytest.raises(RuntimeError, match="total_steps"):
        fit(LeftOut(), callback=False)


def test_a_learning_rate_may_be_looked_for_first(tmp_path):
    class Found(Lit):
        lr = 0.1

        def configure_optimizers(self):
            base = torch.optim.SGD(self.net.parameters(), lr=self.lr)
            return METHODS["ae-sam"](base, self.net)

    lit = Found()
    finder = LearningRateFinder(num_training_steps=20)
    fit(lit, callbacks=[finder], default_root_dir=tmp_path)
    assert lit.opt.param_groups[0]["lr"] == lit.lr != 0.1
    assert lit.opt.last_step.index == BATCHES - 1


def test_what_was_accumulated_is_forgotten_where_the_rest_of_an_epoch_is_skipped():
    class Stops(Lit):
        def on_train_batch_start(self, batch, index):
            return -1 if index == 6 else None

    lit, model = Stops("sam"), mlp()
    fit(lit, max_epochs=3, accumulate_grad_batches=4)
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    for epoch in range(3):
        opt.param_groups[0]["lr"] = 0.1 * 0.5**epoch
        step_on(range(4), 4, Problem(model), opt, None, None)
    agree(lit, (model, opt))


# Randomness and buffers -----------------------------------------------------------------------


class Stochastic(Lit):
    """Augmentation in the loader, mixing in a hook, dropout and BatchNorm in the model."""

    def on_train_start(self):
        torch.manual_seed(7)

    def on_train_batch_start(self, batch, _):
        batch[0].mul_(1.0 + 0.1 * torch.rand(()))


def noisy(rows):
    x, y = default_collate(rows)
    return [x + 0.1 * torch.randn_like(x), y]


def test_masks_are_the_same_in_both_passes_whatever_the_data_draw_in_between():
    lit = Stochastic("ae-sam", stochastic_net())
    fit(lit, loader(collate_fn=noisy), accumulate_grad_batches=4)
    problem = Problem(stochastic_net())
    opt = METHODS["ae-sam"](BASES["sgd"](problem.model.parameters()), problem.model)
    torch.manual_seed(7)
    for start in range(0, BATCHES, 4):
        batches = []
        for t in range(start, min(start + 4, BATCHES)):
            x, y = noisy(list(zip(problem.x[t], problem.y[t], strict=True)))
            x.mul_(1.0 + 0.1 * torch.rand(()))
            batches.append((x, y, torch.get_rng_state()))
            (mean_loss(problem.model, x, y) / 4).backward()
        after = torch.get_rng_state()
        if opt.needs_second_pass():
            with opt.perturbed():
                for x, y, state in batches:
                    torch.set_rng_state(state)
                    (mean_loss(problem.model, x, y) / 4).backward()
        torch.set_rng_state(after)
        opt.step()
        opt.zero_grad()
    assert 0.0 < opt.sam_fraction < 1.0
    agree(lit, (problem.model, opt), within=0.0)
    for left, right in zip(lit.net.buffers(), problem.model.buffers(), strict=True):
        assert torch.equal(left, right)


def mean_loss(model, x, y):
    return (model(x) - y).square().sum(1).mean() / 2


def test_batch_norm_outside_the_optimizer_s_model_counts_once():
    class Outside(Lit):
        def __init__(self):
            super().__init__("sam")
            self.norm = nn.BatchNorm1d(3, affine=False, dtype=torch.float64)

        def training_step(self, batch, _):
            return self.loss((self.norm(batch[0]), batch[1]))

    lit = Outside()
    fit(lit)
    assert lit.norm.num_batches_tracked == BATCHES


# Bases ----------------------------------------------------------------------------------------


def test_a_schedule_free_base_is_evaluated_at_its_own_weights(matrix):
    class Free(Lit):
        def configure_optimizers(self):
            return schedule_free(self.net)

        def val_dataloader(self):
            return loader()

        def validation_step(self, batch, _):
            self.losses.append(self.loss(batch).item())

    def schedule_free(net):
        base = schedulefree.SGDScheduleFree(net.parameters(), lr=0.1)
        return aesam.SAM(base, net, rho=0.1)

    lit, model = Free(), mlp()
    lit.losses = []
    fit(lit, max_epochs=2, num_sanity_val_steps=0, limit_val_batches=1)
    problem, opt, losses = Problem(model), schedule_free(model), []
    for epoch in range(2):
        opt.train()
        problem.train(opt, BATCHES, start=epoch * BATCHES)
        opt.eval()
        losses.append(problem.losses(0).mean().item())
    assert lit.losses == pytest.approx(losses, rel=1e-12)
    assert difference(lit.net, model) <= 1e-12
    matrix.right("Lightning", "a schedule-free base, validation", within=1e-12)


# Precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_bfloat16_is_that_of_a_plain_loop(precision, matrix):
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    lit = Lit("ae-looksam", mlp().to(dtype))
    fit(lit, loader(dtype), precision=precision, accumulate_grad_batches=2, gradient_clip_val=0.3)
    model = mlp().to(dtype)
    problem, opt = Problem(model), METHODS["ae-looksam"](BASES["sgd"](model.parameters()), model)

    def run(group):
        for t in group:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = problem.losses(t).mean()
            (loss / 2).backward()

    for t in range(0, BATCHES, 2):
        own_passes(opt, run, (t, t + 1), model)
    assert lit.net[0].weight.dtype is dtype
    agree(lit, (model, opt), within=0.0)
    matrix.right("Lightning", f"precision={precision!r}, accumulation and clipping", within=0.0)


def own_passes(opt, run, group, model, scaler=None):
    with opt.first_pass():
        run(group)
    if opt.needs_second_pass(grad_scale=1.0 if scaler is None else scaler.get_scale()):
        with opt.perturbed():
            run(group)
    if scaler is not None:
        scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    if scaler is None:
        opt.step()
    else:
        scaler.step(opt)
        scaler.update()
    opt.zero_grad()


def loss_scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=8)


def test_a_loss_scaler_is_that_of_a_plain_loop_and_overflows_are_skipped(matrix):
    scaler, theirs, scales = loss_scaler(), loss_scaler(), []

    class Scaled(Lit):
        def on_before_optimizer_step(self, _):
            scales.append(scaler.get_scale())

    lit = Scaled("ae-looksam", mlp().float())
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    trainer = fit(
        lit, loader(torch.float32), plugins=[plugin], accumulate_grad_batches=2,
        gradient_clip_val=0.3,
    )  # fmt: skip
    assert trainer.precision_plugin is plugin
    assert scaler.is_enabled()
    model = mlp().float()
    problem, opt = Problem(model), METHODS["ae-looksam"](BASES["sgd"](model.parameters()), model)

    def run(group):
        for t in group:
            with torch.autocast("cpu", torch.float16):
                loss = problem.losses(t).mean()
            theirs.scale(loss / 2).backward()

    for t in range(0, BATCHES, 2):
        own_passes(opt, run, (t, t + 1), model, theirs)
    assert scaler.get_scale() == theirs.get_scale() != 2.0**22
    assert len(set(scales)) > 2  # it went down by overflows and up again
    assert opt.last_step.index < BATCHES // 2 - 1
    agree(lit, (model, opt), within=0.0)
    assert lit.opt.skipped_steps > 0
    matrix.right("Lightning", "an fp16 scaler, accumulation and clipping", within=0.0)


# Several processes ----------------------------------------------------------------------------


class InParallel(Lit):
    """Keeps its decisions in a buffer, which comes back from the processes."""

    def __init__(self, method):
        super().__init__(method)
        self.register_buffer("used_sam", torch.full((BATCHES,), -1))

    def training_step(self, batch, _):
        return self.loss([part[self.global_rank :: 2] for part in batch])

    def on_train_batch_end(self, *_):
        last = self.opt.last_step
        if last is not None:
            self.used_sam[last.index] = int(last.used_sam)


@pytest.mark.filterwarnings("ignore:.*")
def test_two_processes_are_one_on_the_whole_batch(matrix):
    lit = InParallel("ae-sam")
    fit(lit, strategy="ddp_spawn", devices=2, use_distributed_sampler=False,
        accumulate_grad_batches=4, gradient_clip_val=0.3)  # fmt: skip
    model, opt = plain_loop("ae-sam", together=4, clip=0.3)
    assert difference(lit.net, model) <= 1e-10
    assert lit.used_sam.eq(1).sum() == round(opt.sam_fraction * (opt.last_step.index + 1))
    assert lit.used_sam.ge(0).sum() == opt.last_step.index + 1
    matrix.right("Lightning", "DDP, accumulation and clipping", within=1e-10)


# Checkpoints ----------------------------------------------------------------------------------


class Resumable:
    """A loader that goes on where it was, as those do that implement Lightning's interface."""

    def __init__(self):
        self.batches = list(loader())
        self.done = 0

    def __len__(self):
        return BATCHES

    def __iter__(self):
        self.done %= BATCHES
        while self.done < BATCHES:
            self.done += 1
            yield self.batches[self.done - 1]

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("when", ["within an epoch", "at the end of an epoch"])
def test_training_goes_on_from_a_checkpoint_to_the_bit(when, tmp_path, matrix):
    every = {"every_n_train_steps": 7} if when == "within an epoch" else {"every_n_epochs": 1}
    options = {"accumulate_grad_batches": 4, "gradient_clip_val": 0.3, "max_epochs": 3}
    saving = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **every)
    whole, resumed = Lit("ae-looksam"), Lit("ae-looksam")
    fit(whole, Resumable(), callbacks=[saving], enable_checkpointing=True, **options)
    first = {"within an epoch": "step=7.ckpt", "at the end of an epoch": "step=13.ckpt"}[when]
    saving = ModelCheckpoint(tmp_path / "again", save_top_k=-1, **every)
    options |= {"callbacks": [saving], "enable_checkpointing": True}
    trainer = fit(resumed, Resumable(), ckpt_path=tmp_path / first, **options)
    assert trainer.global_step == 39
    assert difference(whole.net, resumed.net) == 0.0
    assert whole.opt.last_step == resumed.opt.last_step
    assert whole.opt.sam_fraction == resumed.opt.sam_fraction
    agree(resumed, plain_loop("ae-looksam", together=4, clip=0.3, epochs=3))
    matrix.right("Lightning", f"resumed {when}", within=0.0)


def test_the_callback_can_be_pickled_and_copied():
    for callback in (copy.deepcopy(SharpnessAwareCallback(log=False)),
                     pickle.loads(pickle.dumps(SharpnessAwareCallback(log=False)))):  # fmt: skip
        assert callback.log_steps is False
