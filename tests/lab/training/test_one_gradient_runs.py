"""The lab's steps of methods of one gradient are those of a plain loop, to rounding."""

import pytest
import torch
from support.literal_training import Literal, run_of
from torch.nn.functional import cross_entropy

from aesam.lab import lab_methods
from aesam.lab.config import Method
from aesam.lab.training import trainer
from aesam.lab.training.restored import load_run

pytestmark = pytest.mark.slow
METHODS = [
    Method("lpf-sgd", rho=0.02),
    Method("lpf-sgd", rho=0.02, splits=4, growth=2.0),
    Method("anti-pgd", rho=0.02, stop=0.75),
    Method("mesa", weight=2.0, decay=0.8, start=3),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_run_of_the_lab_is_the_plain_loop(method, tmp_path):
    run = run_of(method)
    trainer.train(run, tmp_path)
    plain = Literal(run)
    training = run.training
    base = torch.optim.SGD(
        plain.params, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    opt = lab_methods.make(run.method, base, plain.net, total_steps=plain.total, seed=run.seed)
    step = 0
    for epoch in range(training.epochs):
        for images, labels in plain.batches.epoch(epoch):
            base.param_groups[0]["lr"] = plain.rate(step)

            def losses(rows=slice(None), images=images, labels=labels):
                logits = plain.net(images[rows].double())
                return cross_entropy(logits, labels[rows], reduction="none")

            opt.step(losses)
            step += 1
    found = load_run(tmp_path).model.parameters()
    for p, w in zip(found, plain.weights(), strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-10)
