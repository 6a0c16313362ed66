"""Training inside Accelerate and Fabric: with our helper, and in the loops of their own docs."""

import lightning as L
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

from aesam.integrations import accelerate, fabric
from support.plain_loops import loss_of, new_optimizer
from support.problems import Problem, mlp, stochastic_net

#: Steps in the loops of their documentation.
STEPS = 12


def forget_accelerate():
    """Accelerate keeps one state for all of a process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


# With our helper ---------------------------------------------------------------------------------


class InAccelerate:
    """The helper for Accelerate, with everything prepared; the model is given to ``prepare``."""

    def __init__(self, **options):
        self.engine = Accelerator(cpu=True, **options)

    def setup(self, model, opt):
        self.model, self.opt = self.engine.prepare(model, opt)
        return self.model

    def step(self, batches, **options):
        loss_fn = options.pop("loss_fn", lambda batch: loss_of(self.model, batch))
        options.setdefault("model", self.model)
        return accelerate.step(self.engine, self.opt, batches, loss_fn, **options)


class InFabric(InAccelerate):
    def __init__(self, **options):
        self.engine = L.Fabric(**{"accelerator": "cpu", "devices": 1} | options)
        self.engine.launch()

    def setup(self, model, opt):
        self.model, self.opt = self.engine.setup(model, opt)
        return self.model

    def step(self, batches, **options):
        loss_fn = options.pop("loss_fn", lambda batch: loss_of(self.model, batch))
        options.setdefault("model", self.model)
        return fabric.step(self.engine, self.opt, batches, loss_fn, **options)


STACKS = {"Accelerate": InAccelerate, "Fabric": InFabric}


# Their own loops ---------------------------------------------------------------------------------


class WithLoss(nn.Module):
    """A net that returns its loss, as Transformers' do: there replaying is the same step."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return loss_of(self.net, (x, y))


def rows(pieces, first=0, last=8):
    """The same micro-batches, one after the other; a DataLoader would draw a random number."""
    problem = Problem(mlp())
    x, y = (b[:STEPS, first:last].flatten(0, 1) for b in (problem.x, problem.y))
    size = (last - first) // pieces
    return list(zip(x.split(size), y.split(size), strict=True))


def accelerate_s_loop(accelerator, model, opt, scheduler, loader, clip=None):
    torch.manual_seed(3)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = model(x, y)
            accelerator.backward(loss)
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            scheduler.step()
            opt.zero_grad()


def in_accelerate(method, pieces, net=stochastic_net, scaler=None, **options):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=pieces)
    accelerator.scaler = scaler
    model = WithLoss(net())
    opt = new_optimizer(method, model, replay=True, **options)
    scheduler = torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    return accelerator, *accelerator.prepare(model, opt, scheduler)


def fabric_s_loop(fabric, model, opt, loader, pieces, clip=None):
    torch.manual_seed(3)
    for i, (x, y) in enumerate(loader, start=1):
        accumulating = i % pieces != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = model(x, y)
            fabric.backward(loss / pieces)
        if not accumulating:
            if clip is not None:
                fabric.clip_gradients(model, opt, max_norm=clip)
            opt.step()
            opt.zero_grad()
