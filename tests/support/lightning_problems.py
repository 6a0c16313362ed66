"""The small problem inside Lightning, and the same training in a plain loop."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam
from aesam.integrations.lightning import SharpnessAwareCallback
from support.problems import BASES, METHODS, Problem, mlp, weights

QUIET = {
    "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1,
}  # fmt: skip
BATCHES = 50


class Lit(lightning.LightningModule):
    """The problem's loss in a training step, a method around SGD and a scheduler on it."""

    def __init__(self, method="ae-looksam", net=None, **settings):
        super().__init__()
        self.net = mlp() if net is None else net
        self.method, self.settings = method, settings

    def loss(self, batch):
        x, y = batch
        return (self.net(x) - y).square().sum(1).mean() / 2

    def training_step(self, batch, _):
        return self.loss(batch)

    def configure_optimizers(self):
        opt = METHODS[self.method](BASES["sgd"](self.net.parameters()), self.net, **self.settings)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)]

    @property
    def opt(self):
        return aesam.unwrap(self.optimizers())


def loader(dtype=torch.float64, batch_size=8, **options):
    problem = Problem(mlp())
    x, y = problem.x.flatten(0, 1).to(dtype), problem.y.flatten(0, 1).to(dtype)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def fit(lit, data=None, callback=True, package=lightning, ckpt_path=None, **options):
    """Train with the callback, or without; gives the trainer."""
    ours = [SharpnessAwareCallback()] if callback else []
    given = QUIET | options | {"callbacks": [*options.get("callbacks", []), *ours]}
    trainer = package.Trainer(**given)
    trainer.fit(lit, loader() if data is None else data, ckpt_path=ckpt_path)
    return trainer


def clipped(params, clip, algorithm):
    if clip is not None and algorithm == "value":
        nn.utils.clip_grad_value_(params, clip)
    elif clip is not None:
        nn.utils.clip_grad_norm_(params, clip)


def plain_loop(method, together=1, clip=None, algorithm="norm", epochs=1, skip=(), **settings):
    """Both passes over the micro-batches of a step, in our own loop; gives model and optimizer."""
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](BASES["sgd"](model.parameters()), model, **settings)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    for epoch in range(epochs):
        n = together[epoch] if isinstance(together, list) else together
        for start in range(0, BATCHES, n):
            group = [t for t in range(start, min(start + n, BATCHES)) if t not in skip]
            if group:
                step_on(group, n, problem, opt, clip, algorithm)
        scheduler.step()
    return model, opt


def step_on(group, n, problem, opt, clip, algorithm):
    with opt.first_pass():
        for t in group:
            (problem.losses(t).mean() / n).backward()
    if opt.needs_second_pass():
        with opt.perturbed():
            for t in group:
                (problem.losses(t).mean() / n).backward()
    clipped(list(problem.model.parameters()), clip, algorithm)
    opt.step()
    opt.zero_grad()


def difference(left, right):
    """The largest difference between the weights of two models."""
    pairs = zip(weights(left), weights(right), strict=True)
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)
