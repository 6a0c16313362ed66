"""skorch: it calls ``step(closure)``, and its callbacks run inside the closure."""

import pytest
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping
from support.plain_loops import LR, MOMENTUM, PlainLoop, largest_difference, micro_batches
from support.problems import TOTAL_STEPS, Problem, mlp, same, stochastic_net, weights
from torch import nn

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:skorch.*"),
]
STEPS = 20


class Loss(nn.Module):
    def forward(self, out, y):
        return (out - y).square().sum(1).mean() / 2


class Guarding(NeuralNet):
    """Tells the optimizer of the module, whose buffers it guards; as docs/trainers.md shows."""

    def get_params_for_optimizer(self, prefix, named_parameters):
        args, options = super().get_params_for_optimizer(prefix, named_parameters)
        return args, options | {"model": self.module_}


#: What support.problems gives each method.
SETTINGS = {
    "sam": {},
    "ss-sam": {"seed": 3},
    "looksam": {"k": 3},
    "ae-sam": {"total_steps": TOTAL_STEPS},
    "ae-looksam": {"total_steps": TOTAL_STEPS},
}


def in_skorch(method, net, callbacks=None, **settings):
    settings = {"momentum": MOMENTUM} | SETTINGS[method] | settings
    return Guarding(
        net(), Loss, optimizer=aesam.FromParams, optimizer__method=method, lr=LR, batch_size=8,
        max_epochs=1, train_split=None, verbose=0, iterator_train__shuffle=False,
        callbacks=callbacks, **{f"optimizer__{name}": value for name, value in settings.items()},
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
    trainer = fit(in_skorch("ae-looksam", mlp, max_norm=0.3))
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
