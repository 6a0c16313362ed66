"""Trains a Keras model on torch beside a plain loop, in a process of its own: Keras is global."""

import json
import sys

import keras
import torch
from torch import nn

from support.moved_methods import MOVED, error_of, plain
from support.plain_loops import LR, MOMENTUM, PlainLoop, micro_batches, new_optimizer
from support.problems import Problem

STEPS = 20


def twin() -> nn.Sequential:
    """The same net in torch, with Keras's ε, and its momentum counted from the other end."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, eps=1e-3, momentum=0.01)
    return nn.Sequential(
        nn.Linear(3, 16), norm, nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 2)
    ).double()


def in_keras(model: nn.Sequential) -> keras.Model:
    layers = keras.layers
    net = keras.Sequential(
        [
            layers.Input((3,)), layers.Dense(16), layers.BatchNormalization(), layers.ReLU(),
            layers.Dropout(0.4), layers.Dense(2),
        ]
    )  # fmt: skip
    for dense, linear in ((net.layers[0], model[0]), (net.layers[4], model[4])):
        dense.set_weights([linear.weight.detach().T.numpy(), linear.bias.detach().numpy()])
    return net


def differences(method: str) -> dict[str, float]:
    """Between both, of the weights and of the statistics that a pass leaves."""
    loop = PlainLoop(method, twin())
    problem = Problem(loop.model)
    torch.manual_seed(3)
    for t in range(STEPS):
        loop.step(micro_batches(problem, t, [8]))

    net = in_keras(twin())
    opt = new_optimizer(method, net)

    def closure_of(t: int):
        def closure() -> torch.Tensor:
            opt.zero_grad()
            out = net(problem.x[t], training=True)
            loss = (out - problem.y[t]).square().sum(1).mean() / 2
            loss.backward()
            return loss

        return closure

    torch.manual_seed(3)
    losses = [opt.step(closure_of(t)).item() for t in range(STEPS)]
    norm = loop.model[1]
    decay, biased = 0.99**STEPS, 7 / 8  # Keras counts the variance of a batch, torch estimates it
    variance = decay + (norm.running_var - decay) * biased
    moving_mean, moving_variance = net.layers[1].non_trainable_variables
    pairs = {
        "losses": (torch.tensor(losses).double(), torch.tensor(loop.losses).double()),
        "first layer": (net.layers[0].kernel.value, loop.model[0].weight.T),
        "last layer": (net.layers[4].kernel.value, loop.model[4].weight.T),
        "scale": (net.layers[1].gamma.value, norm.weight),
        "moving mean": (moving_mean.value, norm.running_mean),
        "moving variance": (moving_variance.value, variance),
        "share": (torch.tensor(opt.sam_fraction), torch.tensor(loop.opt.sam_fraction)),
    }
    return {name: float((a - b).detach().abs().max()) for name, (a, b) in pairs.items()}


def moved_difference(method: str) -> float:
    """Between a bare loop and passes by hand, where the model's forward moves the weights."""
    problem = Problem(twin())
    steps = [micro_batches(problem, t, [8]) for t in range(STEPS)]
    expected = plain(method, steps, twin)
    net = in_keras(twin())
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    opt = MOVED[method](base, net)
    torch.manual_seed(3)
    for ((x, y),) in steps:
        opt.zero_grad()
        error_of(net(x, training=True), y).backward()
        opt.step()
    pairs = [(net.layers[i].kernel.value, expected[i].weight.T) for i in (0, 4)]
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def masks_of_a_seeded_dropout(replay: bool) -> dict[str, list[list[int]]]:
    """What a dropout with a seed of its own draws: alone, and in both passes of each SAM step."""
    drawn = {"alone": [], "with SAM": []}
    for name, masks in drawn.items():
        layers = keras.layers
        dropout = layers.Dropout(0.5, seed=7)
        net = keras.Sequential([layers.Input((3,)), layers.Dense(8), dropout, layers.Dense(1)])
        dropout.register_forward_hook(lambda _l, _i, out, m=masks: m.append(out.ne(0).flatten()))
        opt = new_optimizer("sam", net, rho=0.0, replay=replay)
        for _ in range(4):

            def closure(net=net, opt=opt) -> torch.Tensor:
                opt.zero_grad()
                loss = net(torch.ones(4, 3), training=True).square().mean()
                loss.backward()
                return loss

            if name == "alone" or replay:
                closure()
            if name != "alone":
                opt.step(None if replay else closure)
    return {name: [mask.int().tolist() for mask in masks] for name, masks in drawn.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    seeded = {form: masks_of_a_seeded_dropout(form == "replay") for form in ("closure", "replay")}
    keras.config.set_floatx("float64")
    found = {method: differences(method) for method in sys.argv[1:]}
    moved = {method: moved_difference(method) for method in ("msam", "stale-sam")}
    print(json.dumps({"differences": found, "seeded": seeded, "moved": moved}))
