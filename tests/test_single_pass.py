"""One gradient a step, taken elsewhere than at w: by closures, own passes and bare loops."""

import copy
import math

import pytest
import torch
from support.problems import Problem, normed_mlp, same, stochastic_net, weights
from torch import nn
from torch.utils.checkpoint import checkpoint

import aesam
from aesam.parts.ascents import RandomSubset
from aesam.parts.averaged_ascents import AlongAverage
from aesam.parts.policies import Always, Never
from aesam.parts.scaled_ascents import WithWeights
from aesam.parts.single_pass import AlongMomentum

STEPS = 6


def two_groups(model, kind):
    first, *rest = model.parameters()
    groups = [{"params": [first], "rho": 0.7}, {"params": rest}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(groups, lr=0.01)


METHODS = {
    "msam": lambda base, model=None, **o: aesam.MSAM(base, model, rho=0.3, **o),
    "msam uphill": lambda base, model=None, **o: aesam.MSAM(base, model, rho=0.3, uphill=True, **o),
    "msam, not normalised": lambda base, model=None, **o: aesam.MSAM(
        base, model, rho=0.1, normalize=False, **o
    ),
    "stale": lambda base, model=None, **o: aesam.StaleSAM(base, model, rho=0.3, **o),
    "msam, elementwise": lambda base, model=None, **o: aesam.MSAM(
        base, model, rho=0.3, elementwise=True, **o
    ),
    "msam, norm layers": lambda base, model=None, **o: aesam.MSAM(
        base, model, rho=0.3, norm_layers=True, **o
    ),
    "stale, elementwise": lambda base, model=None, **o: aesam.StaleSAM(
        base, model, rho=0.3, elementwise=True, **o
    ),
    "stale, norm layers": lambda base, model=None, **o: aesam.StaleSAM(
        base, model, rho=0.3, norm_layers=True, **o
    ),
}


def shaped(method, params, vectors):
    """What is gone along, and what it is divided by: the rules of MSAM, ASAM and SAM-ON."""
    if "elementwise" in method:
        scales = [p.detach().abs() + 0.01 if p.dim() > 1 else torch.ones(()) for p in params]
    elif "norm" in method and "normalised" not in method:
        scales = [torch.ones(()) if i in NORM_LAYER else torch.zeros(()) for i in range(6)]
    else:
        scales = [torch.ones(())] * len(params)
    scaled = [t * v for t, v in zip(scales, vectors, strict=True)]
    length = math.sqrt(sum(float((v * v).sum()) for v in scaled))
    return [t * v for t, v in zip(scales, scaled, strict=True)], length


NORM_LAYER = (2, 3)  # of the parameters of `normed_mlp`


def literal(method, kind, steps=STEPS):
    """The rule of the paper, written out: weights after so many steps of a plain optimizer."""
    model = normed_mlp()
    base, problem, last = two_groups(model, kind), Problem(model), None
    rho = {id(p): g.get("rho", 0.1 if "not" in method else 0.3) for g in base.param_groups
           for p in g["params"]}  # fmt: skip
    for t in range(steps):
        params = list(model.parameters())
        home = weights(model)
        if "stale" in method:
            vectors = last
        else:
            key = "momentum_buffer" if kind == "sgd" else "exp_avg"
            vectors = [base.state[p][key].clone() for p in params] if base.state else None
        if vectors is not None:
            vectors, length = shaped(method, params, vectors)
            sign = 1.0 if "stale" in method or "uphill" in method else -1.0
            for p, v in zip(params, vectors, strict=True):
                divisor = 1.0 if "not" in method else length
                p.data = p.data + sign * rho[id(p)] * v / divisor
        base.zero_grad()
        problem.losses(t).mean().backward()
        for p, w in zip(params, home, strict=True):
            p.data = w
        last = [p.grad.clone() for p in params]
        base.step()
    return weights(model)


def bare(problem, opt, t):
    opt.zero_grad()
    problem.losses(t).mean().backward()
    opt.step()


FORMS = {
    "closure": lambda problem, opt, t: problem.step(opt, t),
    "own passes": lambda problem, opt, t: problem.own_passes(opt, t),
    "bare": bare,
}


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_the_rule_is_the_literal_one_in_every_form(method, form, kind):
    model = normed_mlp()
    opt = METHODS[method](two_groups(model, kind), model)
    problem = Problem(model)
    for t in range(STEPS):
        FORMS[form](problem, opt, t)
    for left, right in zip(weights(model), literal(method, kind), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    assert opt.last_step.index == STEPS - 1
    assert opt.sam_fraction == 0.0
    assert not same(weights(model), plain(kind))


def plain(kind):
    model = normed_mlp()
    base, problem = two_groups(model, kind), Problem(model)
    for t in range(STEPS):
        base.zero_grad()
        problem.losses(t).mean().backward()
        base.step()
    return weights(model)


def begun(method="msam", net=normed_mlp, **options):
    """A training in a bare loop that has a momentum by now."""
    model = net()
    opt = METHODS[method](two_groups(model, "sgd"), model, **options)
    problem = Problem(model)
    for t in range(3):
        bare(problem, opt, t)
    return model, opt, problem


def test_weights_are_away_from_the_forward_to_the_end_of_the_backward_only():
    model, opt, problem = begun()
    home = weights(model)
    opt.zero_grad()
    loss = problem.losses(3).mean()
    away = weights(model)
    assert all(not torch.equal(a, w) for a, w in zip(away, home, strict=True))
    loss.backward()
    assert same(weights(model), home)
    opt.step()
    assert not same(weights(model), home)


@pytest.mark.parametrize("between", ["eval", "no_grad", "model", "whole", "optimizer", "copy"])
def test_all_else_sees_w_and_the_backward_of_other_weights_is_refused(between):
    model, opt, problem = begun()
    home, outer = weights(model), nn.Sequential(model)
    opt.zero_grad()
    loss = problem.losses(3).mean()
    if between == "eval":
        model.eval()
        problem.losses(3)
        model.train()
    elif between == "no_grad":
        with torch.no_grad():
            problem.losses(3)
    elif between == "model":
        assert same(list(model.state_dict().values()), home)
    elif between == "whole":
        assert same(list(outer.state_dict().values()), home)
    elif between == "optimizer":
        opt.state_dict()
    else:
        copy.deepcopy(opt)
    assert same(weights(model), home)
    with pytest.raises(RuntimeError, match="brought back to w before its"):
        loss.backward()
    assert same(weights(model), home)
    opt.zero_grad()
    bare(problem, opt, 3)
    assert same(weights(model), after(4))


def after(steps, method="msam"):
    model = normed_mlp()
    opt = METHODS[method](two_groups(model, "sgd"), model)
    problem = Problem(model)
    for t in range(steps):
        bare(problem, opt, t)
    return weights(model)


def test_a_second_backward_of_one_forward_is_refused():
    _, opt, problem = begun()
    opt.zero_grad()
    loss = problem.losses(3).mean()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward\\(\\) ran a second time"):
        loss.backward()


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_are_all_taken_at_the_same_place(method, matrix):
    models = [normed_mlp(), normed_mlp()]
    for model, split in zip(models, (False, True), strict=True):
        opt, problem = METHODS[method](two_groups(model, "sgd"), model), Problem(model)
        for t in range(STEPS):
            opt.zero_grad()
            rows = torch.arange(len(problem.x[t]))
            for part in rows.chunk(2) if split else [rows]:
                (problem.losses(t, part).sum() / len(rows)).backward()
            opt.step()
    for left, right in zip(*map(weights, models), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    row(matrix, method, "accumulation")


def row(matrix, method, use):
    """In the table of what was tried, for the two rules that have a name."""
    named = {"msam": "MSAM", "stale": "stale ascent"}
    if method in named:
        matrix.right("plain PyTorch", f"{named[method]}, bare step(), {use}", within=1e-12)


def test_two_forwards_of_one_backward_are_taken_at_the_same_place():
    model, opt, problem = begun()
    twice = copy.deepcopy(model)
    other = METHODS["msam"](two_groups(twice, "sgd"), twice)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    opt.zero_grad()
    rows = torch.arange(len(problem.x[3]))
    one, two = rows.chunk(2)
    ((problem.losses(3, one).sum() + problem.losses(3, two).sum()) / len(rows)).backward()
    opt.step()
    bare(Problem(twice), other, 3)
    for left, right in zip(weights(model), weights(twice), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_clipping_between_backward_and_step_is_the_base_s_affair():
    model, reference = normed_mlp(), normed_mlp()
    opt, whole = (METHODS["msam"](two_groups(m, "sgd"), m) for m in (model, reference))
    for t in range(STEPS):
        problem = Problem(model)
        opt.zero_grad()
        problem.losses(t).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        opt.step()

        def closure(t=t):
            whole.zero_grad()
            loss = Problem(reference).losses(t).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
            return loss

        whole.step(closure, edited=True)
    assert same(weights(model), weights(reference))


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_scaler_s_overflow_is_skipped_and_training_goes_on(method, matrix):
    model, reference = normed_mlp(), normed_mlp()
    opt, plain_opt = (METHODS[method](two_groups(m, "sgd"), m) for m in (model, reference))
    problem, other = Problem(model), Problem(reference)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(STEPS):
        for spoiled in (True, False) if t == 3 else (False,):
            opt.zero_grad()
            loss = problem.losses(t).mean() * (math.inf if spoiled else 1.0)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        bare(other, plain_opt, t)
    for left, right in zip(weights(model), weights(reference), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    assert scaler.get_scale() == 2.0**9
    row(matrix, method, "GradScaler on the CPU, overflow")


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_goes_on_to_the_bit(method):
    model, opt, problem = begun(method)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    again = normed_mlp(1)
    again.load_state_dict(saved[0])
    resumed = METHODS[method](two_groups(again, "sgd"), again)
    resumed.load_state_dict(saved[1])
    for t in range(3, 6):
        bare(problem, opt, t)
        bare(Problem(again), resumed, t)
    assert same(weights(model), weights(again))


@pytest.mark.parametrize("failing", ["forward", "interrupt", "backward", "nothing came of it"])
def test_after_an_error_the_weights_are_home_and_training_goes_on(failing):
    model, opt, problem = begun()
    home = weights(model)
    if failing in ("forward", "interrupt"):
        error = ValueError if failing == "forward" else KeyboardInterrupt
        handle = model[2].register_forward_hook(raising(error))
        with pytest.raises(error):
            problem.losses(3)
        assert failing == "interrupt" or same(weights(model), home)
        handle.remove()
    elif failing == "backward":
        loss = problem.losses(3).mean()
        handle = model[0].weight.register_hook(raising(ValueError))
        with pytest.raises(ValueError, match="on purpose"):
            loss.backward()
        handle.remove()
    else:
        problem.losses(3)
    assert same(list(model.state_dict().values()), home)
    opt.zero_grad()
    bare(problem, opt, 3)
    assert same(weights(model), after(4))


def raising(error):
    def hook(*_):
        raise error("on purpose")

    return hook


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints_see_the_same_weights(reentrant, matrix):
    model, reference = normed_mlp(), normed_mlp()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            return checkpoint(self.net, x.requires_grad_(), use_reentrant=reentrant)

    whole = Checkpointed()
    opt = METHODS["msam"](two_groups(model, "sgd"), whole)
    problem = Problem(whole)
    for t in range(STEPS):
        bare(problem, opt, t)
    assert same(weights(model), after(STEPS))
    assert reference is not model
    row(matrix, "msam", f"gradient checkpointing, use_reentrant={reentrant}")


class Own(nn.Module):
    """Of a class of its own: code that was compiled of others is not used for it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def test_a_model_whose_compiled_code_skips_hooks_is_refused():
    """It was compiled before there were any: the compiled module is the one to give."""
    model = normed_mlp()
    compiled = torch.compile(model, backend="eager")
    compiled(Problem(model).x[0])
    opt = METHODS["msam"](two_groups(model, "sgd"), model)
    with pytest.raises(RuntimeError, match="give torch.compile's module as model"):
        bare(Problem(compiled), opt, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo
@pytest.mark.parametrize("given", ["compiled", "raw"])
@pytest.mark.parametrize("method", ["msam", "stale"])
def test_a_compiled_model_is_right(method, given, matrix):
    model = Own(normed_mlp())
    compiled = torch.compile(model, backend="eager")
    opt = METHODS[method](two_groups(model, "sgd"), compiled if given == "compiled" else model)
    for t in range(STEPS):
        bare(Problem(compiled), opt, t)
    for left, right in zip(weights(model), literal(method, "sgd"), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    row(matrix, method, f"torch.compile, {given} module given")


@pytest.mark.parametrize("method", ["msam", "stale"])
def test_an_autocast_of_the_loop_does_not_see_weights_of_before_the_move(method, matrix):
    ends = []
    for form in ("bare", "own passes"):
        model = normed_mlp().float()
        opt, problem = METHODS[method](two_groups(model, "sgd"), model), Problem(model)
        with torch.autocast("cpu", torch.bfloat16):  # keeps weights that it has cast
            for t in range(STEPS):
                problem.losses(t).sum().backward() if t == 0 else None
                opt.zero_grad()
                FORMS[form](problem, opt, t)
        ends.append(weights(model))
    assert same(*ends)
    row(matrix, method, "autocast to bfloat16")


def test_buffers_and_dropout_are_as_in_the_closure_form():
    nets = [stochastic_net(), stochastic_net()]
    for model, form in zip(nets, ("bare", "closure"), strict=True):
        opt, problem = METHODS["msam"](two_groups(model, "sgd"), model), Problem(model)
        for t in range(STEPS):
            torch.manual_seed(t)
            FORMS[form](problem, opt, t)
    assert same(list(nets[0].state_dict().values()), list(nets[1].state_dict().values()))


def test_a_gradient_that_was_not_moved_for_is_refused():
    model, opt, problem = begun()
    opt.zero_grad()
    model.eval()
    problem.losses(3).mean().backward()
    with pytest.raises(RuntimeError, match="no training forward"):
        opt.step()
    model.train()
    opt.zero_grad()
    model.forward(problem.x[3]).sum().backward()
    with pytest.raises(RuntimeError, match="no training forward"):
        opt.step()
    opt.zero_grad()
    bare(problem, opt, 3)


def test_without_the_model_a_bare_step_says_what_to_do():
    model = normed_mlp()
    opt = METHODS["msam"](two_groups(model, "sgd"))
    problem = Problem(model)
    problem.losses(0).mean().backward()
    for call in (opt.step, opt.needs_second_pass):
        with pytest.raises(RuntimeError, match="or give the model"):
            call()


def test_what_cannot_work_is_refused():
    model = normed_mlp()
    without = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"no momentum to go along: give it one, momentum=0\.9"):
        aesam.MSAM(without, model)
    with pytest.raises(ValueError, match=r"takes no second gradient, which Always\(\) asks for"):
        aesam.SharpnessAware(without, model, policy=Always(), ascent=AlongMomentum())
    opt = aesam.MSAM(torch.optim.Adagrad(model.parameters()), model)
    with pytest.raises(ValueError, match="no momentum_buffer or exp_avg but step, sum: name the"):
        Problem(model).losses(1)
    assert opt.last_step is None


def test_a_momentum_by_another_name_is_found():
    model, reference = normed_mlp(), normed_mlp()
    base = torch.optim.Adam(model.parameters(), lr=0.01)
    named = aesam.SharpnessAware(
        base, model, policy=Never(), ascent=AlongMomentum(key="exp_avg"), rho=0.3
    )
    opt = aesam.MSAM(torch.optim.Adam(reference.parameters(), lr=0.01), reference, rho=0.3)
    for t in range(3):
        bare(Problem(model), named, t)
        bare(Problem(reference), opt, t)
    assert same(weights(model), weights(reference))


def test_neither_the_model_nor_a_copy_of_it_holds_the_optimizer():
    model, opt, problem = begun()
    copied = copy.deepcopy(model)
    before = weights(copied)
    copied(problem.x[0])
    assert same(weights(copied), before)
    del opt
    home = weights(model)
    model(problem.x[0])
    assert same(weights(model), home)


@pytest.mark.parametrize("form", ["elementwise", "norm_layers"])
def test_only_what_the_form_says_moves_and_the_momentum_is_left_alone(form):
    model = normed_mlp()
    opt = aesam.MSAM(two_groups(model, "sgd"), model, **{form: True})
    problem = Problem(model)
    bare(problem, opt, 0)
    home = weights(model)
    momenta = [opt.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    problem.losses(1)
    moved = [not torch.equal(a, w) for a, w in zip(weights(model), home, strict=True)]
    assert moved == [form == "elementwise" or i in NORM_LAYER for i in range(6)]
    assert same([opt.state[p]["momentum_buffer"] for p in model.parameters()], momenta)


def test_forms_that_cannot_be_are_refused():
    model = normed_mlp()
    base = two_groups(model, "sgd")
    with pytest.raises(ValueError, match="elementwise=True and norm_layers=True cannot be given"):
        aesam.MSAM(base, model, elementwise=True, norm_layers=True)
    with pytest.raises(TypeError, match="elementwise must be True or False"):
        aesam.StaleSAM(base, model, elementwise="yes")
    with pytest.raises(ValueError, match="NormLayers chooses parameters by where they stand"):
        aesam.MSAM(base, norm_layers=True)
    with pytest.raises(ValueError, match="no trained parameter in a normalisation layer"):
        aesam.MSAM(torch.optim.AdamW(model[0].parameters()), model[0], norm_layers=True)
    for unlike in (AlongAverage(), RandomSubset(), AlongMomentum()):
        with pytest.raises(ValueError, match="like must be an ascent along the gradient of one"):
            AlongMomentum(like=unlike)
    with pytest.raises(TypeError, match="like must be an ascent, WithWeights"):
        AlongMomentum(like="asam")


def test_a_checkpoint_of_another_form_is_refused():
    model, opt, _ = begun("msam, elementwise")
    other = METHODS["msam"](two_groups(model, "sgd"), model)
    with pytest.raises(ValueError, match=r"AlongMomentum\(WithWeights\)"):
        other.load_state_dict(opt.state_dict())
    settings = AlongMomentum(like=WithWeights(eta=0.5)).settings()
    assert settings == {"uphill": False, "key": "", "like.eta": 0.5, "like.adapt_all": False}


@pytest.mark.parametrize("name", METHODS)
def test_a_forward_without_a_backward_is_as_if_it_had_not_been(name):
    ends = []
    for leaves_out in (False, True):
        model = normed_mlp()
        opt, problem = METHODS[name](two_groups(model, "sgd"), model), Problem(model)
        for t in range(4):
            opt.zero_grad()
            if leaves_out:
                problem.losses(t + 1)
            bare(problem, opt, t)
        ends.append(model)
    assert same(*map(weights, ends))


def test_a_forward_before_the_step_of_the_batch_before_is_refused_and_clearing_in_between_is_not():
    model = normed_mlp()
    opt, problem = METHODS["msam"](two_groups(model, "sgd"), model), Problem(model)
    bare(problem, opt, 0)
    problem.losses(1).mean().backward()
    ahead = problem.losses(2).mean()
    opt.step()
    with pytest.raises(RuntimeError, match=r"\(step\(\) of the batch before\)"):
        ahead.backward()
    loss = problem.losses(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    assert opt.last_step.index == 2
