"""Inside the wrappers that trainers put around an optimizer."""

import warnings

import lightning as L
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.problems import BASES, METHODS, Problem, mlp, same, weights
from torch.utils.data import DataLoader, TensorDataset

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


@pytest.fixture
def accelerator():
    yield Accelerator(cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def test_unwrap_finds_ours_in_accelerate(accelerator):
    model = mlp()
    opt = aesam.LookSAM(BASES["sgd"](model.parameters()), model, k=2)
    prepared = accelerator.prepare(opt)
    assert prepared is not opt
    assert aesam.unwrap(prepared) is opt
    assert opt.param_groups is opt.base.param_groups is prepared.param_groups


@pytest.mark.parametrize("method", METHODS)
def test_training_through_accelerate_is_training_without(method, accelerator):
    ends = []
    for wrapped in (False, True):
        model = mlp()
        problem = Problem(model)
        opt = METHODS[method](BASES["sgd"](model.parameters()), model)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
        outer = accelerator.prepare(opt) if wrapped else opt
        for t in range(10):
            outer.step(problem.for_step(opt, t))
            scheduler.step()
        ends.append(weights(model))
        assert opt.base.param_groups[0]["lr"] == scheduler.get_last_lr()[0] < 0.1
    assert same(*ends)


def test_unwrap_finds_ours_in_fabric():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    wrapped_model, wrapped = fabric.setup(model, opt)
    problem = Problem(wrapped_model)
    assert isinstance(wrapped, aesam.SharpnessAware)
    assert aesam.unwrap(wrapped) is opt
    wrapped.step(problem.closure(opt, 0))
    with wrapped.first_pass():
        problem.losses(1).mean().backward()
    assert wrapped.needs_second_pass()
    with wrapped.perturbed():
        problem.losses(1).mean().backward()
    wrapped.step()
    assert opt.last_step.index == wrapped.last_step.index == 1
    assert wrapped.sam_fraction == 1.0


class Lit(L.LightningModule):
    def __init__(self, method):
        super().__init__()
        self.net = mlp()
        self.method = method

    def training_step(self, batch, _):
        x, y = batch
        return (self.net(x) - y).square().sum(1).mean() / 2

    def configure_optimizers(self):
        opt = METHODS[self.method](BASES["sgd"](self.net.parameters()), self.net)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1)]


@pytest.mark.parametrize("method", ["erm", "sam", "ss-sam", "looksam", "ae-sam", "ae-looksam"])
def test_lightning_s_automatic_optimization_is_the_closure_form(method, tmp_path):
    lit = Lit(method)
    problem = Problem(mlp())
    data = DataLoader(TensorDataset(problem.x.flatten(0, 1), problem.y.flatten(0, 1)), batch_size=8)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(lit, data)
    wrapper = lit.optimizers()
    ours = aesam.unwrap(wrapper)
    assert type(wrapper) is not type(ours)
    assert ours.last_step.index == 49
    alone = METHODS[method](BASES["sgd"](problem.model.parameters()), problem.model)
    problem.train(alone, 50)
    for left, right in zip(weights(lit.net), weights(problem.model), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_unwrap_without_ours_inside_says_so(accelerator):
    prepared = accelerator.prepare(BASES["sgd"](mlp().parameters()))
    with pytest.raises(TypeError, match="no sharpness-aware optimizer inside this Accelerated"):
        aesam.unwrap(prepared)
