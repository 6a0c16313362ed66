"""Methods of one gradient a step in trainers as they are: no closure, no callback, no subclass."""

import lightning
import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.language import arguments, furthest
from support.lightning_problems import QUIET, loader
from support.problems import BASES, VARIANTS, Problem, mlp
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]
STEPS = 12
METHODS = ["anti-pgd", "lpf-sgd", "mesa", "msam"]
WITHIN = 1e-12


@pytest.fixture(autouse=True)
def accelerate_afresh():
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def new_optimizer(method, model):
    return VARIANTS[method](BASES["sgd"](model.parameters()), model)


def plain(method, clip=None):
    """The same steps in a plain loop, which the rules' own tests hold against literal ones."""
    model = mlp()
    opt, problem = new_optimizer(method, model), Problem(model)
    for t in range(STEPS):
        opt.zero_grad()
        problem.losses(t).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
    return model, opt


class Lit(lightning.LightningModule):
    """The problem's loss, by the trainer's steps or by its own."""

    def __init__(self, method, automatic):
        super().__init__()
        self.net, self.method, self.automatic_optimization = mlp(), method, automatic

    def training_step(self, batch, _):
        x, y = batch
        loss = (self.net(x) - y).square().sum(1).mean() / 2
        if self.automatic_optimization:
            return loss
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(loss)
        opt.step()
        return None

    def configure_optimizers(self):
        return new_optimizer(self.method, self.net)


@pytest.mark.parametrize("automatic", [True, False], ids=["automatic", "manual"])
@pytest.mark.parametrize("method", METHODS)
def test_lightning_s_step_is_that_of_the_plain_loop(method, automatic, matrix):
    lit = Lit(method, automatic)
    lightning.Trainer(**QUIET, limit_train_batches=STEPS).fit(lit, loader())
    expected, _ = plain(method)
    assert furthest(lit.net, expected) < WITHIN
    assert aesam.unwrap(lit.optimizers()).last_step.index == STEPS - 1
    use = "automatic" if automatic else "manual"
    matrix.right("Lightning", f"methods of one gradient, {use} optimization", within=WITHIN)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("method", METHODS)
def test_accelerate_s_loop_is_the_plain_loop(method, clip, matrix):
    accelerator = Accelerator(cpu=True)
    net = mlp()
    model, opt = accelerator.prepare(net, new_optimizer(method, net))
    problem = Problem(model)
    for t in range(STEPS):
        opt.zero_grad()
        accelerator.backward(problem.losses(t).mean())
        if clip is not None:
            accelerator.clip_grad_norm_(model.parameters(), clip)
        opt.step()
    assert furthest(net, plain(method, clip)[0]) < WITHIN
    matrix.right("Accelerate", "methods of one gradient, its own loop, also clipped", within=WITHIN)


class WithLoss(nn.Module):
    """Returns loss and logits by name, as Transformers' models do."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, y):
        logits = self.net(x)
        return {"loss": (logits - y).square().sum(1).mean() / 2, "logits": logits}


class InOrder(Trainer):
    """Takes the problem's batches as they are."""

    def get_train_dataloader(self):
        problem = Problem(mlp())
        batches = [{"x": problem.x[t], "y": problem.y[t]} for t in range(STEPS)]
        return DataLoader(batches, batch_size=None)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("method", METHODS)
def test_transformers_trainer_as_it_is_is_the_plain_loop(method, clip, tmp_path, matrix):
    model = WithLoss()
    opt = new_optimizer(method, model)
    changes = {"max_steps": STEPS, "max_grad_norm": clip or 0.0, "remove_unused_columns": False}
    trainer = InOrder(
        model, arguments(tmp_path, **changes), train_dataset=[0], optimizers=(opt, None)
    )
    trainer.train()
    assert furthest(model.net, plain(method, clip)[0]) < WITHIN
    assert opt.last_step.index == STEPS - 1
    matrix.right(
        "Transformers' Trainer", "methods of one gradient, as it is, also clipped", within=WITHIN
    )


def test_accumulation_in_a_trainer_is_refused_by_what_compares_outputs(tmp_path, matrix):
    model = WithLoss()
    opt = new_optimizer("mesa", model)
    changes = {"max_steps": 4, "gradient_accumulation_steps": 2, "remove_unused_columns": False}
    trainer = InOrder(
        model, arguments(tmp_path, **changes), train_dataset=[0], optimizers=(opt, None)
    )
    with pytest.raises(RuntimeError, match="one forward and one backward") as error:
        trainer.train()
    matrix.refused("Transformers' Trainer", "MESA with accumulation", error.value)
