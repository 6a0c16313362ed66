"""A training run of the lab written out, step by step, for what goes on beside the steps."""

import math
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from aesam.lab import data, models
from aesam.lab.config import Method
from aesam.lab.data import data_record
from aesam.lab.data.run_samples import samples_of
from aesam.lab.lab_methods import fill
from aesam.lab.training.engine import seed_all


def run_of(method, dataset="synthetic", holdout=0.0, noise=0.0, **training):
    """A short run in float64; with digits the model has BatchNorm, with the synthetic set none."""
    usual = data_record(dataset).usual
    short = {"epochs": 4, "batch_size": 128, "precision": "float64"} | training
    given = replace(usual.data, holdout=holdout, noise=noise, subset=512)
    settings = {} if isinstance(method, str) else method.settings
    name = method if isinstance(method, str) else method.name
    return replace(
        usual, data=given, method=fill(Method(name, **settings)),
        training=replace(usual.training, **short),
    )  # fmt: skip


class Literal:
    """The run's model and samples, and plain SGD on them."""

    def __init__(self, run, samples=None):
        self.run, self.samples = run, samples or samples_of(run)
        seed_all(run.seed)
        self.net = models.build_for(run.model, self.samples.data_set).double()
        self.params = list(self.net.parameters())
        self.take_rank(0, 1)
        self.total = run.training.epochs * len(self.batches)
        self.momenta = [torch.zeros_like(p) for p in self.params]

    def take_rank(self, rank, world):
        """See the rows of one process of several."""
        run = self.run
        self.batches = data.Batches(
            self.samples.train, self.samples.data_set, run.training.batch_size, run.seed,
            augment=run.data.augment, device="cpu", rank=rank, world=world,
        )  # fmt: skip

    def rate(self, step, floor=0.0):
        return self.run.training.lr * max(floor, 0.5 * (1 + math.cos(math.pi * step / self.total)))

    def gradients(self, images, labels):
        loss = cross_entropy(self.net(images.double()), labels)
        return torch.autograd.grad(loss, self.params)

    @torch.no_grad()
    def update(self, gradients, rate):
        """SGD with momentum and weight decay."""
        training = self.run.training
        for p, g, v in zip(self.params, gradients, self.momenta, strict=True):
            v.mul_(training.momentum).add_(g + training.weight_decay * p)
            p.sub_(rate * v)

    def epochs(self, floor=0.0):
        """Train; after each step its number (from 1), after each epoch None."""
        step = 0
        for epoch in range(self.run.training.epochs):
            for images, labels in self.batches.epoch(epoch):
                self.update(self.gradients(images, labels), self.rate(step, floor))
                step += 1
                yield step
            yield None

    def weights(self):
        return [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def loss_now(self, split):
        """Mean loss of the model as it is."""
        self.net.eval()
        (chunk,) = data.evaluation_chunks(split, self.samples.data_set, len(split), "cpu")
        loss = cross_entropy(self.net(chunk[0].double()), chunk[1]).item()
        self.net.train()
        return loss

    @torch.no_grad()
    def loss_of(self, weights, split):
        """Mean loss with other weights and their own statistics of BatchNorm."""
        state = {k: v.clone() for k, v in self.net.state_dict().items()}
        for p, w in zip(self.params, weights, strict=True):
            p.copy_(w)
        self.statistics()
        loss = self.loss_now(split)
        self.net.load_state_dict(state)
        return loss

    @torch.no_grad()
    def statistics(self):
        """The mean over batches of each batch's mean and (unbiased) variance, layer by layer."""
        norms = [m for m in self.net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        seen = {norm: [] for norm in norms}

        def note(norm, inputs):
            flat = inputs[0].transpose(0, 1).flatten(1)
            seen[norm].append((flat.mean(1), flat.var(1)))

        hooks = [norm.register_forward_pre_hook(note) for norm in norms]
        for images, _ in self.batches.epoch(0):
            self.net(images.double())
        for hook in hooks:
            hook.remove()
        for norm, found in seen.items():
            norm.running_mean.copy_(torch.stack([m for m, _ in found]).mean(0))
            norm.running_var.copy_(torch.stack([v for _, v in found]).mean(0))


def mean_of(iterates):
    """The mean of lists of tensors."""
    return [torch.stack(tensors).mean(0) for tensors in zip(*iterates, strict=True)]
