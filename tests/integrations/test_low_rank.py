"""Bi-LoRA against W₀ + s B₁A₁ + B₂A₂ by hand, in every form of a step; who sees what of it."""

import copy
import io
import math
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from peft import LoraConfig
from safetensors.torch import load_file
from support.adapted import BASES, Literal, adapted, trained, two_rates
from support.problems import Problem, mlp, same, weights
from support.processes import on_processes
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import aesam

pytestmark = pytest.mark.slow
STEPS = 6


def new(kind="sgd", model=None, **options):
    model = adapted() if model is None else model
    opt = aesam.BiLoRA(BASES[kind](two_rates(model)), model, **({"rho": 0.1} | options))
    return model, Problem(model), opt


def bare(problem, opt, t):
    opt.zero_grad()
    problem.losses(t).mean().backward()
    opt.step()


def in_two_micro_batches(problem, opt, t):
    problem.model.zero_grad()  # and not the optimizer's, as Transformers' Trainer does
    for rows in (slice(0, 4), slice(4, 8)):
        (problem.losses(t, rows).mean() / 2).backward()
    opt.step()


def by_a_scaler(problem, opt, t):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    opt.zero_grad()
    scaler.scale(problem.losses(t).mean()).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()


def by_a_scaled_closure(problem, opt, t):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def closure():
        opt.zero_grad()
        loss = problem.losses(t).mean()
        scaler.scale(loss).backward()
        return loss

    opt.step(closure, scaler=scaler)
    scaler.update()


FORMS = {
    "closure": lambda problem, opt, t: problem.step(opt, t),
    "own passes": lambda problem, opt, t: problem.own_passes(opt, t),
    "bare": bare,
    "micro-batches": in_two_micro_batches,
    "scaler": by_a_scaler,
    "scaled closure": by_a_scaled_closure,
}


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("form", FORMS)
def test_the_rule_is_the_literal_one_in_every_form(form, kind):
    literal = Literal(kind, rho=0.1)
    model, problem, opt = new(kind)
    norms = []
    for t in range(STEPS):
        FORMS[form](problem, opt, t)
        literal.step(t)
        norms.append(literal.norm())
        assert opt.ascent_norm() == pytest.approx(literal.norm(), rel=1e-10)
    for left, right in zip(trained(model), literal.trained(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    assert norms[0] < 0.1
    assert max(norms) == pytest.approx(0.1)  # both sides of the clipping were tried
    assert opt.last_step.index == STEPS - 1


@pytest.mark.parametrize(
    "options", [{"lr_ratio": 5.0, "seed": 3}, {"rho": 10.0}, {"dropout": 0.4}, {"maximize": True}]
)
def test_settings_dropout_and_maximising_are_those_of_the_rule(options):
    given = {"rho": 0.1, **options}
    literal = Literal("sgd", **given)
    model = adapted(dropout=given.pop("dropout", 0.0))
    groups = [{**g, "maximize": given.get("maximize", False)} for g in two_rates(model)]
    given.pop("maximize", None)
    opt, problem = aesam.BiLoRA(BASES["sgd"](groups), model, **given), Problem(model)
    for t in range(STEPS):
        torch.manual_seed(t)
        bare(problem, opt, t)
        torch.manual_seed(t)
        literal.step(t)
    for left, right in zip(trained(model), literal.trained(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


# Who sees the ascent adapters -----------------------------------------------------------------


def begun(steps=4, **options):
    model, problem, opt = new(**options)
    for t in range(steps):
        bare(problem, opt, t)
    assert opt.ascent_norm() > 0.01
    return model, problem, opt


def plain_output(model, x):
    """``W₀ + s B₁A₁`` alone: PEFT's own model, with the same weights."""
    other = adapted()
    other.load_state_dict(model.state_dict())
    return other(x)


def test_only_training_forwards_are_made_with_them():
    model, problem, opt = begun()
    x = problem.x[0]
    opt.zero_grad()
    model.eval()
    assert torch.equal(model(x), plain_output(model, x))
    model.train()
    with torch.no_grad():
        assert torch.equal(model(x), plain_output(model, x))
    away = model(x)
    assert (away - plain_output(model, x)).abs().max() > 1e-3
    with pytest.raises(RuntimeError, match="brought back to w before its"):
        away.sum().backward()  # a state dict was asked for in between


def test_the_model_holds_and_saves_nothing_of_them(tmp_path):
    model, problem, opt = begun()
    fresh = adapted()
    assert model.state_dict().keys() == fresh.state_dict().keys()
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in fresh.named_parameters()]
    assert {p for g in opt.param_groups for p in g["params"]} == set(trained(model))
    opt.zero_grad()
    problem.losses(0)  # their branches are in the model now
    model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "adapter_model.safetensors").keys()
    assert len(names) == len(trained(model))
    assert all(not layer._forward_hooks for layer in model.modules() if hasattr(layer, "lora_A"))
    merged = copy.deepcopy(model).merge_and_unload()
    x = problem.x[0]
    torch.testing.assert_close(merged(x), plain_output(model, x), rtol=0, atol=1e-14)


def test_adapters_that_are_off_have_no_branch():
    model, problem, _ = begun()
    x = problem.x[0]
    with model.disable_adapter():
        assert torch.equal(model(x), mlp()(x))


def test_a_radius_of_zero_is_plain_lora_to_the_bit():
    model, problem, opt = new(rho=0.0)
    other = adapted()
    base, theirs = BASES["sgd"](two_rates(other)), Problem(other)
    for t in range(STEPS):
        bare(problem, opt, t)
        base.zero_grad()
        theirs.losses(t).mean().backward()
        base.step()
    assert same(weights(model), weights(other))
    assert opt.ascent_norm() == 0.0


def test_clipping_and_weight_decay_are_of_the_descent_alone():
    ends = []
    for decay, clipped in ((0.0, False), (0.5, True)):
        model = adapted()
        groups = [{**g, "lr": 0.0} for g in two_rates(model)]
        opt = aesam.BiLoRA(torch.optim.SGD(groups, weight_decay=decay), model, rho=0.1)
        problem = Problem(model)
        for group, lr in zip(opt.param_groups, (0.1, 0.3), strict=True):
            group["lr"] = lr
        problem.losses(0).mean().backward()
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        opt.step()
        ends.append(opt.ascent_norm())
    assert ends[0] == ends[1] > 0.0


def test_gradients_that_were_cleared_without_a_step_leave_nothing_behind():
    model, problem, opt = new()
    other, theirs, expected = new()
    ways = (
        opt.zero_grad,
        model.zero_grad,
        partial(opt.zero_grad, set_to_none=False),
        partial(model.zero_grad, set_to_none=False),
    )
    for t in range(8):
        problem.losses(t + 9).mean().backward()
        ways[t % 4]()
        problem.losses(t).mean().backward()
        opt.step()
        opt.zero_grad()
        bare(theirs, expected, t)
    assert same(weights(model), weights(other))


def test_an_ascent_without_finite_gradients_keeps_its_adapters():
    model, problem, opt = begun()
    before = opt.ascent_norm()
    opt.zero_grad()
    problem.losses(5).mean().backward()
    for remembered in opt._ledger.committed.memory("ascent").tensors.values():
        remembered.grad.fill_(math.inf)
    home = weights(model)
    opt.step()
    assert opt.ascent_norm() == before
    assert not same(weights(model), home)


def test_a_step_that_is_skipped_leaves_them_as_they_were():
    model, problem, opt = begun()
    expected = copy.deepcopy((model, opt))
    problem.losses(4).mean().mul(math.nan).backward()
    with pytest.warns(UserWarning, match="infinite or NaN"):
        opt.step()
    model.zero_grad()
    bare(problem, opt, 5)
    other, theirs = expected
    bare(Problem(other), theirs, 5)
    assert same(weights(model), weights(other))


def test_a_model_that_is_cast_takes_them_along():
    model, problem, opt = new()
    model.float()
    problem.x, problem.y = problem.x.float(), problem.y.float()
    for t in range(STEPS):
        bare(problem, opt, t)
    kept = opt._ledger.committed.memory("ascent").tensors.values()
    assert {t.dtype for t in kept} == {torch.float32}
    assert opt.ascent_norm() == pytest.approx(0.1, rel=0.1)


# Going on ---------------------------------------------------------------------------------------


def by_state_dict(model, opt, other, fresh, folder):
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, saved)
    saved.seek(0)
    read = torch.load(saved, weights_only=True)
    other.load_state_dict(read["model"])
    fresh.load_state_dict(read["opt"])


def by_dcp(model, opt, other, fresh, folder):
    of_model, of_opt = get_state_dict(model, opt)
    dcp.save({"model": of_model, "opt": of_opt}, checkpoint_id=folder, no_dist=True)
    of_model, of_opt = get_state_dict(other, fresh)
    read = {"model": of_model, "opt": of_opt}
    dcp.load(read, checkpoint_id=folder, no_dist=True)
    set_state_dict(other, fresh, model_state_dict=read["model"], optim_state_dict=read["opt"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("way", [by_state_dict, by_dcp])
@pytest.mark.parametrize("steps", [0, 4])
def test_a_resumed_run_is_the_run_that_was_never_stopped(way, kind, steps, tmp_path):
    model, problem, opt = new(kind, seed=1)
    for t in range(steps):
        bare(problem, opt, t)
    other, theirs, fresh = new(kind, adapted(seed=9), seed=2)  # another start of A₂
    way(model, opt, other, fresh, tmp_path)
    for t in range(steps, steps + 4):
        bare(problem, opt, t)
        bare(theirs, fresh, t)
    assert same(weights(model), weights(other))
    assert fresh.ascent_norm() == opt.ascent_norm() > 0.0


def test_a_checkpoint_that_lacks_one_is_refused():
    _, _, opt = begun()
    saved = opt.state_dict()
    for name in ("aesam.ascent", "aesam.ascent.formed"):
        del saved["state"][3][name]
    before = opt.ascent_norm()
    with pytest.raises(ValueError, match="tensors are there"):
        opt.load_state_dict(saved)
    assert opt.ascent_norm() == before


def test_a_copy_goes_on_by_itself():
    model, problem, opt = begun()
    other, fresh = copy.deepcopy((model, opt))
    theirs = Problem(other)
    for t in range(4, 8):
        bare(theirs, fresh, t)
    home = weights(model)
    assert not same(home, weights(other))
    for t in range(4, 8):
        bare(problem, opt, t)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_the_model_between_forward_and_backward_is_without_them(copied):
    model, problem, opt = begun()
    loss = problem.losses(0).mean()
    other = copied(model)
    loss.backward()
    opt.step()
    other.eval()
    assert torch.equal(other(problem.x[0]), plain_output(other, problem.x[0]))


def test_a_reference_forward_between_forward_and_backward_is_without_them():
    """DPO's: the same model with its adapters off, or all of it without gradients."""
    literal = Literal("sgd", rho=0.1)
    model, problem, opt = new()
    for t in range(STEPS):
        opt.zero_grad()
        loss = problem.losses(t).mean()
        with torch.no_grad():
            assert torch.equal(model(problem.x[t]), plain_output_of(model, problem.x[t]))
            with model.disable_adapter():
                assert torch.equal(model(problem.x[t]), mlp()(problem.x[t]))
        loss.backward()
        opt.step()
        literal.step(t)
    for left, right in zip(trained(model), literal.trained(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def plain_output_of(model, x):
    """As :func:`plain_output`, without asking the model for its state dict."""
    other = adapted()
    with torch.no_grad():
        for p, own in zip(other.parameters(), model.parameters(), strict=True):
            p.copy_(own)
        return other(x)


class Checkpointed(nn.Module):
    """Reentrant: the first forward has no gradients, and another runs inside the backward."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return checkpoint(self.net, x.clone().requires_grad_(), use_reentrant=True)


def test_activation_checkpoints_are_made_again_with_them():
    literal = Literal("sgd", rho=0.1)
    model = adapted()
    whole = Checkpointed(model)
    opt, problem = aesam.BiLoRA(BASES["sgd"](two_rates(model)), whole, rho=0.1), Problem(whole)
    for t in range(STEPS):
        bare(problem, opt, t)
        literal.step(t)
    for left, right in zip(trained(model), literal.trained(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("compiled", ["whole", "inside", "a layer"])
def test_compiled_modules_are_right_too(compiled, matrix):
    torch.compiler.reset()
    literal = Literal("sgd", rho=0.1)
    model, problem, opt = new()
    inside = model.base_model.model
    {"whole": model, "inside": inside, "a layer": inside[0]}[compiled].compile(backend="eager")
    for t in range(STEPS):
        bare(problem, opt, t)
        literal.step(t)
    for left, right in zip(trained(model), literal.trained(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    matrix.right("PEFT", "Bi-LoRA of compiled modules", within=1e-12)


# Several processes --------------------------------------------------------------------------


def on_two(rank):
    """What two processes come to under DDP, the optimizer given one model or the other."""
    return [trained_on_half(rank, given) for given in ("ddp", "model")], refused_shards()


def trained_on_half(rank, given):
    """The adapters, then A₂ and B₂, after a training on half of each batch in two micro-batches."""
    model = adapted()
    wrapped = DistributedDataParallel(model)
    opt = aesam.BiLoRA(
        BASES["sgd"](two_rates(model)), wrapped if given == "ddp" else model, rho=0.1
    )
    problem = Problem(wrapped)
    halves = slice(4 * rank, 4 * rank + 2), slice(4 * rank + 2, 4 * rank + 4)
    for t in range(STEPS):
        opt.zero_grad()
        with wrapped.no_sync():
            (problem.losses(t, halves[0]).mean() / 2).backward()
        (problem.losses(t, halves[1]).mean() / 2).backward()
        opt.step()
    kept = opt._ledger.committed.memory("ascent").tensors.values()
    return [t.detach().numpy() for t in (*trained(model), *kept)]


def refused_shards():
    """What is said of shards, where the optimizer is made of them and where they come later."""
    told = []
    for is_first in (True, False):
        model = adapted()
        made = None if is_first else new(model=model)
        fully_shard(model)
        try:
            made = made or new(model=model)
            model(torch.ones(2, 3, dtype=torch.float64))
        except (RuntimeError, TypeError) as error:
            told.append(str(error))
    return told


def test_two_processes_are_one_on_the_whole_batch_and_shards_are_refused(matrix):
    literal = Literal("sgd", rho=0.1)
    for t in range(STEPS):
        literal.step(t)
    ascent = [t for pair in zip(literal.down_2, literal.up_2, strict=True) for t in pair]
    (ends, told), (others, _) = on_processes(on_two)
    for end, other in zip(ends, others, strict=True):
        for left, right in zip(end, other, strict=True):
            assert (left == right).all()
        for left, right in zip(end, literal.trained() + ascent, strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-12)
    matrix.right("PEFT", "Bi-LoRA under DDP, accumulating", within=1e-12)
    of_shards, sharded_later = told
    assert "has a sharded adapter (FSDP2, tensor parallel)" in of_shards
    assert "is not the one that the optimizer was made for" in sharded_later
    matrix.refused("PEFT", "Bi-LoRA of shards (FSDP2)", TypeError(of_shards))


# What it refuses ------------------------------------------------------------------------------


class WithEmbedding(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.conv = nn.Embedding(5, 3), nn.Conv1d(3, 3, 1)

    def forward(self, x):
        return self.conv(self.words(x).mT)


REFUSED = {
    "an embedding": (
        {"net": WithEmbedding, "target_modules": ["words"]},
        r"words is a peft.*Embedding around a Embedding: Bi-LoRA is for LoRA on linear layers",
    ),
    "a convolution": (
        {"net": WithEmbedding, "target_modules": ["conv"]},
        r"conv is a peft.*Conv1d around a Conv1d: Bi-LoRA is for LoRA on linear layers",
    ),
    "DoRA": ({"use_dora": True}, r"0 has the variant DoraLinearVariant of LoRA"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_layers_that_are_not_w_plus_b_a_are_refused(kind):
    options, told = REFUSED[kind]
    model = adapted(**options)
    with pytest.raises(ValueError, match=told):
        aesam.create("bi-lora", model)


def spoilt(how):
    model = adapted()
    first = model.base_model.model[0]
    if how == "merged":
        model.merge_adapter()
    elif how == "frozen":
        for p in trained(model):
            p.requires_grad_(False)
    elif how == "half":
        first.lora_A["default"].weight.requires_grad_(False)
    elif how == "two":
        config = LoraConfig(r=1, target_modules=["0"])
        model.add_adapter("other", config)
        first.lora_A["other"].weight.requires_grad_(True)
    elif how == "shared":
        model.base_model.model[2].lora_B["default"].weight = first.lora_B["default"].weight
    return model


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("merged", r"call model.unmerge_adapter\(\) first"),
        ("frozen", r"needs a model with LoRA adapters of PEFT that are trained, got PeftModel"),
        ("half", r"trains one matrix of its adapter 'default' and not the other"),
        ("two", r"several adapters that are trained, \['default', 'other'\]"),
        ("shared", r"share a matrix of their adapters"),
    ],
)
def test_adapters_that_could_not_ascend_are_refused(how, told):
    with pytest.raises(ValueError, match=told):
        aesam.create("bi-lora", spoilt(how))


def test_an_optimizer_over_other_parameters_is_refused():
    model = adapted()
    with pytest.raises(ValueError, match="does not have the adapter at base_model.model.2"):
        aesam.BiLoRA(torch.optim.SGD(trained(model)[:2], lr=0.1), model)


def test_radii_that_differ_between_adapters_are_refused():
    model, problem, opt = new()
    opt.param_groups[0]["rho"] = 0.2
    before = weights(model)
    with pytest.raises(ValueError, match=r"rho is \[0.1, 0.2\] in the parameter groups"):
        bare(problem, opt, 0)
    assert same(weights(model), before)


def test_keywords_that_mean_nothing_to_it_are_refused():
    model = adapted()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="BiLoRA has no keyword normalize"):
        aesam.BiLoRA(base, model, normalize=False)
    with pytest.raises(ValueError, match="local_ascent=True cannot be used with AscentAdapters"):
        aesam.BiLoRA(base, model, local_ascent=True)
    for name in ("lr_ratio", "rho"):
        with pytest.raises(ValueError, match=f"{name} must be a finite number >= 0"):
            aesam.BiLoRA(base, model, **{name: -1.0})


def with_an_adapter_added(model):
    model.add_adapter("more", LoraConfig(r=2, target_modules=["2"]))
    model.set_adapter("more")


def with_a_layer_no_longer_frozen(model):
    for name, p in model.named_parameters():
        p.requires_grad_(p.requires_grad or "lora" in name)


@pytest.mark.parametrize("change", [with_an_adapter_added, with_a_layer_no_longer_frozen])
def test_an_adapter_that_is_trained_later_is_refused_before_it_is_run(change):
    model = adapted()
    for name, p in model.named_parameters():
        p.requires_grad_("lora" in name and ".2." not in name)
    opt = aesam.BiLoRA(torch.optim.SGD(trained(model), lr=0.1), model)
    bare(problem := Problem(model), opt, 0)
    change(model)
    opt.add_param_group({"params": [p for p in trained(model) if id(p) not in held_by(opt)]})
    with pytest.raises(RuntimeError, match=r"adapter at \S+\.2 is trained and was not when"):
        bare(problem, opt, 1)


def held_by(opt):
    return {id(p) for group in opt.param_groups for p in group["params"]}


def test_gradients_that_were_made_by_hand_are_refused():
    model, _, opt = new()
    with opt.first_pass():
        for p in trained(model):
            p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="the ascent adapter beside it has none"):
        opt.needs_second_pass()


def test_gradients_that_came_by_no_training_forward_are_refused():
    model, problem, opt = new()
    model.eval()
    problem.losses(0).mean().backward()
    with pytest.raises(RuntimeError, match="a gradient of no training forward of the model"):
        opt.step()


def test_the_docs_name_its_parts():
    _, _, opt = new()
    found = {q: type(p).__name__ for q, p in opt.parts.by_name.items()}
    assert (found["policy"], found["ascent"]) == ("Never", "AscentAdapters")
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text()
    assert "| policy `Never`, ascent `AscentAdapters` | Liu et al. 2025 |" in page
