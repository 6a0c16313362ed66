"""A bare step(): the model's forwards, recorded and run again, against the closure form."""

import copy
import gc
import pickle
import weakref
from collections import OrderedDict, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.problems import (
    BASES,
    METHODS,
    AboveAverageLoss,
    Problem,
    mlp,
    same,
    stochastic_net,
    weights,
)
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

import aesam
from aesam._core import recording

REPLAYED = [m for m in METHODS if m != "esam"]


class WithLoss(nn.Module):
    """A module that returns its loss, as those of Transformers do."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return loss_of(self.net(x), y)


def loss_of(outputs, y):
    return (outputs - y).square().sum(1).mean() / 2


def everything(model):
    return [*weights(model), *(b.clone() for b in model.buffers())]


def optimizer(method, model, **options):
    return METHODS[method](BASES["sgd"](model.parameters()), model, **options)


def by_closure(method, model, losses, steps=30, **options):
    """The oracle: each step's loss, computed by a closure; several losses are several backwards."""
    opt = optimizer(method, model, **options)
    torch.manual_seed(1)
    for t in range(steps):

        def closure(t=t):
            opt.zero_grad()
            for loss in losses(t):
                loss.backward()

        opt.step(closure)
    return everything(model), opt


def by_replay(method, model, losses, steps=30, **options):
    opt = optimizer(method, model, replay=True, **options)
    torch.manual_seed(1)
    for t in range(steps):
        for loss in losses(t):
            loss.backward()
        opt.step()
        opt.zero_grad()
    return everything(model), opt


def difference(method, make, losses, **options):
    """Two models, one loop each, and the largest difference of their weights and buffers."""
    found = []
    for train in (by_closure, by_replay):
        model = make()
        found.append(train(method, model, lambda t, m=model: losses(m, t), **options))
    (left, first), (right, second) = found
    assert first.sam_fraction == second.sam_fraction
    assert first.sam_fraction > 0.0 or method == "erm"
    return max((a - b).abs().max().item() for a, b in zip(left, right, strict=True))


class Batches:
    def __init__(self, batch=8):
        draw = torch.Generator().manual_seed(11)
        self.x = torch.randn(50, batch, 3, generator=draw, dtype=torch.float64)
        self.y = torch.randn(50, batch, 2, generator=draw, dtype=torch.float64)


DATA = Batches()


def one_loss(model, t):
    yield model(DATA.x[t], DATA.y[t])


# Where the model returns the loss ----------------------------------------------------------------


@pytest.mark.parametrize("net", [mlp, stochastic_net])
@pytest.mark.parametrize("method", REPLAYED)
def test_a_bare_step_is_the_closure_form_to_the_bit(method, net, matrix):
    assert difference(method, lambda: WithLoss(net()), one_loss) == 0.0
    matrix.right(
        "plain PyTorch", "bare step(), replay=True, the model returns the loss", within=0.0
    )


def micro_batches(model, t):
    for x, y in zip(DATA.x[t].chunk(4), DATA.y[t].chunk(4), strict=True):
        yield model(x, y) / 4


@pytest.mark.parametrize("net", [mlp, stochastic_net])
def test_accumulation_replays_every_micro_batch(net, matrix):
    assert difference("ae-sam", lambda: WithLoss(net()), micro_batches) == 0.0
    matrix.right("plain PyTorch", "replay=True, accumulation over 4 micro-batches", within=0.0)


def two_forwards(model, t):
    yield model(DATA.x[t], DATA.y[t]) + 0.5 * model(DATA.x[t + 1], DATA.y[t + 1])


def two_backwards_of_one_graph(model, t):
    loss = model(DATA.x[t], DATA.y[t])
    loss.backward(retain_graph=True)
    yield loss * 0.5


def a_forward_that_nobody_uses(model, t):
    loss = model(DATA.x[t], DATA.y[t])
    model(DATA.x[t + 1], DATA.y[t + 1])
    yield loss


def evaluation_in_between(model, t):
    loss = model(DATA.x[t], DATA.y[t])
    model.eval()
    with torch.no_grad():
        model(DATA.x[t + 1], DATA.y[t + 1])
    model(DATA.x[t + 1], DATA.y[t + 1])
    model.train()
    yield loss


LOOPS = (
    two_forwards, two_backwards_of_one_graph, a_forward_that_nobody_uses, evaluation_in_between,
)  # fmt: skip


@pytest.mark.parametrize("losses", LOOPS)
@pytest.mark.parametrize("method", ["sam", "ae-looksam"])
def test_other_loops_are_right_too(method, losses):
    assert difference(method, lambda: WithLoss(mlp()), losses) < 1e-12


def test_gradients_with_respect_to_the_input_are_no_part_of_the_step():
    """An attack on the input reaches no parameter, though it goes through the model."""
    ends = []
    for replay in (False, True):
        model = WithLoss(mlp())
        opt = optimizer("sam", model, replay=replay)
        for t in range(10):
            x, y = DATA.x[t].clone().requires_grad_(), DATA.y[t]
            (slope,) = torch.autograd.grad(model(x, y), x)
            attacked = x.detach() + 0.1 * slope.sign()

            def closure(x=attacked, y=y, model=model):
                model(x, y).backward()

            opt.zero_grad()
            closure() if replay else None
            opt.step() if replay else opt.step(closure)
        ends.append(weights(model))
    assert same(*ends)


def test_an_evaluation_in_between_does_not_disturb_batch_norm():
    assert difference("sam", lambda: WithLoss(stochastic_net()), evaluation_in_between) == 0.0


def test_zero_grad_between_forward_and_backward_drops_nothing():
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    by_closure("ae-sam", twin, lambda t: one_loss(twin, t))
    opt = optimizer("ae-sam", model, replay=True)
    for t in range(30):
        loss = model(DATA.x[t], DATA.y[t])
        opt.zero_grad()
        loss.backward()
        opt.step()
    assert same(weights(model), weights(twin))


def test_zero_grad_drops_a_backward_that_was_thrown_away():
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    by_closure("sam", twin, lambda t: one_loss(twin, t))
    opt = optimizer("sam", model, replay=True)
    for t in range(30):
        model(DATA.x[t + 1], DATA.y[t + 1]).backward()
        opt.zero_grad()
        model(DATA.x[t], DATA.y[t]).backward()
        opt.step()
        opt.zero_grad()
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_inside_the_model_is_right(reentrant, matrix):
    class Checkpointed(WithLoss):
        def forward(self, x, y):
            x = x.clone().requires_grad_()  # what reentrant checkpoints need
            return loss_of(checkpoint(self.net, x, use_reentrant=reentrant), y)

    assert difference("ae-sam", lambda: Checkpointed(stochastic_net()), one_loss) == 0.0
    use = f"replay=True, gradient checkpointing, use_reentrant={reentrant}"
    matrix.right("plain PyTorch", use, within=0.0)


@pytest.mark.parametrize("whose", ["the loop's", "the model's"])
def test_autocast_is_replayed(whose, matrix):
    class Cast(WithLoss):
        def forward(self, x, y):
            with torch.autocast("cpu", torch.bfloat16) if whose == "the model's" else nullcontext():
                return super().forward(x, y)

    def losses(model, t):
        with torch.autocast("cpu", torch.bfloat16, enabled=whose == "the loop's"):
            outputs = model(DATA.x[t].float(), DATA.y[t].float())
        yield outputs

    assert difference("ae-sam", lambda: Cast(mlp().float()), losses) == 0.0
    matrix.right("plain PyTorch", f"replay=True, autocast to bfloat16 ({whose})", within=0.0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo
@pytest.mark.parametrize("given", ["compiled", "raw"])
def test_a_compiled_model_is_right(given, matrix):
    ends = []
    for replay in (False, True):
        model = WithLoss(mlp())
        compiled = torch.compile(model, backend="eager")
        opt = METHODS["ae-sam"](
            BASES["sgd"](model.parameters()), compiled if given == "compiled" else model,
            replay=replay,
        )  # fmt: skip
        for t in range(20):

            def closure(t=t, compiled=compiled):
                compiled(DATA.x[t], DATA.y[t]).backward()

            opt.zero_grad()
            closure() if replay else None
            opt.step() if replay else opt.step(closure)
        ends.append(weights(model))
    for left, right in zip(*ends, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    matrix.right("plain PyTorch", f"replay=True, torch.compile, {given} module given", within=1e-12)


def test_a_model_whose_compiled_code_skips_hooks_is_refused():
    """It was compiled before there were any: the compiled module is the one to give."""
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    compiled(DATA.x[0])
    opt = optimizer("sam", model, replay=True)
    loss_of(compiled(DATA.x[0]), DATA.y[0]).backward()
    with pytest.raises(RuntimeError, match="give torch.compile's module as model"):
        opt.step()


# Where the loss is outside -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sam", "ae-sam"])
def test_with_the_loss_outside_it_is_functional_sam(method):
    """The oracle: d = J(w+ε)ᵀ ∂L/∂f with ∂L/∂f at w, written out."""
    model, twin = mlp(), mlp()
    opt = optimizer(method, model, replay=True, rho=0.3)
    base = BASES["sgd"](twin.parameters())
    for t in range(20):
        loss_of(model(DATA.x[t]), DATA.y[t]).backward()
        opt.step()
        opt.zero_grad()

        outputs = twin(DATA.x[t])
        (slope,) = torch.autograd.grad(loss_of(outputs, DATA.y[t]), outputs, retain_graph=True)
        first = torch.autograd.grad(outputs, list(twin.parameters()), slope)
        direction = first
        if opt.last_step.used_sam:
            size = torch.sqrt(sum(g.square().sum() for g in first))
            before = weights(twin)
            with torch.no_grad():
                for p, g in zip(twin.parameters(), first, strict=True):
                    p.add_(0.3 * g / size)
            direction = torch.autograd.grad(twin(DATA.x[t]), list(twin.parameters()), slope)
            with torch.no_grad():
                for p, w in zip(twin.parameters(), before, strict=True):
                    p.copy_(w)
        for p, d in zip(twin.parameters(), direction, strict=True):
            p.grad = d
        base.step()
    assert opt.sam_fraction > 0.0
    for left, right in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_repr_says_which_it_is():
    inside, outside = WithLoss(mlp()), mlp()
    first, second = optimizer("sam", inside, replay=True), optimizer("sam", outside, replay=True)
    assert "replay: True\n" in repr(first)
    inside(DATA.x[0], DATA.y[0]).backward()
    loss_of(outside(DATA.x[0]), DATA.y[0]).backward()
    first.step()
    second.step()
    assert "replay: True (SAM: the model returns the loss, which is at most scaled)" in repr(first)
    assert "replay: True (functional SAM: the loss is outside)" in repr(second)


@dataclass
class Answer(ModelOutput):
    loss: Any = None
    logits: Any = None


@dataclass(frozen=True)
class Frozen:
    loss: Any
    logits: Any


Pair = namedtuple("Pair", "loss logits")
KINDS = {
    "tuple": lambda loss, logits: (loss, logits),
    "nested": lambda loss, logits: {"a": [loss, {"b": (logits, None)}]},
    "namedtuple": Pair,
    "dict": lambda loss, logits: {"loss": loss, "logits": logits},
    "OrderedDict": lambda loss, logits: OrderedDict(loss=loss, logits=logits),
    "ModelOutput": Answer,
    "dataclass": Frozen,
}


def parts_of(output):
    if isinstance(output, dict) and "a" in output:
        return output["a"][0], output["a"][1]["b"][0]
    if isinstance(output, Frozen | Answer):
        return output.loss, output.logits
    return output.values() if isinstance(output, dict) else output


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_several_outputs_counts_each_way_once(kind):
    """At ρ = 0 the replayed gradient is the gradient: nothing left out, nothing counted twice."""

    class Both(WithLoss):
        def forward(self, x, y):
            logits = self.net(x)
            return KINDS[kind](loss_of(logits, y), logits)

    model, twin = Both(mlp()), Both(mlp())
    ours, plain = optimizer("sam", model, replay=True, rho=0.0), BASES["sgd"](twin.parameters())
    for t in range(10):
        for net, opt in ((model, ours), (twin, plain)):
            output = net(DATA.x[t], DATA.y[t])
            assert type(output) is type(KINDS[kind](torch.ones(()), torch.ones(1)))
            loss, logits = parts_of(output)
            (loss + 0.3 * logits.square().mean()).backward()
            opt.step()
            opt.zero_grad()
    assert ours.sam_fraction == 1.0
    for left, right in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-13)


def test_inputs_by_keyword_and_popped_labels_are_kept_as_they_were():
    class Popping(WithLoss):
        def forward(self, batch, *, scale):
            return super().forward(batch["x"], batch.pop("y")) * scale

    def losses(model, t):
        yield model({"x": DATA.x[t], "y": DATA.y[t]}, scale=2.0)

    assert difference("sam", lambda: Popping(mlp()), losses) == 0.0


# Clipping and scalers ----------------------------------------------------------------------------


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("method", ["ae-sam", "ae-looksam"])
def test_max_norm_clips_the_direction_and_decides_on_the_whole_gradient(method, replay, matrix):
    ends, records = [], []
    for declared in (False, True):
        model = WithLoss(mlp())
        options = {"max_norm": 0.05, "replay": replay} if declared else {}
        opt = optimizer(method, model, **options)
        if not declared:
            opt.register_step_pre_hook(
                lambda *_, m=model: nn.utils.clip_grad_norm_(m.parameters(), 0.05)
            )
        for t in range(30):
            if declared and replay:
                model(DATA.x[t], DATA.y[t]).backward()
                opt.step()
                opt.zero_grad()
            else:

                def closure(t=t, opt=opt, model=model):
                    opt.zero_grad()
                    model(DATA.x[t], DATA.y[t]).backward()

                opt.step(closure)
            records.append(opt.last_step)
        ends.append(weights(model))
    assert same(*ends)
    assert records[:30] == records[30:]
    matrix.right("plain PyTorch", f"max_norm=, replay={replay}", within=0.0)


def test_a_bare_step_after_clipping_is_refused(matrix):
    model = WithLoss(mlp())
    opt = optimizer("ae-sam", model, replay=True)
    before = weights(model)
    model(DATA.x[0], DATA.y[0]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # a factor of 1 is clipping too
    with pytest.raises(RuntimeError, match="pass max_norm=") as error:
        opt.step()
    assert same(before, weights(model))
    matrix.refused("plain PyTorch", "clipping before a bare step()", error.value)


@pytest.mark.parametrize("unscaled_by", ["the loop", "the scaler"])
@pytest.mark.parametrize("method", REPLAYED)
def test_under_a_scaler_the_replayed_gradient_is_unscaled_like_the_first(
    method, unscaled_by, matrix
):
    twin = WithLoss(mlp())
    by_closure(method, twin, lambda t: one_loss(twin, t))
    model = WithLoss(mlp())
    opt, scaler = optimizer(method, model, replay=True), torch.amp.GradScaler("cpu")
    assert scaler.get_scale() == 2.0**16
    for t in range(30):
        scaler.scale(model(DATA.x[t], DATA.y[t])).backward()
        if unscaled_by == "the loop":
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    for left, right in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    matrix.right("plain PyTorch", "replay=True, GradScaler", within=1e-12)


def test_an_overflow_of_the_replayed_pass_reaches_the_scaler():
    class Steep(WithLoss):
        """Its loss is infinite away from where it was first asked."""

        def forward(self, x, y):
            loss = super().forward(x, y)
            home = getattr(self, "home", None)
            moved = home is not None and not torch.equal(home, self.net[0].weight.detach())
            return loss * float("inf") if moved else loss

    model = Steep(mlp())
    model.home = model.net[0].weight.detach().clone()
    opt, scaler = optimizer("sam", model, replay=True), torch.amp.GradScaler("cpu", init_scale=64.0)
    before = weights(model)
    scaler.scale(model(DATA.x[0], DATA.y[0])).backward()
    scaler.step(opt)
    scaler.update()
    assert same(before, weights(model))
    assert scaler.get_scale() == 32.0
    assert opt.skipped_steps == 1


def test_gradients_unscaled_by_hand_are_refused():
    model = WithLoss(mlp())
    opt, scaler = optimizer("sam", model, replay=True), torch.amp.GradScaler("cpu")
    scaler.scale(model(DATA.x[0], DATA.y[0])).backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match=r"scaler\.step\(opt\)"):
        opt.step()


# What cannot be replayed is refused --------------------------------------------------------------


def penalty(model, x, y):
    loss = model(x, y)
    (loss + 0.1 * sum(p.abs().sum() for p in model.parameters())).backward()


def penalty_apart(model, x, y):
    model(x, y).backward()
    sum(p.square().sum() for p in model.parameters()).backward()


def submodule(model, x, y):
    loss_of(model.net(x), y).backward()


def submodule_beside(model, x, y):
    (model(x, y) + loss_of(model.net(x), y)).backward()


def forward_method(model, x, y):
    model.forward(x, y).backward()


def changed_input(model, x, y):
    x = x.clone()
    model(x, y).backward()
    x.zero_()


def double_backward(model, x, y):
    loss = model(x, y)
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + 0.1 * sum(g.square().sum() for g in grads)).backward()


def switched_to_eval(model, x, y):
    model(x, y).backward()
    model.eval()


REFUSED = {
    penalty: r"gradient of net\.0\.weight.*step\(closure\)",
    penalty_apart: "came through no recorded forward",
    submodule: "came through no recorded forward",
    submodule_beside: r"gradient of net\.0\.weight",
    forward_method: "came through no recorded forward",
    changed_input: "input of the model was changed in place",
    double_backward: "create_graph=True",
    switched_to_eval: r"train\(\) and eval\(\)",
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
@pytest.mark.parametrize("backward", REFUSED, ids=lambda f: f.__name__)
def test_a_gradient_that_bypasses_the_recording_is_refused(backward, matrix):
    model = WithLoss(mlp())
    opt = optimizer("sam", model, replay=True)
    before = weights(model)
    backward(model, DATA.x[0], DATA.y[0])
    held = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="(?s)" + REFUSED[backward]) as error:
        opt.step()
    assert same(before, weights(model))
    assert same(held, [p.grad for p in model.parameters()])
    use = f"replay=True, {backward.__name__.replace('_', ' ')}"
    matrix.refused("plain PyTorch", use, error.value)


def test_a_bypass_in_float32_is_refused_too():
    model = WithLoss(mlp().float())
    opt = optimizer("sam", model, replay=True)
    penalty(model, DATA.x[0].float(), DATA.y[0].float())
    with pytest.raises(RuntimeError, match=r"gradient of net\.0\.weight"):
        opt.step()


@pytest.mark.parametrize("change", [torch.relu_, lambda out: out[0].zero_()])
def test_an_output_that_is_changed_in_place_is_refused(change):
    model = mlp()
    opt = optimizer("sam", model, replay=True)
    outputs = model(DATA.x[0])
    change(outputs)
    loss_of(outputs, DATA.y[0]).backward()
    with pytest.raises(RuntimeError, match="in place"):
        opt.step()


def test_a_forward_that_is_fed_with_another_s_output_is_refused():
    torch.manual_seed(0)
    model = nn.Linear(3, 3).double()
    opt = optimizer("sam", model, replay=True)
    model(model(DATA.x[0])).square().mean().backward()
    with pytest.raises(RuntimeError, match="computed from parameters that are trained"):
        opt.step()


def test_an_input_that_others_train_is_fine():
    """A discriminator's step does not care that its input has a graph of another network."""
    torch.manual_seed(0)
    ends = []
    for replay in (False, True):
        before = nn.Linear(3, 3).double()
        before.load_state_dict({"weight": torch.eye(3), "bias": torch.ones(3)})
        model = WithLoss(mlp())
        opt = optimizer("sam", model, replay=replay)

        def closure(opt=opt, model=model, before=before):
            opt.zero_grad()
            model(before(DATA.x[0]), DATA.y[0]).backward()

        closure() if replay else None
        opt.step() if replay else opt.step(closure)
        ends.append(weights(model))
    assert same(*ends)


def test_gradients_of_parameters_that_another_optimizer_trains_are_left_alone():
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    for net, replay in ((model, True), (twin, False)):
        body = torch.optim.SGD(net.net[0].parameters(), lr=0.1)
        head = aesam.SAM(torch.optim.SGD(net.net[2].parameters(), lr=0.1), net, replay=replay)
        for t in range(10):
            net(DATA.x[t], DATA.y[t]).backward()
            body_gradients = [p.grad.clone() for p in net.net[0].parameters()]
            if replay:
                head.step()
            else:
                assert head.needs_second_pass()
                with head.perturbed():
                    net(DATA.x[t], DATA.y[t]).backward()
                head.step()
                for p, g in zip(net.net[0].parameters(), body_gradients, strict=True):
                    p.grad = g
            assert same(body_gradients, [p.grad for p in net.net[0].parameters()])
            body.step()
            net.zero_grad()
            head.zero_grad()
    assert same(weights(model), weights(twin))


def test_sparse_gradients_are_replayed():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(10, 2, sparse=True).double()

        def forward(self, words, y):
            return loss_of(self.table(words), y)

    ends = []
    for replay in (False, True):
        model = Words()
        opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, replay=replay)
        words = torch.arange(8)

        def closure(model=model, words=words):
            model(words, DATA.y[0]).backward()

        for _ in range(5):
            opt.zero_grad()
            closure() if replay else None
            opt.step() if replay else opt.step(closure)
        ends.append(weights(model))
    assert same(*ends)


def test_a_backward_after_the_step_of_a_forward_before_it_is_refused():
    torch.manual_seed(0)
    model = WithLoss(nn.Linear(3, 2).double())  # torch itself refuses where weights were saved
    opt = optimizer("sam", model, replay=True)
    late = model(DATA.x[1], DATA.y[1])
    with pytest.raises(RuntimeError, match="no gradient in any"):
        opt.step()
    model(DATA.x[0], DATA.y[0]).backward()
    opt.step()
    opt.zero_grad()
    late.backward()
    with pytest.raises(RuntimeError, match="at weights that are gone"):
        opt.step()


def test_the_recording_is_checked_again_after_a_thousand_second_passes(monkeypatch):
    monkeypatch.setattr(recording, "REPLAYS_PER_CHECK", 5)
    model = WithLoss(mlp())
    opt = optimizer("sam", model, replay=True)

    def train(with_penalty):
        loss = model(DATA.x[0], DATA.y[0])
        (loss + with_penalty * sum(p.square().sum() for p in model.parameters())).backward()
        opt.step()
        opt.zero_grad()

    train(0.0)
    for _ in range(4):
        train(0.1)
    with pytest.raises(RuntimeError, match="cannot make the gradient"):
        train(0.1)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda base, model: aesam.SAM(base, replay=True), "needs the model"),
        (lambda base, model: aesam.ESAM(base, model, replay=True), "selects rows"),
        (
            lambda base, model: aesam.SharpnessAware(
                base, model, policy=AboveAverageLoss(), replay=True
            ),
            "looks at the loss",
        ),
        (lambda base, model: aesam.SAM(base, model, replay=1), "replay"),
        (lambda base, model: aesam.SAM(base, model, max_norm=0.0), "max_norm"),
    ],
)
def test_what_cannot_be_replayed_is_refused_at_once(make, what):
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=what):
        make(BASES["sgd"](model.parameters()), model)


# What it leaves alone ----------------------------------------------------------------------------


@pytest.mark.slow
def test_forwards_without_a_backward_keep_nothing_alive():
    model = mlp()
    opt = optimizer("sam", model, replay=True)
    x = DATA.x[0].clone()
    alive = weakref.ref(x)
    model(x)
    del x
    gc.collect()
    assert alive() is None
    assert opt.sam_fraction == 0.0


def test_copies_and_pickles_of_the_model_record_nothing():
    model = WithLoss(mlp())
    opt = optimizer("sam", model, replay=True)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(DATA.x[0], DATA.y[0]).backward()
        assert opt._recording.forwards == []
    model(DATA.x[0], DATA.y[0]).backward()
    opt.step()


def test_a_copy_of_the_optimizer_records_its_own_model():
    opt = optimizer("sam", WithLoss(mlp()), replay=True)
    twin = copy.deepcopy(opt)
    for each in (opt, twin):
        for t in range(3):
            each.model(DATA.x[t], DATA.y[t]).backward()
            each.step()
            each.zero_grad()
    assert same(weights(opt.model), weights(twin.model))
    assert opt.model is not twin.model


@pytest.mark.slow
def test_an_optimizer_that_is_gone_leaves_no_hooks():
    model = WithLoss(mlp())
    opt = optimizer("sam", model, replay=True)
    assert len(model._forward_hooks) == len(model._forward_pre_hooks) == 1
    del opt
    gc.collect()
    assert len(model._forward_hooks) == len(model._forward_pre_hooks) == 0
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_without_replay_a_bare_step_names_it():
    opt = optimizer("sam", mlp())
    with pytest.raises(RuntimeError, match="replay=True"):
        opt.step()


# What changes on the way -------------------------------------------------------------------------


def cleared_in_place(model):
    model.zero_grad(set_to_none=False)


def zeroed_by_hand(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()


@pytest.mark.parametrize("clear", [cleared_in_place, zeroed_by_hand])
@pytest.mark.parametrize("replay", [False, True])
def test_batches_that_were_thrown_away_are_forgotten_however_they_were_cleared(clear, replay):
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    opt, reference = optimizer("sam", model, replay=replay), optimizer("sam", twin)
    for t in range(8):
        if t in (3, 6):  # a batch whose gradient is not used
            model(DATA.x[t], DATA.y[t]).backward()
            clear(model)
            continue

        def closure(t=t):
            clear(model)
            model(DATA.x[t], DATA.y[t]).backward()

        closure() if replay else None
        opt.step() if replay else opt.step(closure)

        def plain(t=t):
            reference.zero_grad()
            twin(DATA.x[t], DATA.y[t]).backward()

        reference.step(plain)
        clear(model)
    assert opt.skipped_steps == 0
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("replay", [False, True])
def test_a_skipped_step_leaves_no_micro_batches_behind(replay):
    model = WithLoss(mlp())
    opt = optimizer("sam", model, replay=replay)
    for t in range(4):
        x = DATA.x[t] * float("nan") if t == 1 else DATA.x[t]

        def closure(x=x, t=t):
            model.zero_grad(set_to_none=False)
            model(x, DATA.y[t]).backward()

        closure() if replay else None
        with pytest.warns(UserWarning, match="skipped") if t == 1 else nullcontext():
            opt.step() if replay else opt.step(closure)
    assert opt.skipped_steps == 1
    assert opt.last_step.index == 2


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.value, self.logits = nn.Linear(3, 1).double(), nn.Linear(3, 2).double()

    def forward(self, x):
        return self.value(x), self.logits(x)


def loss_with_a_mask(model, t):
    value, logits = model(DATA.x[t])
    if t >= 3:
        logits[:, 0] = -1.0
    return value.mean() + loss_of(logits, DATA.y[t])


def test_an_output_that_is_masked_in_place_later_on_is_refused():
    model = TwoHeads()
    opt = optimizer("sam", model, replay=True)
    for t in range(3):
        loss_with_a_mask(model, t).backward()
        opt.step()
        opt.zero_grad()
    loss_with_a_mask(model, 3).backward()
    with pytest.raises(RuntimeError, match=r"in\s+place"):
        opt.step()


def test_gradients_that_are_taken_away_are_refused():
    model = WithLoss(mlp())
    opt = optimizer("sam", model, replay=True)
    for t in range(5):
        model(DATA.x[t], DATA.y[t]).backward()
        if t == 3:
            model.net[2].weight.grad = None
            with pytest.raises(RuntimeError, match="requires_grad_"):
                opt.step()
        else:
            opt.step()
        opt.zero_grad()


def test_a_frozen_batchnorm_that_an_evaluation_wakes_is_refused():
    model = WithLoss(stochastic_net())
    opt = optimizer("sam", model, replay=True)
    model.net[1].eval()
    model(DATA.x[0], DATA.y[0]).backward()
    model.eval()
    model.train()
    with pytest.raises(RuntimeError, match=r"train\(\) and eval\(\)"):
        opt.step()


def test_weights_that_another_optimizer_moved_first_are_noticed():
    model = WithLoss(mlp())
    other = torch.optim.SGD(model.net[0].parameters(), lr=0.0)
    opt = aesam.SAM(torch.optim.SGD(model.net[2].parameters(), lr=0.1), model, replay=True)
    for t in range(2):  # the learning rate is warmed up, so at first nothing moves
        model(DATA.x[t], DATA.y[t]).backward()
        other.param_groups[0]["lr"] = 0.1 * t
        other.step()
        with pytest.raises(RuntimeError, match="stepped first") if t else nullcontext():
            opt.step()
        opt.zero_grad()
        other.zero_grad()


@pytest.mark.parametrize("clip", [lambda g: g.data.mul_(0.5), lambda g: g.data.clamp_(-1e-3, 1e-3)])
@pytest.mark.parametrize("replay", [False, True])
def test_clipping_through_data_is_refused(clip, replay):
    model = WithLoss(mlp())
    opt = optimizer("ae-sam", model, replay=replay)

    def closure():
        opt.zero_grad()
        model(DATA.x[0], DATA.y[0]).backward()
        for p in model.parameters():
            clip(p.grad)

    closure() if replay else None
    with pytest.raises(RuntimeError, match="max_norm="):
        opt.step() if replay else opt.step(closure)


def test_a_closure_may_change_gradients_on_purpose():
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    opt, reference = optimizer("sam", model), optimizer("sam", twin)
    for t in range(5):

        def closure(t=t):
            opt.zero_grad()
            model(DATA.x[t], DATA.y[t]).backward()
            for p in model.parameters():
                p.grad.mul_(0.5)

        def halved(t=t):
            reference.zero_grad()
            (0.5 * twin(DATA.x[t], DATA.y[t])).backward()

        opt.step(closure, edited=True)
        reference.step(halved)
    assert same(weights(model), weights(twin))


def test_parameters_that_are_unfrozen_later_are_followed():
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    opt, reference = optimizer("sam", model, replay=True), optimizer("sam", twin)
    for net in (model, twin):
        net.net[0].requires_grad_(False)
    for t in range(6):
        if t == 3:
            for net in (model, twin):
                net.net[0].requires_grad_(True)
                net.net[2].requires_grad_(False)
        opt.zero_grad()
        model(DATA.x[t], DATA.y[t]).backward()
        opt.step()

        def closure(t=t):
            reference.zero_grad()
            twin(DATA.x[t], DATA.y[t]).backward()

        reference.step(closure)
    assert same(weights(model), weights(twin))


@pytest.mark.slow
def test_attacks_in_another_mode_are_no_part_of_the_step_and_keep_nothing_alive():
    model = WithLoss(stochastic_net())
    opt = optimizer("sam", model, replay=True)
    model.eval()
    x = DATA.x[0].clone().requires_grad_()
    alive = weakref.ref(x)
    (slope,) = torch.autograd.grad(model(x, DATA.y[0]), x)
    attacked = (x + 0.1 * slope.sign()).detach()
    del x, slope
    gc.collect()
    assert alive() is None
    model.train()
    model(attacked, DATA.y[0]).backward()
    opt.step()
    assert opt.sam_fraction == 1.0


def test_buffers_that_a_forward_uses_and_writes_are_no_bypass():
    def normed():
        torch.manual_seed(0)
        net = nn.Sequential(spectral_norm(nn.Linear(3, 8)), nn.Tanh(), nn.Linear(8, 2))
        return WithLoss(net.double())

    assert difference("sam", normed, one_loss) < 1e-12


def test_a_model_that_calls_itself_is_recorded_once():
    class Mirrored(WithLoss):
        def forward(self, x, y, again=True):
            loss = super().forward(x, y)
            return loss + 0.5 * self(x.flip(0), y, again=False) if again else loss

    assert difference("ae-sam", lambda: Mirrored(mlp()), one_loss) < 1e-12


def test_a_forward_that_raised_does_not_hide_the_next():
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    by_closure("sam", twin, lambda t: one_loss(twin, t), steps=3)
    opt = optimizer("sam", model, replay=True)
    for t in range(3):
        with pytest.raises(RuntimeError, match="mat1"):
            model(DATA.x[t].T, DATA.y[t])
        model(DATA.x[t], DATA.y[t]).backward()
        opt.step()
        opt.zero_grad()
    assert same(weights(model), weights(twin))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_modules_are_followed_once_they_are_made():
    torch.manual_seed(0)
    model = nn.LazyLinear(2, dtype=torch.float64)
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, replay=True)
    for t in range(3):
        opt.zero_grad()
        loss_of(model(DATA.x[t]), DATA.y[t]).backward()
        opt.step()
    assert opt.last_step.index == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_is_refused_in_words():
    model = torch.jit.script(mlp())
    with pytest.raises(ValueError, match="ScriptModule"):
        optimizer("sam", model, replay=True)


# Passes that are owned or counted ----------------------------------------------------------------


def test_a_closure_that_does_nothing_after_a_bare_loop_is_the_bare_step():
    """Lightning's manual optimization hands one in where the user gave none."""
    model, twin = WithLoss(mlp()), WithLoss(mlp())
    by_closure("sam", twin, lambda t: one_loss(twin, t))
    opt = optimizer("sam", model, replay=True)
    for t in range(30):
        model(DATA.x[t], DATA.y[t]).backward()
        opt.step(lambda: None)
        opt.zero_grad()
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("method", ["sam", "ae-sam", "looksam"])
def test_a_decision_made_before_or_inside_the_closure_is_taken(method, inside):
    model, problem = mlp(), Problem(mlp())
    mine = Problem(model)
    opt = optimizer(method, model)
    alone = optimizer(method, problem.model)
    for t in range(20):

        def passes(t=t):
            with opt.first_pass():
                mine.losses(t).mean().backward()
            if opt.needs_second_pass():
                with opt.perturbed():
                    mine.losses(t).mean().backward()
            return 1.5

        result = opt.step(passes) if inside else (passes(), opt.step(lambda: 1.5))[1]
        assert result == 1.5
        opt.zero_grad()
        problem.step(alone, t)
    assert same(weights(model), weights(problem.model))
    assert opt.last_step == alone.last_step


def test_a_second_pass_of_other_micro_batches_is_refused():
    model = mlp()
    problem, opt = Problem(model), optimizer("sam", model)
    before = weights(model)
    for t in range(4):
        (problem.losses(t).mean() / 4).backward()
    assert opt.needs_second_pass()
    with pytest.raises(RuntimeError, match="ran 1 backward passes where .* had 4"):
        with opt.perturbed():
            (problem.losses(3).mean() / 4).backward()
    assert same(before, weights(model))
    assert opt.skipped_steps == 1


def test_the_micro_batches_of_a_single_parameter_are_counted():
    w = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.1))
    for factor in (1.0, 2.0, 3.0):
        (factor * w.square().sum()).backward()
    assert opt.needs_second_pass()
    with pytest.raises(RuntimeError, match="ran 1 backward passes where .* had 3"):
        with opt.perturbed():
            w.square().sum().backward()


def test_micro_batches_before_the_closure_are_counted():
    """As Lightning accumulates: three backwards before step(closure), one in it."""
    model = mlp()
    problem, opt = Problem(model), optimizer("sam", model)
    for t in range(3):
        problem.losses(t).mean().backward()
    with pytest.raises(RuntimeError, match="SharpnessAwareCallback"):
        opt.step(lambda: problem.losses(3).mean().backward())


@pytest.mark.parametrize("with_model", [False, True])
def test_passes_are_counted_with_unused_and_frozen_parameters(with_model):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(3, 2).double() for _ in range(4))
            self.parts[0].requires_grad_(False)

        def forward(self, x, which):
            return self.parts[which](x) + self.parts[0](x)

    torch.manual_seed(0)
    model = Branches()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model if with_model else None)

    def micro_batch(which):
        loss_of(model(DATA.x[0], which), DATA.y[0]).backward()

    for which in (1, 2):
        micro_batch(which)
    assert opt.needs_second_pass()
    with opt.perturbed():
        for which in (2, 3):
            micro_batch(which)
    opt.step()
    opt.zero_grad()
    for which in (1, 2):
        micro_batch(which)
    assert opt.needs_second_pass()
    with pytest.raises(RuntimeError, match="ran 1 backward"), opt.perturbed():
        micro_batch(1)


@pytest.mark.parametrize("clear", ["opt", "opt, in place", "model", "by hand"])
def test_cleared_gradients_begin_a_new_count(clear):
    model = mlp()
    problem, opt = Problem(model), optimizer("sam", model)
    for t in range(3):
        problem.losses(t).mean().backward()  # thrown away
        if clear.startswith("opt"):
            opt.zero_grad(set_to_none=clear == "opt")
        elif clear == "model":
            model.zero_grad()
        else:
            for p in model.parameters():
                p.grad = None
        problem.losses(t).mean().backward()
        assert opt.needs_second_pass()
        with opt.perturbed():
            problem.losses(t).mean().backward()
        opt.step()
        opt.zero_grad()
    assert opt.skipped_steps == 0


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipping_before_the_decision_is_refused(clip):
    model = mlp()
    problem, opt = Problem(model), optimizer("ae-sam", model)
    problem.losses(0).mean().backward()
    clip(model.parameters(), 0.1)
    with pytest.raises(RuntimeError, match="max_norm="):
        opt.needs_second_pass()

    def closure():
        opt.zero_grad()
        problem.losses(0).mean().backward()
        clip(model.parameters(), 0.1)

    with pytest.raises(RuntimeError, match="SharpnessAwareCallback"):
        opt.step(closure)


def test_gradients_that_were_changed_on_purpose_are_taken():
    model = mlp()
    problem, opt = Problem(model), optimizer("sam", model)
    problem.losses(0).mean().backward()
    for p in model.parameters():
        p.grad.mul_(0.5)
    assert opt.needs_second_pass(edited=True)
    with opt.perturbed():
        problem.losses(0).mean().backward()
    opt.step()
    assert opt.last_step.used_sam
