"""MSAM, stale ascent, a sub-batch's and functional SAM in trainers: they need no help of any."""

import warnings

import lightning
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.plugins import MixedPrecision
from skorch import NeuralNet
from support.in_stacks import accelerate_s_loop, fabric_s_loop, forget_accelerate
from support.lightning_problems import fit
from support.moved_methods import LABELS, MOVED, Trained, WithLoss, error_of, plain
from support.plain_loops import LR, MOMENTUM, largest_difference, micro_batches
from support.problems import Problem, mlp, same, stochastic_net, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam

with warnings.catch_warnings():  # it imports what torch has deprecated
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated", DeprecationWarning)
    from ignite.engine import Engine, create_supervised_trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:skorch.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]
STEPS, WITHIN = 8, 1e-12
PIECES_AND_CLIPS = [(1, 0.3), (4, None)]


@pytest.fixture(autouse=True)
def _alone():
    forget_accelerate()
    yield
    forget_accelerate()


def batches(pieces=1):
    problem = Problem(mlp())
    return [micro_batches(problem, t, [8 // pieces] * pieces) for t in range(STEPS)]


def flat(pieces=1):
    return [batch for of_step in batches(pieces) for batch in of_step]


def expected(method, pieces=1, net=stochastic_net, **options):
    return plain(method, batches(pieces), net, **options)


def accumulates(method, pieces):
    """A sub-batch is of one forward a step, and says so."""
    return pieces == 1 or method != "sub-sam"


def net_for(method, pieces):
    """Two rows of which one is taken are too few for BatchNorm."""
    return stochastic_net if accumulates(method, pieces) else mlp


def use_of(method, pieces=1, more=""):
    return f"{LABELS[method]}{more}" + (f", accumulation over {pieces}" if pieces > 1 else "")


REFUSAL = "this gradient is of\nseveral"


# Lightning -----------------------------------------------------------------------------------


class Lit(lightning.LightningModule):
    """The loss of a batch in a training step; given is the net, or this whole module."""

    def __init__(self, method, given="net", net=mlp):
        super().__init__()
        trained = Trained(method, net)
        self.net, self.inside, self.method = trained.model, trained.is_inside, method
        self.given = given

    def training_step(self, batch, _):
        x, y = batch
        return self.net(x, y) if self.inside else error_of(self.net(x), y)

    def configure_optimizers(self):
        base = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)
        given = {"net": self.net, "module": self, "none": None}[self.given]
        return MOVED[self.method](base, given)

    @property
    def trained(self):
        return self.net.net if self.inside else self.net


def data(pieces):
    x, y = (torch.cat(rows) for rows in zip(*flat(pieces), strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=8 // pieces)


@pytest.mark.parametrize("callback", [True, False])
@pytest.mark.parametrize(("pieces", "clip"), PIECES_AND_CLIPS)
@pytest.mark.parametrize("method", MOVED)
def test_lightning_is_the_plain_loop(method, pieces, clip, callback, matrix):
    lit = Lit(method)
    settings = {"accumulate_grad_batches": pieces, "gradient_clip_val": clip}
    more = (", clipping" if clip else "") + ("" if callback else ", no callback")
    use = use_of(method, pieces, more)
    refused = REFUSAL if not accumulates(method, pieces) else None
    if method == "functional-sam" and clip and not callback:
        refused = "gradients were changed between"
    if refused:
        with pytest.raises(RuntimeError, match=refused) as error:
            fit(lit, data(pieces), callback=callback, **settings)
        matrix.refused("Lightning", use, error.value)
        return
    fit(lit, data(pieces), callback=callback, **settings)
    assert largest_difference(lit.trained, expected(method, pieces, mlp, clip=clip)) < WITHIN
    matrix.right("Lightning", use, within=WITHIN)


class ByHand(Lit):
    """Manual optimization, as Lightning's documentation shows it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch, _):
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(super().training_step(batch, _))
        opt.step()


@pytest.mark.parametrize("method", MOVED)
def test_lightning_s_manual_optimization_is_the_plain_loop(method, matrix):
    lit = ByHand(method)
    fit(lit, data(1), callback=False)
    assert largest_difference(lit.trained, expected(method, 1, mlp)) < WITHIN
    matrix.right("Lightning", use_of(method, 1, ", manual optimization"), within=WITHIN)


@pytest.mark.parametrize("method", ["msam", "stale-sam", "sub-sam"])
def test_lightning_under_a_loss_scaler_is_the_plain_loop(method, matrix):
    torch.manual_seed(0)
    lit = Lit(method)
    # In float64 nothing is cast; what is tried is who unscales, and when.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=10**6)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    plugin.forward_context = lambda: torch.autocast("cpu", enabled=False)
    fit(lit, data(1), callback=False, plugins=[plugin], gradient_clip_val=0.3)
    assert scaler.get_scale() == 2.0**12
    assert largest_difference(lit.trained, expected(method, 1, mlp, clip=0.3)) < WITHIN
    matrix.right("Lightning", use_of(method, 1, ", GradScaler, clipping"), within=WITHIN)


@pytest.mark.parametrize("given", ["module", "none"])
@pytest.mark.parametrize("method", ["msam", "stale-sam"])
def test_micro_batches_that_no_forward_has_moved_for_are_refused(method, given, matrix):
    lit = Lit(method, given)
    said = {"module": "step\\(\\) found a gradient of no training forward", "none": "moves the"}
    with pytest.raises(RuntimeError, match=said[given]) as error:
        fit(lit, data(4), callback=False, accumulate_grad_batches=4)
    use = use_of(method, 4, f", model={'self' if given == 'module' else None}")
    matrix.refused("Lightning", use, error.value)
    alone = Lit(method, given)
    fit(alone, data(1), callback=False)  # a closure moves by itself
    assert largest_difference(alone.trained, expected(method, 1, mlp)) < WITHIN


# Accelerate and Fabric -----------------------------------------------------------------------


class Loss(nn.Module):
    """Whatever is trained, called as the loops of the documentation do: it returns the loss."""

    def __init__(self, trained):
        super().__init__()
        self.model, self._trained = trained.model, [trained]

    def forward(self, x, y):
        return self._trained[0].loss((x, y), self.model)


@pytest.mark.parametrize(("pieces", "clip"), PIECES_AND_CLIPS)
@pytest.mark.parametrize("method", MOVED)
def test_accelerate_s_loop_is_the_plain_loop(method, pieces, clip, matrix):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=pieces)
    trained = Trained(method, net_for(method, pieces))
    scheduler = torch.optim.lr_scheduler.ConstantLR(trained.opt, factor=1.0)
    model, opt, scheduler = accelerator.prepare(Loss(trained), trained.opt, scheduler)
    use = use_of(method, pieces, ", clip_grad_norm_" if clip else "")
    refused = REFUSAL if not accumulates(method, pieces) else None
    refused = "gradients were changed" if method == "functional-sam" and clip else refused
    if refused:
        before = weights(trained.net)
        with pytest.raises(RuntimeError, match=refused) as error:
            accelerate_s_loop(accelerator, model, opt, scheduler, flat(pieces), clip)
        assert same(weights(trained.net), before)
        matrix.refused("Accelerate", use, error.value)
        return
    accelerate_s_loop(accelerator, model, opt, scheduler, flat(pieces), clip)
    assert largest_difference(trained.net, expected(method, pieces, clip=clip)) < WITHIN
    matrix.right("Accelerate", use, within=WITHIN)


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("method", MOVED)
def test_fabric_s_loop_is_the_plain_loop(method, pieces, matrix):
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    trained = Trained(method, net_for(method, pieces))
    model, opt = fabric.setup(Loss(trained), trained.opt)
    if not accumulates(method, pieces):
        with pytest.raises(RuntimeError, match=REFUSAL) as error:
            fabric_s_loop(fabric, model, opt, flat(pieces), pieces)
        matrix.refused("Fabric", use_of(method, pieces), error.value)
        return
    clip = None if method == "functional-sam" else 0.3
    fabric_s_loop(fabric, model, opt, flat(pieces), pieces, clip)
    assert largest_difference(trained.net, expected(method, pieces, clip=clip)) < WITHIN
    more = "" if clip is None else ", clip_gradients"
    matrix.right("Fabric", use_of(method, pieces, more), within=WITHIN)


@pytest.mark.parametrize("method", ["msam", "stale-sam", "functional-sam"])
def test_our_own_step_in_accelerate_is_the_plain_loop(method, matrix):
    accelerator = Accelerator(cpu=True)
    trained = Trained(method)
    model, opt = accelerator.prepare(trained.model, trained.opt)
    steps = batches(4)
    torch.manual_seed(3)
    for of_step in steps:
        aesam.integrations.accelerate.step(
            accelerator, opt, of_step, lambda batch: trained.loss(batch, model), max_norm=0.3
        )
    assert largest_difference(trained.net, expected(method, 4, clip=0.3)) < WITHIN
    matrix.right("Accelerate", use_of(method, 1, ", step(…) over micro-batches"), within=WITHIN)


def test_our_own_step_refuses_a_sub_batch_with_what_to_do(matrix):
    trained = Trained("sub-sam")
    accelerator = Accelerator(cpu=True)
    _, opt = accelerator.prepare(trained.model, trained.opt)
    with pytest.raises(TypeError, match="works in a trainer's own loop") as error:
        aesam.integrations.accelerate.step(accelerator, opt, flat()[:1], trained.loss)
    matrix.refused("Accelerate", "sub-batch ascent, step(…)", error.value)


# skorch and Ignite ---------------------------------------------------------------------------


class Net(NeuralNet):
    """Tells the optimizer of the module, as docs/trainers.md shows."""

    def get_params_for_optimizer(self, prefix, named_parameters):
        args, options = super().get_params_for_optimizer(prefix, named_parameters)
        return args, options | {"model": self.module_}

    def train_step_single(self, batch, **_):
        """Where the module returns the loss itself, skorch's criterion has nothing to do."""
        if not hasattr(self.module_, "net"):
            return super().train_step_single(batch)
        self._set_training(True)
        loss = self.module_(*batch)
        loss.backward()
        return {"loss": loss, "y_pred": loss}


class Criterion(nn.Module):
    def forward(self, found, y):
        return error_of(found, y)


@pytest.mark.parametrize("method", MOVED)
def test_skorch_is_the_plain_loop(method, matrix):
    options = {"rho": 0.3, "momentum": MOMENTUM}
    if method == "sub-sam":
        options |= {"share": 0.5, "replay": True}
    module = WithLoss(mlp()) if method == "sub-sam" else mlp()
    found = Net(
        module, Criterion, optimizer=aesam.FromParams, optimizer__method=method, lr=LR,
        batch_size=8, max_epochs=1, train_split=None, verbose=0, iterator_train__shuffle=False,
        **{f"optimizer__{name}": value for name, value in options.items()},
    ).initialize()  # fmt: skip
    x, y = (torch.cat(rows).numpy() for rows in zip(*flat(), strict=True))
    found.partial_fit(x, y)
    net = found.module_.net if method == "sub-sam" else found.module_
    assert found.optimizer_.last_step.index == STEPS - 1
    assert largest_difference(net, expected(method, 1, mlp)) < WITHIN
    matrix.right("skorch", use_of(method), within=WITHIN)


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("method", MOVED)
def test_ignite_s_own_trainer_is_the_plain_loop(method, pieces, matrix):
    trained = Trained(method, net_for(method, pieces))
    trainer = create_supervised_trainer(
        trained.model, trained.opt, lambda found, y: found if y is None else error_of(found, y),
        prepare_batch=lambda batch, *_, **__: (batch, None) if trained.is_inside else batch,
        model_fn=lambda model, x: model(*x) if trained.is_inside else model(x),
        gradient_accumulation_steps=pieces,
    )  # fmt: skip
    torch.manual_seed(3)
    if not accumulates(method, pieces):
        with pytest.raises(RuntimeError, match=REFUSAL) as error:
            trainer.run(flat(pieces), max_epochs=1)
        matrix.refused("Ignite", use_of(method, pieces), error.value)
        return
    assert isinstance(trainer, Engine)
    data = flat(pieces)
    torch.manual_seed(3)
    trainer.run(data, max_epochs=1)
    assert largest_difference(trained.net, expected(method, pieces)) < WITHIN
    matrix.right("Ignite", use_of(method, pieces), within=WITHIN)
