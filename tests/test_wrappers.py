"""Inside the wrappers that trainers put around an optimizer."""

import lightning as L
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.problems import BASES, METHODS, Problem, mlp, same, weights

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


def test_unwrap_without_ours_inside_says_so(accelerator):
    prepared = accelerator.prepare(BASES["sgd"](mlp().parameters()))
    with pytest.raises(TypeError, match="no sharpness-aware optimizer inside this Accelerated"):
        aesam.unwrap(prepared)
