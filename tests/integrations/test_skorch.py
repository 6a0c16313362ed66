"""skorch: it calls ``step(closure)``, and its callbacks run inside the closure."""

import pytest
import torch
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping
from support.plain_loops import LR, MOMENTUM, PlainLoop, largest_difference, micro_batches
from support.problems import METHODS, Problem, mlp, same, stochastic_net, weights
from torch import nn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:skorch.*"),
]
STEPS = 20


class Loss(nn.Module):
    def forward(self, out, y):
        return (out - y).square().sum(1).mean() / 2


class SharpnessAwareNet(NeuralNet):
    """A method around whatever optimizer skorch makes; the module's buffers are guarded."""

    def __init__(self, *args, method, settings=None, **options):
        super().__init__(*args, **options)
        self.method, self.settings = method, settings

    def initialize_optimizer(self, *args, **options):
        super().initialize_optimizer(*args, **options)
        make = METHODS[self.method]
        self.optimizer_ = make(self.optimizer_, self.module_, **(self.settings or {}))
        return self


def in_skorch(method, net=stochastic_net, settings=None, **options):
    return SharpnessAwareNet(
        net(), Loss, method=method, settings=settings, optimizer=torch.optim.SGD, lr=LR,
        optimizer__momentum=MOMENTUM, batch_size=8, max_epochs=1, train_split=None, verbose=0,
        iterator_train__shuffle=False, **options,
    ).initialize()  # fmt: skip


def fit(trainer, steps=STEPS, start=0):
    problem = Problem(mlp())
    x, y = (b[start : start + steps].flatten(0, 1) for b in (problem.x, problem.y))
    return trainer.partial_fit(x.numpy(), y.numpy())


def plain(method, net, max_norm=None):
    loop, problem = PlainLoop(method, net(), max_norm), Problem(mlp())
    for t in range(STEPS):
        loop.step(micro_batches(problem, t, [8]))
    return loop


@pytest.mark.parametrize("method", ["sam", "ss-sam", "looksam", "ae-sam", "ae-looksam"])
def test_fit_is_the_plain_loop(method, matrix):
    expected = plain(method, mlp)
    trainer = fit(in_skorch(method, mlp))
    losses = trainer.history[-1, "batches", :, "train_loss"]
    assert losses == pytest.approx(expected.losses, abs=1e-12)
    assert trainer.optimizer_.sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(trainer.module_, expected.model) < 1e-12
    matrix.right("skorch", "fit", within=1e-12)


def test_max_norm_clips_the_direction_as_the_plain_loop_does(matrix):
    expected = plain("ae-looksam", mlp, max_norm=0.3)
    trainer = fit(in_skorch("ae-looksam", mlp, {"max_norm": 0.3}))
    assert trainer.optimizer_.sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(trainer.module_, expected.model) < 1e-12
    matrix.right("skorch", "fit, max_norm=…", within=1e-12)


def test_its_own_clipping_is_refused_with_what_to_do(matrix):
    trainer = in_skorch("ae-sam", mlp, callbacks=[GradientNormClipping(0.3)])
    before = weights(trainer.module_)
    with pytest.raises(RuntimeError, match="(?s)gradients were changed.*max_norm=") as told:
        fit(trainer)
    assert same(before, weights(trainer.module_))
    matrix.refused("skorch", "GradientNormClipping", told.value)


def test_buffers_count_each_batch_once():
    trainer = fit(in_skorch("sam", stochastic_net))
    assert trainer.module_[1].num_batches_tracked == STEPS


def test_saved_parameters_go_on_to_the_bit(tmp_path, matrix):
    whole = fit(fit(in_skorch("ae-looksam", mlp), 11), 9, start=11)
    first = fit(in_skorch("ae-looksam", mlp), 11)
    first.save_params(tmp_path / "net", tmp_path / "opt", tmp_path / "history")
    again = in_skorch("ae-looksam", mlp)
    again.load_params(tmp_path / "net", tmp_path / "opt", tmp_path / "history")
    fit(again, 9, start=11)
    assert again.optimizer_.sam_fraction == whole.optimizer_.sam_fraction > 0
    assert largest_difference(again.module_, whole.module_) == 0.0
    matrix.right("skorch", "save_params and load_params", within=0.0)
