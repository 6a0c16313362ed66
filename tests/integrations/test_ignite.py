"""PyTorch-Ignite: an update function of one's own, and the one that it makes."""

import warnings

import pytest
import torch
from support.plain_loops import PlainLoop, largest_difference, loss_of, micro_batches, new_optimizer
from support.problems import Problem, same, stochastic_net, weights
from torch import nn

with warnings.catch_warnings():  # it imports what torch has deprecated
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated", DeprecationWarning)
    from ignite.engine import Engine, Events, create_supervised_trainer

pytestmark = pytest.mark.slow
STEPS = 20


class WithLoss(nn.Module):
    """A net that returns its loss: there replaying is the same step."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        return loss_of(self.net, batch)


def batches(pieces=1):
    problem = Problem(stochastic_net())
    found = (micro_batches(problem, t, [8 // pieces] * pieces) for t in range(STEPS))
    return [batch for of_step in found for batch in of_step]


def plain(method, pieces=1):
    loop, problem = PlainLoop(method, stochastic_net()), Problem(stochastic_net())
    torch.manual_seed(3)
    for t in range(STEPS):
        loop.step(micro_batches(problem, t, [8 // pieces] * pieces))
    return loop


@pytest.mark.parametrize("method", ["sam", "ae-sam", "ae-looksam"])
def test_an_update_function_with_a_closure_is_the_plain_loop(method, matrix):
    expected = plain(method)
    net = stochastic_net()
    opt = new_optimizer(method, net)

    def update(_, batch):
        def closure():
            opt.zero_grad()
            loss = loss_of(net, batch)
            loss.backward()
            return loss

        return opt.step(closure).item()

    def tell(engine):
        outputs.append(engine.state.output)

    outputs = []
    trainer = Engine(update)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, tell)
    data = batches()
    torch.manual_seed(3)
    trainer.run(data, max_epochs=1)
    assert outputs == pytest.approx(expected.losses, abs=1e-12)
    assert largest_difference(net, expected.model) < 1e-12
    matrix.right("Ignite", "an update function with a closure", within=1e-12)


def supervised(opt, model, pieces):
    """Ignite's own update: forward, backward, a bare step()."""
    return create_supervised_trainer(
        model, opt, lambda loss, _: loss, prepare_batch=lambda batch, *_, **__: (batch, None),
        gradient_accumulation_steps=pieces,
    )  # fmt: skip


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("method", ["sam", "ae-looksam"])
def test_its_own_trainer_with_a_bare_step_is_the_plain_loop(method, pieces, matrix):
    expected = plain(method, pieces)
    model = WithLoss(stochastic_net())
    opt = new_optimizer(method, model, replay=True)
    data = batches(pieces)
    torch.manual_seed(3)
    supervised(opt, model, pieces).run(data, max_epochs=1)
    assert opt.sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(model.net, expected.model) < 1e-12
    use = "create_supervised_trainer, replay=True"
    matrix.right("Ignite", use + (", accumulation over 4" if pieces == 4 else ""), within=1e-12)


def test_its_own_trainer_without_replay_is_refused_with_what_to_do(matrix):
    model = WithLoss(stochastic_net())
    before = weights(model)
    with pytest.raises(RuntimeError, match="(?s)nothing to apply.*replay=True") as told:
        supervised(new_optimizer("sam", model), model, 1).run(batches(), max_epochs=1)
    assert same(before, weights(model))
    matrix.refused("Ignite", "create_supervised_trainer without replay", told.value)
