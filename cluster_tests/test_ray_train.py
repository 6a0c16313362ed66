"""Ray Train: a plain loop in each worker of a local Ray; apart from the other tests, as Ray is."""

import runpy
from pathlib import Path

import pytest
import torch
from support.fixtures_compatibility import matrix
from support.plain_loops import PlainLoop, loss_of, micro_batches, new_optimizer
from support.problems import Problem, mlp, weights
from test_ray import ray

__all__ = ["matrix", "ray"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]
ROOT = Path(__file__).parents[1]
STEPS = 20


def train_worker(config):
    """This worker's half of each batch; the weights at the end go into a file."""
    from ray import train
    from ray.train.torch import prepare_model

    rank = train.get_context().get_world_rank()
    torch.set_num_threads(1)
    net = mlp()
    problem = Problem(net)
    model = prepare_model(net)
    opt = new_optimizer(config["method"], model)
    for t in range(STEPS):
        (batch,) = [[b[4 * rank : 4 * rank + 4] for b in (problem.x[t], problem.y[t])]]

        def closure(batch=batch):
            opt.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        opt.step(closure)
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
    torch.save((weights(net), opt.sam_fraction), f"{config['folder']}/{rank}.pt")


@pytest.mark.parametrize("method", ["ae-sam", "ae-looksam"])
def test_two_workers_of_ray_train_equal_one_process_on_the_whole_batch(
    method, ray, tmp_path, matrix
):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    expected = PlainLoop(method, mlp())
    problem = Problem(expected.model)
    for t in range(STEPS):
        expected.step(micro_batches(problem, t, [8]))
    TorchTrainer(
        train_worker,
        train_loop_config={"method": method, "folder": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path / "ray")),
    ).fit()
    for rank in range(2):
        ends, share = torch.load(tmp_path / f"{rank}.pt")
        assert share == expected.opt.sam_fraction > 0
        for left, right in zip(ends, weights(expected.model), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    matrix.right("Ray Train", "TorchTrainer, 2 workers with DDP, a closure", within=1e-10)


def test_the_example_learns_to_read_digits(ray, capsys):
    runpy.run_path(str(ROOT / "examples/with_ray.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert float(said.partition("% correct")[0].split()[-1]) > 90
    assert "second gradient on" in said
