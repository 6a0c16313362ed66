"""Base optimizers that are unlike torch's: two sets of weights, or wrapped around another."""

import copy
import io

import pytest
import pytorch_optimizer
import schedulefree
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.problems import Problem, mlp, same, weights

import aesam
from aesam.parts.policies import Always

SCHEDULE_FREE = {
    "SGDScheduleFree": lambda p: schedulefree.SGDScheduleFree(p, lr=0.1),
    "AdamWScheduleFree": lambda p: schedulefree.AdamWScheduleFree(p, lr=0.01, warmup_steps=3),
    "ScheduleFreeAdamW": lambda p: pytorch_optimizer.ScheduleFreeAdamW(p, lr=0.01),
    "ScheduleFreeWrapper": lambda p: pytorch_optimizer.ScheduleFreeWrapper(
        torch.optim.SGD(p, lr=0.1)
    ),
}
WRAPPERS = {
    "Lookahead": lambda p: pytorch_optimizer.Lookahead(
        torch.optim.SGD(p, lr=0.1, momentum=0.9), k=3, pullback_momentum="pullback"
    ),
    "TRAC": lambda p: pytorch_optimizer.TRAC(torch.optim.AdamW(p, lr=0.01)),
    "OrthoGrad": lambda p: pytorch_optimizer.OrthoGrad(torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "ScheduleFreeWrapper": SCHEDULE_FREE["ScheduleFreeWrapper"],
}
#: Bases whose state dicts have keys and shapes that torch's do not have.
UNUSUAL = {
    "StableSPAM": pytorch_optimizer.StableSPAM,  # a key beside state and param_groups
    "Amos": pytorch_optimizer.Amos,  # exp_avg_sq is one number
    "Nero": pytorch_optimizer.Nero,  # exp_avg_sq is one number for each neuron
}
STEPS = 9


def alone(make, evaluate_at=()):
    """The base's own loop: weights as evaluated at some steps, and at the end."""
    problem = Problem(mlp())
    base = make(problem.model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(base, 4)
    seen = []
    for t in range(STEPS):
        tell(base, "train")
        base.zero_grad()
        problem.losses(t).mean().backward()
        base.step()
        scheduler.step()
        if t in evaluate_at:
            tell(base, "eval")
            seen += weights(problem.model)
    tell(base, "eval")
    return seen + weights(problem.model)


def tell(base, mode):
    if hasattr(base, mode):
        getattr(base, mode)()


@pytest.fixture
def accelerator():
    yield Accelerator(cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


# Two sets of weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["erm", "sam without a radius"])
@pytest.mark.parametrize("base", SCHEDULE_FREE)
def test_schedule_free_weights_are_evaluated_as_without_us(base, method, accelerator, matrix):
    make = SCHEDULE_FREE[base]
    for through in ("ours", "Accelerate"):
        problem = Problem(mlp())
        inner = make(problem.model.parameters())
        opt = aesam.ERM(inner) if method == "erm" else aesam.SAM(inner, rho=0.0)
        outer = opt if through == "ours" else accelerator.prepare(opt)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 4)
        seen = []
        for t in range(STEPS):
            outer.train()
            outer.step(problem.closure(opt, t))
            scheduler.step()
            if t in (2, 5):
                outer.eval()
                seen += weights(problem.model)
        outer.eval()
        assert same(alone(make, evaluate_at=(2, 5)), seen + weights(problem.model))
    matrix.right("Bases", f"{base}: train() and eval()", within=0.0)


@pytest.mark.parametrize("base", SCHEDULE_FREE)
def test_a_trained_schedule_free_model_has_two_sets_of_weights(base):
    """What a trainer would evaluate if eval() did not arrive."""
    problem = Problem(mlp())
    opt = aesam.SAM(SCHEDULE_FREE[base](problem.model.parameters()), problem.model)
    opt.train()
    problem.train(opt, STEPS)
    trained = weights(problem.model)
    opt.eval()
    assert not same(trained, weights(problem.model))
    opt.train()
    for left, right in zip(trained, weights(problem.model), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_bases_with_one_set_of_weights_do_not_mind():
    problem = Problem(mlp())
    opt = aesam.SAM(torch.optim.SGD(problem.model.parameters(), lr=0.1), problem.model)
    before = weights(problem.model)
    with opt.first_pass():
        opt.train()
        opt.eval()
    opt.eval()
    assert same(before, weights(problem.model))
    problem.train(opt, 1)


def test_it_reaches_what_a_wrapper_wraps():
    problem = Problem(mlp())
    inner = schedulefree.SGDScheduleFree(problem.model.parameters(), lr=0.1)
    opt = aesam.ERM(pytorch_optimizer.OrthoGrad(inner))
    opt.train()
    assert inner.param_groups[0]["train_mode"]
    opt.eval()
    assert not inner.param_groups[0]["train_mode"]


def test_changing_weights_inside_a_pass_is_refused_and_saying_train_again_is_not():
    problem = Problem(mlp())
    opt = aesam.SAM(SCHEDULE_FREE["SGDScheduleFree"](problem.model.parameters()), problem.model)
    with opt.first_pass():
        opt.train()  # as a trainer does before every forward
        problem.losses(0).mean().backward()
        with pytest.raises(RuntimeError, match=r"eval\(\) inside `with opt.first_pass\(\)`"):
            opt.eval()
    assert opt.needs_second_pass()
    with opt.perturbed():
        opt.train()
        problem.losses(0).mean().backward()
        with pytest.raises(RuntimeError, match=r"eval\(\) inside `with opt.perturbed\(\)`"):
            opt.eval()
    opt.step()
    opt.load_state_dict(opt.state_dict())  # which may be of the other mode
    problem.losses(1).mean().backward()
    assert opt.needs_second_pass()
    with opt.perturbed():
        problem.losses(1).mean().backward()
        with pytest.raises(RuntimeError, match=r"train\(\) inside `with opt.perturbed\(\)`"):
            opt.train()


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": (out - labels).square().sum(1).mean() / 2, "logits": out}


class ByClosure(transformers.Trainer):
    """Both passes inside `training_step`, before the Trainer's bare step."""

    def training_step(self, model, inputs, *rest):
        opt = aesam.unwrap(self.optimizer)
        with opt.first_pass():
            loss = super().training_step(model, inputs, *rest)
        if opt.needs_second_pass():
            with opt.perturbed():
                super().training_step(model, inputs, *rest)
        return loss


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_transformers_evaluates_a_schedule_free_base_at_its_averaged_weights(tmp_path, matrix):
    problem = Problem(mlp())
    rows = [{"x": problem.x[t, 0], "labels": problem.y[t, 0]} for t in range(8)]
    model = Regression()
    opt = aesam.SAM(schedulefree.SGDScheduleFree(model.parameters(), lr=0.1), model, rho=0.1)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, save_strategy="no", max_grad_norm=0.0, logging_strategy="no",
        remove_unused_columns=False, lr_scheduler_type="constant", disable_tqdm=True,
        per_device_eval_batch_size=8, train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = ByClosure(model, args, train_dataset=rows, eval_dataset=rows, optimizers=(opt, None))
    trainer.train()
    found = trainer.evaluate()["eval_loss"]
    plain = Regression()
    ours = aesam.SAM(schedulefree.SGDScheduleFree(plain.parameters(), lr=0.1), plain, rho=0.1)
    batch = torch.utils.data.default_collate
    ours.train()
    for t in range(4):
        part = batch(rows[2 * t : 2 * t + 2])

        def closure(part=part):
            ours.zero_grad()
            loss = plain(**part)["loss"]
            loss.backward()
            return loss

        ours.step(closure)
    ours.eval()
    with torch.no_grad():
        assert found == pytest.approx(plain(**batch(rows))["loss"].item(), abs=1e-6)
    assert same(weights(plain), weights(model))
    matrix.right("Transformers", "a schedule-free base is evaluated", within=0.0)


# Wrapped around another -------------------------------------------------------------------------


@pytest.mark.parametrize("base", [*WRAPPERS, *UNUSUAL])
def test_an_unusual_base_trains_saves_and_resumes_as_alone(base, matrix):
    make = {**WRAPPERS, **UNUSUAL}[base]
    expected = alone(make)
    for interrupted in (False, True):
        problem = Problem(mlp())
        opt = aesam.ERM(make(problem.model.parameters()))
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 4)
        for t in range(STEPS):
            opt.train()
            if interrupted and t == 5:
                saved = io.BytesIO()
                parts = (problem.model, opt, scheduler)
                torch.save([part.state_dict() for part in parts], saved)
                problem = Problem(mlp(seed=1))
                opt = aesam.ERM(make(problem.model.parameters()))
                scheduler = torch.optim.lr_scheduler.StepLR(opt, 4)
                saved.seek(0)
                loaded = torch.load(saved, weights_only=True)
                for part, state in zip((problem.model, opt, scheduler), loaded, strict=True):
                    part.load_state_dict(state)
            problem.step(opt, t)
            scheduler.step()
        opt.eval()
        assert same(expected, weights(problem.model))
        assert opt.param_groups[0]["lr"] == scheduler.get_last_lr()[0]
    matrix.right("Bases", f"{base}: train, save, resume, schedule", within=0.0)


@pytest.mark.parametrize("base", WRAPPERS)
def test_a_wrapper_steps_on_the_direction_of_sam(base):
    """Against the wrapper alone, handed the gradient at w + ε."""
    problem = Problem(mlp())
    opt = aesam.SAM(WRAPPERS[base](problem.model.parameters()), problem.model, rho=0.3)
    opt.train()
    problem.train(opt, STEPS)
    other = Problem(mlp())
    params = list(other.model.parameters())
    inner = WRAPPERS[base](params)
    tell(inner, "train")
    for t in range(STEPS):
        g = torch.autograd.grad(other.losses(t).mean(), params)
        norm = torch.cat([v.flatten() for v in g]).norm()
        before = weights(other.model)
        with torch.no_grad():
            for p, v in zip(params, g, strict=True):
                p.add_(v, alpha=0.3 / norm.item())
        second = torch.autograd.grad(other.losses(t).mean(), params)
        with torch.no_grad():
            for p, w, d in zip(params, before, second, strict=True):
                p.copy_(w)
                p.grad = d
        inner.step()
    for left, right in zip(weights(problem.model), weights(other.model), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("base", WRAPPERS)
def test_groups_of_a_wrapper_are_shared_and_have_the_radius(base):
    model = mlp()
    inner = WRAPPERS[base](model.parameters())
    opt = aesam.SAM(inner, rho=0.3)
    assert opt.param_groups is inner.optimizer.param_groups
    assert [g["rho"] for g in opt.param_groups] == [0.3]
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2).double())]})
    assert [g["rho"] for g in inner.optimizer.param_groups] == [0.3, 0.3]
    plain = torch.optim.SGD([{"params": g["params"]} for g in opt.param_groups], lr=0.7)
    if base == "OrthoGrad":  # whose state dict is that of what it wraps
        inner.load_state_dict(plain.state_dict())
        assert [(g["lr"], g["rho"]) for g in opt.param_groups] == [(0.7, 0.3)] * 2


@pytest.mark.parametrize("base", WRAPPERS)
def test_a_refused_state_dict_leaves_a_wrapper_as_it_was(base):
    problem = Problem(mlp())
    opt = aesam.ERM(WRAPPERS[base](problem.model.parameters()))
    opt.train()
    problem.train(opt, 4)
    groups = opt.param_groups
    other = aesam.ERM(WRAPPERS[base](torch.nn.Linear(2, 2).double().parameters()))
    with pytest.raises((ValueError, KeyError, RuntimeError)):
        opt.load_state_dict(other.state_dict())
    assert opt.param_groups is groups
    problem.train(opt, STEPS - 4, start=4)
    undisturbed = Problem(mlp())
    never_tried = aesam.ERM(WRAPPERS[base](undisturbed.model.parameters()))
    never_tried.train()
    undisturbed.train(never_tried, STEPS)
    assert same(weights(undisturbed.model), weights(problem.model))


@pytest.mark.parametrize("base", WRAPPERS)
def test_copying_a_wrapper_that_would_lose_itself_is_refused(base):
    opt = aesam.SAM(WRAPPERS[base](mlp().parameters()))
    with pytest.raises(TypeError, match="cannot be copied or pickled.*load the state dict"):
        copy.deepcopy(opt)


def test_a_base_that_is_torch_s_by_name_only_is_refused():
    class Hollow(torch.optim.Optimizer):
        def __init__(self, params):
            self.param_groups = [{"params": list(params), "lr": 0.1}]

        def step(self, closure=None):
            return None

    with pytest.raises(TypeError, match="Hollow did not run the constructor of torch"):
        aesam.SharpnessAware(Hollow(mlp().parameters()), policy=Always())
