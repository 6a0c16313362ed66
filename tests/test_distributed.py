"""Two processes are one: DDP and FSDP2 on gloo, against a single process on the whole batch."""

import copy
import warnings

import pytest
import torch
from support.problems import ASSEMBLED, METHODS, VARIANTS, AboveAverageLoss, Problem, mlp, weights
from support.processes import on_processes
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import aesam
from aesam._core import messages, tensors
from aesam.parts.chosen_ascents import Named
from aesam.parts.policies import Always

pytestmark = pytest.mark.slow
STEPS, RANKS = 24, 2
GATHERED = "fsdp2 that keeps its weights gathered between the passes"


LOSS = "a policy that looks at the loss"
NAMED = "an ascent along what is chosen by name"
ROWS = {
    "ddp": ("DDP", "closure and own passes"),
    "ddp, bucket views": ("DDP", "gradient_as_bucket_view=True"),
    "fsdp2": ("FSDP2", "closure and own passes"),
    GATHERED: ("FSDP2", "weights kept gathered between the passes"),
}


def new_optimizer(method, params, model):
    base = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    if method == LOSS:
        return aesam.SharpnessAware(base, model, policy=AboveAverageLoss(), rho=0.2)
    if method == NAMED:
        ascent = Named("0.weight, 2.*")
        return aesam.SharpnessAware(base, model, policy=Always(), ascent=ascent, rho=0.2)
    return (METHODS | VARIANTS | ASSEMBLED)[method](base, model, rho=0.2)


def steps_of(method):
    """Fewer where every step is of one kind."""
    return 6 if method in (*VARIANTS, NAMED) else STEPS


def one_process(method):
    model = mlp()
    problem = Problem(model)
    opt = new_optimizer(method, model.parameters(), model)
    used = []
    for t in range(steps_of(method)):
        problem.step(opt, t)
        used.append(opt.last_step.used_sam)
    return weights(model), used, opt.last_step.squared_norm


class Shard(Problem):
    """This rank's rows of each batch; the mean over equal shards is the mean over the batch."""

    def __init__(self, model, rank):
        super().__init__(model)
        rows = self.x.shape[1] // RANKS
        self.x = self.x[:, rank * rows : (rank + 1) * rows]
        self.y = self.y[:, rank * rows : (rank + 1) * rows]


def wrapped_by(kind, model):
    if kind == "fsdp2":
        return fully_shard(model)
    if kind == GATHERED:
        for layer in (model[0], model[2]):
            fully_shard(layer, reshard_after_forward=False)
        fully_shard(model, reshard_after_forward=False).set_reshard_after_backward(False)
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=kind == "ddp, bucket views")


def train(rank, kind, method):
    model = wrapped_by(kind, mlp())
    problem = Shard(model, rank)
    opt = new_optimizer(method, model.parameters(), model)
    if kind.startswith("ddp"):
        with model.no_sync(), pytest.raises(RuntimeError, match="inside no_sync"):
            problem.step(opt, 0)
    used, steps = [], steps_of(method)
    for t in range(steps):
        if t == steps // 2:  # on the way, a checkpoint of this rank
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        opt.zero_grad()
        problem.own_passes(opt, t) if t % 2 else problem.step(opt, t)
        used.append(opt.last_step.used_sam)
        if kind == GATHERED:  # which any optimizer's step asks of its user
            for layer in model.modules():
                getattr(layer, "reshard", bool)()
    whole = [w.full_tensor() if hasattr(w, "full_tensor") else w for w in weights(model)]
    return [w.numpy() for w in whole], used, opt.last_step.squared_norm


CASES = [
    ("ddp", "ae-sam"),
    ("ddp, bucket views", "ae-looksam"),
    ("ddp", "ss-sam"),
    ("fsdp2", "ae-looksam"),
    ("ddp", LOSS),
    ("fsdp2", LOSS),
    (GATHERED, "looksam"),
    ("ddp", "budget"),
    ("fsdp2", "members"),
    ("ddp", "asam"),
    ("fsdp2", "asam"),
    ("fsdp2", "fisher-sam"),
    ("ddp, bucket views", "gsam"),
    ("fsdp2", "gsam"),
    ("ddp", "f-sam"),
    ("fsdp2", "f-sam"),
    ("fsdp2", "vasso"),
    ("ddp, bucket views", "wsam"),
    ("fsdp2", "wsam"),
    ("ddp", NAMED),
    ("fsdp2", NAMED),
    ("ddp", "msam"),
    ("fsdp2", "msam"),
    ("fsdp2", "stale-sam"),
    ("fsdp2", "stale, elementwise"),
    ("ddp", "sub-sam"),
    ("ddp, bucket views", "functional-sam"),
    ("fsdp2", "functional-sam"),
    ("ddp", "anti-pgd"),
    ("fsdp2", "anti-pgd"),
    ("ddp", "lpf-sgd"),
    ("fsdp2", "lpf-sgd"),
    ("ddp", "mesa"),
    ("fsdp2", "mesa"),
]


#: Those that wait for a device once, tried as if there were one (see ``_core/test_waiting``).
AWAY = [
    ("ddp", "sam"),
    ("ddp, bucket views", "ss-sam"),
    ("ddp, bucket views", "gsam"),
    ("fsdp2", "sam"),
    (GATHERED, "gsam"),
    ("fsdp2", "functional-sam"),
    ("ddp", "looksam"),
    ("fsdp2", "looksam"),
    ("fsdp2", "asam"),
    ("fsdp2", "f-sam"),
    ("fsdp2", "vasso"),
    ("fsdp2", NAMED),
]


def train_all(rank):
    found = {case: train(rank, *case) for case in CASES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "is_here", lambda _: False)
        return found | {(*case, "away"): train(rank, *case) for case in AWAY}


@pytest.fixture(scope="module")
def two_processes():
    return on_processes(train_all, world=RANKS)


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_two_processes_equal_one_on_the_whole_batch(kind, method, two_processes, matrix):
    expected, used, squared_norm = one_process(method)
    for ends, decisions, norm in (found[kind, method] for found in two_processes):
        assert decisions == used
        assert norm == pytest.approx(squared_norm, rel=1e-9)
        for left, right in zip(ends, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-10)
    matrix.right(*ROWS[kind], within=1e-10)
    if kind == "ddp":
        matrix.refused("DDP", "deciding inside no_sync()", messages.UNSYNCHRONISED)


@pytest.mark.parametrize(("kind", "method"), AWAY)
def test_so_they_do_where_the_norm_stays_on_the_device(kind, method, two_processes):
    expected, used, squared_norm = one_process(method)
    for ends, decisions, norm in (found[kind, method, "away"] for found in two_processes):
        assert decisions == used
        assert norm == pytest.approx(squared_norm, rel=1e-9)
        for left, right in zip(ends, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-9)


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_fsdp1_is_refused_where_the_optimizer_is_made(original, given, matrix):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FSDP1 is deprecated, and has one process here
            model = FullyShardedDataParallel(
                mlp(), use_orig_params=original, device_id=torch.device("cpu")
            )
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(TypeError, match="fully_shard") as error:
            aesam.SAM(base, model if given else None)
        matrix.refused("FSDP1", "FullyShardedDataParallel", error.value)
    finally:
        dist.destroy_process_group()
