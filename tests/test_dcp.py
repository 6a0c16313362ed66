"""``torch.distributed.checkpoint`` keeps everything of ours, as of any torch optimizer.

A run that goes on from it, with a fresh model and optimizer, is the run that was never stopped.
"""

import copy
import functools
import io
import os
import socket
import traceback

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from support.problems import (
    ASSEMBLED,
    BASES,
    METHODS,
    VARIANTS,
    Problem,
    same,
    stochastic_net,
    weights,
)
from support.saved import ours
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"
    ),
]
STATELESS = "sgd without momentum"
OF_BASE = BASES | {STATELESS: lambda params: torch.optim.SGD(params, lr=0.1)}
SAVED = METHODS | VARIANTS | ASSEMBLED
WITH_STATE = ["ae-sam", "ae-looksam", "ss-sam", "esam", "f-sam", "anti-pgd", "lpf-sgd", "mesa"]
OPTIONS = {
    "sharded": {},
    "full": {"full_state_dict": True},
    "full, offloaded": {"full_state_dict": True, "cpu_offload": True},
    "flattened": {"flatten_optimizer_state_dict": True},
    "flattened, offloaded": {"flatten_optimizer_state_dict": True, "cpu_offload": True},
}


def new(method, base="sgd", seed=0, **options):
    model = stochastic_net(seed)
    return (
        model,
        Problem(model),
        SAVED[method](OF_BASE[base](model.parameters()), model, **options),
    )


def through_files(saved, fresh, folder):
    """What the checkpoint in a folder makes of a fresh state dict."""
    dcp.save(saved, checkpoint_id=folder, no_dist=True)
    dcp.load(fresh, checkpoint_id=folder, no_dist=True)
    return fresh


# One process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("base", ["sgd", "adamw"])
@pytest.mark.parametrize("method", [*WITH_STATE, *ASSEMBLED])
def test_going_on_from_it_is_not_stopping_to_the_bit(method, base, options, tmp_path, matrix):
    chosen = StateDictOptions(**OPTIONS[options])
    for stopped in (1, 9):  # AE-LookSAM has formed nothing to use again after one step
        model, problem, opt = new(method, base)
        torch.manual_seed(9)
        problem.train(opt, stopped)
        random = torch.get_rng_state()
        of_model, of_opt = get_state_dict(model, opt, options=chosen)
        saved = copy.deepcopy({"model": of_model, "opt": of_opt})

        other_model, other_problem, other = new(method, base, seed=99)
        of_model, of_opt = get_state_dict(other_model, other, options=chosen)
        fresh = through_files(saved, {"model": of_model, "opt": of_opt}, tmp_path / str(stopped))
        set_state_dict(
            other_model,
            other,
            model_state_dict=fresh["model"],
            optim_state_dict=fresh["opt"],
            options=chosen,
        )
        for each, trained in ((problem, opt), (other_problem, other)):
            torch.set_rng_state(random)
            each.train(trained, 12 - stopped, start=stopped)
        assert same(weights(model), weights(other_model))
        assert other.last_step == opt.last_step
        assert other.sam_fraction == opt.sam_fraction
    matrix.right("torch.distributed.checkpoint", "get_state_dict, save, load, set_state_dict", 0.0)


def test_a_base_without_state_goes_on_from_it(tmp_path):
    """DCP then steps in the middle of a training too: it finds neither state nor gradients."""
    model, problem, opt = new("ae-sam", STATELESS)
    problem.train(opt, 6)
    opt.zero_grad()
    before, seen = ours(opt.state_dict()), opt.last_step
    saved = {"opt": get_optimizer_state_dict(model, opt)}
    assert ours(opt.state_dict()) == before
    assert opt.last_step is seen
    other_model, other_problem, other = new("ae-sam", STATELESS)
    fresh = through_files(saved, {"opt": get_optimizer_state_dict(other_model, other)}, tmp_path)
    set_optimizer_state_dict(other_model, other, fresh["opt"])
    assert ours(other.state_dict()) == before


@pytest.mark.parametrize("method", SAVED)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_fresh_optimizer_has_every_key_of_a_trained_one(method, options):
    model, problem, opt = new(method)
    chosen = StateDictOptions(**OPTIONS[options])

    def keys():
        saved = get_optimizer_state_dict(model, opt, options=chosen)
        inner = {(name, k) for name, entry in saved.get("state", {}).items() for k in entry}
        return set(saved) | inner

    fresh = keys()
    problem.train(opt, 8)
    opt.zero_grad()
    assert keys() == fresh


def test_the_state_of_another_method_is_refused_and_changes_nothing(tmp_path):
    model, problem, opt = new("ae-looksam")
    problem.train(opt, 3)
    saved = get_optimizer_state_dict(model, opt)
    other_model, other_problem, other = new("ae-sam")
    other_problem.train(other, 2)
    before = repr(other.state_dict())
    with pytest.raises(ValueError, match="of another method"):
        set_optimizer_state_dict(other_model, other, saved)
    bare = get_optimizer_state_dict(model, opt.base)
    with pytest.raises(ValueError, match=r"opt\.base\.load_state_dict"):
        set_optimizer_state_dict(other_model, other, bare)
    assert repr(other.state_dict()) == before


def test_two_optimizers_of_one_model_are_kept_apart(tmp_path):
    def two(seed):
        model = stochastic_net(seed)
        first = METHODS["looksam"](BASES["adamw"](model[0].parameters()))
        rest = [p for layer in list(model)[1:] for p in layer.parameters()]
        second = METHODS["ss-sam"](BASES["sgd"](rest))
        return model, [first, second]

    model, opts = two(0)
    for t in range(5):
        for opt in opts:
            Problem(model).step(opt, t)
    saved = {"opt": get_state_dict(model, opts)[1]}
    other_model, others = two(99)
    fresh = through_files(saved, {"opt": get_state_dict(other_model, others)[1]}, tmp_path)
    set_optimizer_state_dict(other_model, others, fresh["opt"])
    for opt, other in zip(opts, others, strict=True):
        assert repr(ours(other.state_dict())) == repr(ours(opt.state_dict()))


@pytest.mark.parametrize(("options", "groups"), [("sharded", 1), ("flattened", 2)])
def test_memories_go_by_the_names_of_parameters(options, groups):
    """Their order is another now; flattened, the groups may be others too."""
    chosen = StateDictOptions(**OPTIONS[options])
    model, problem, opt = new("looksam")
    problem.train(opt, 4)
    of_model, of_opt = copy.deepcopy(get_state_dict(model, opt, options=chosen))
    other_model = stochastic_net(99)
    turned = list(other_model.parameters())[::-1]
    split = [turned] if groups == 1 else [turned[:1], turned[1:]]
    other = METHODS["looksam"](BASES["sgd"]([{"params": group} for group in split]), other_model)
    set_state_dict(
        other_model, other, model_state_dict=of_model, optim_state_dict=of_opt, options=chosen
    )
    assert len(other.param_groups) == groups
    for each, trained in ((problem, opt), (Problem(other_model), other)):
        torch.manual_seed(5)
        each.train(trained, 4, start=4)
    for found, wanted in zip(weights(other_model), weights(model), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_a_frozen_parameter_s_memory_need_not_be_there():
    """DCP gives a frozen parameter's state back to no optimizer."""
    model, problem, opt = new("looksam")
    problem.train(opt, 4)
    model[0].weight.requires_grad_(False)
    saved = get_optimizer_state_dict(model, opt)
    assert saved["state"]["0.weight"]["aesam.between.formed"]
    set_optimizer_state_dict(model, opt, saved)
    assert set(ours(opt.state_dict())["between"]["tensors"]) == {1, 2, 3, 4, 5}
    del saved["state"]["0.bias"]["aesam.between"]
    del saved["state"]["0.bias"]["aesam.between.formed"]
    with pytest.raises(ValueError, match="4 of 5 tensors are there"):
        set_optimizer_state_dict(model, opt, saved)


@pytest.mark.parametrize("options", OPTIONS)
def test_several_optimizers_as_one_go_on_from_it(options, tmp_path):
    def build(seed):
        model = stochastic_net(seed)
        adamw = torch.optim.AdamW(model[0].parameters(), lr=0.01)
        rest = [p for layer in list(model)[1:] for p in layer.parameters()]
        both = aesam.Together(adamw, torch.optim.SGD(rest, lr=0.1, momentum=0.9))
        return model, METHODS["looksam"](both, model)

    chosen = StateDictOptions(**OPTIONS[options])
    (model, opt), (other_model, other) = build(0), build(99)
    Problem(model).train(opt, 4)
    saved = {"opt": get_optimizer_state_dict(model, opt, options=chosen)}
    fresh = {"opt": get_optimizer_state_dict(other_model, other, options=chosen)}
    through_files(saved, fresh, tmp_path)
    set_optimizer_state_dict(other_model, other, fresh["opt"], options=chosen)
    other_model.load_state_dict(model.state_dict())
    for each, trained in ((model, opt), (other_model, other)):
        torch.manual_seed(5)
        Problem(each).train(trained, 4, start=4)
    assert same(weights(model), weights(other_model))


# The step that makes a fresh optimizer's state -------------------------------------------------


def patched_by_a_scheduler(opt):
    torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1.0)
    return opt


def in_accelerate(opt):
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(opt)


def in_fabric(opt):
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu").setup_optimizers(opt)


#: What stands between DCP and us, around some methods.
WRAPPERS = {"ae-sam": patched_by_a_scheduler, "looksam": in_accelerate, "esam": in_fabric}


@pytest.mark.parametrize("method", METHODS)
def test_it_is_no_step_of_ours_and_leaves_no_trace(method):
    model, problem, opt = new(method, "adamw")
    opt.register_step_pre_hook(lambda *_: pytest.fail("a hook on steps was called"))
    lr, before, kept = opt.param_groups[0]["lr"], weights(model), ours(opt.state_dict())
    get_optimizer_state_dict(model, WRAPPERS.get(method, lambda opt: opt)(opt))
    assert opt.param_groups[0]["lr"] == lr
    assert same(before, weights(model))
    assert ours(opt.state_dict()) == kept
    assert all(p.grad is None for p in model.parameters())
    assert opt.last_step is None
    assert opt.sam_fraction == 0.0
    assert len(opt.base.state) == len(before)


def test_it_replays_nothing():
    model, problem, opt = new("ae-looksam", "adamw", replay=True)
    before = weights(model)
    get_optimizer_state_dict(model, opt)
    assert same(before, weights(model))
    assert opt.last_step is None
    problem.losses(0).mean().backward()
    opt.step()
    opt.zero_grad()
    assert opt.last_step.used_sam
    other_model, other_problem, other = new("ae-looksam", "adamw", seed=99, replay=True)
    set_optimizer_state_dict(other_model, other, get_optimizer_state_dict(model, opt))
    assert repr(other.state_dict()) == repr(opt.state_dict())


def test_inside_a_pass_it_is_refused_and_the_learning_rate_is_as_before():
    model, problem, opt = new("sam", STATELESS)
    problem.losses(0).mean().backward()
    assert opt.needs_second_pass()
    before = weights(model)
    with opt.perturbed():
        with pytest.raises(RuntimeError, match="leave that block first"):
            get_optimizer_state_dict(model, opt)
        assert opt.param_groups[0]["lr"] == 0.1
        problem.losses(0).mean().backward()
    assert same(before, weights(model))


def test_a_base_that_refuses_it_keeps_its_learning_rate():
    class Refuses(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("not in train mode")

    model = stochastic_net()
    groups = [{"params": [p], "lr": 0.1 * i} for i, p in enumerate(model.parameters(), start=1)]
    opt = aesam.SAM(Refuses(groups))
    rates = [group["lr"] for group in opt.param_groups]
    with pytest.raises(RuntimeError, match="not in train mode"):
        get_optimizer_state_dict(model, opt)
    assert [group["lr"] for group in opt.param_groups] == rates
    assert all(p.grad is None for p in model.parameters())


def test_a_bare_step_of_a_user_is_still_refused_where_it_has_nothing_to_apply():
    model, problem, opt = new("sam")
    get_optimizer_state_dict(model, opt)
    problem.losses(0).mean().backward()
    with pytest.raises(RuntimeError, match="nothing to apply"):
        opt.step(closure=None)


# Several processes, and another number of them -------------------------------------------------

#: Each with a base; ESAM on all rows, since each process would choose among its own.
CASES = {
    "ae-sam": ("sgd", {}),
    "ae-looksam": ("adamw", {"total_steps": 24}),
    "ss-sam": (STATELESS, {}),
    "esam": ("sgd", {"gamma": 1.0}),
}
STOPS = (0, 8, 16, 24)
OTHER = {"ddp": "fsdp2", "fsdp2": "ddp"}


def uneven_net(seed):
    """Five rows do not split into equal shards."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def optimizer_of(method, model):
    base, options = CASES[method]
    return METHODS[method](OF_BASE[base](model.parameters()), model, rho=0.2, **options)


@functools.cache
def never_stopped(method):
    """The weights at each stop, and whether each step took a second gradient."""
    model = uneven_net(0)
    opt, problem, used, at = optimizer_of(method, model), Problem(model), [], {}
    for t in range(STOPS[-1]):
        problem.step(opt, t)
        used.append(opt.last_step.used_sam)
        at[t + 1] = weights(model)
    return at, used


class Share(Problem):
    """A process's rows of each batch; the mean over equal shares is the mean over the batch."""

    def __init__(self, model):
        super().__init__(model)
        count, rank = dist.get_world_size(), dist.get_rank()
        rows = self.x.shape[1] // count
        self.x, self.y = (t[:, rank * rows : (rank + 1) * rows] for t in (self.x, self.y))


def build(kind, method, seed):
    model = uneven_net(seed)
    model = fully_shard(model) if kind == "fsdp2" else DistributedDataParallel(model)
    return model, optimizer_of(method, model)


def inside(model):
    """A model in DDP itself: of the wrapper, torch takes no state dict that only rank 0 has."""
    return getattr(model, "module", model)


def whole(model):
    return [w.full_tensor() if hasattr(w, "full_tensor") else w for w in weights(model)]


def train_between(kind, method, stop, model, opt):
    problem, used = Share(model), []
    for t in range(stop - 8, stop):
        problem.step(opt, t)
        used.append(opt.last_step.used_sam)
    return [w.numpy() for w in whole(model)], used


def go_on(folder, stop):
    """Train all cases from the stop before to this one: by folders, which are by kind and stop."""
    found = {}
    for kind, other_kind in OTHER.items():
        for method in CASES:
            model, opt = build(kind, method, seed=0 if stop == STOPS[1] else 99)
            parts = dict(zip(("model", "opt"), get_state_dict(model, opt), strict=True))
            if stop > STOPS[1]:
                of = kind if stop == STOPS[2] else other_kind  # and at last as the other
                dcp.load(parts, checkpoint_id=folder / f"{of}, {method}, {stop - 8}")
                set_state_dict(
                    model, opt, model_state_dict=parts["model"], optim_state_dict=parts["opt"]
                )
            else:
                opt = optimizer_of(method, model)
            found[kind, method] = train_between(kind, method, stop, model, opt)
            opt.zero_grad()
            parts = dict(zip(("model", "opt"), get_state_dict(model, opt), strict=True))
            dcp.save(parts, checkpoint_id=folder / f"{kind}, {method}, {stop}")
    return found


def goes_on_from_a_file_of_this_rank(opt):
    """A file per rank, as any optimizer's; and one of version 1, with shards as plain tensors."""
    saved, file = opt.state_dict(), io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    opt.load_state_dict(torch.load(file, weights_only=True))
    kept = ours(saved)
    shards = {i: t.to_local() for i, t in kept["between"]["tensors"].items()}
    assert shards
    version_1 = {k: v for k, v in kept.items() if k not in ("samples", "combine")}
    version_1 |= {"version": 1, "between": {**kept["between"], "tensors": shards}}
    base = opt.base.state_dict()
    opt.load_state_dict({**base, "aesam": version_1})
    for i, entry in opt.state_dict()["state"].items():
        assert torch.equal(entry["aesam.between"].to_local(), shards[i])


def hand_over(stop):
    """From rank 0 alone, whole or flattened, to all processes of a fresh training."""
    found = {}
    for kind in OTHER:
        model, opt = build(kind, "ae-looksam", seed=0)
        train_between(kind, "ae-looksam", stop - 8, model, opt)
        for name, options in HANDED.items():
            chosen = StateDictOptions(**options)
            of_model, of_opt = get_state_dict(inside(model), opt, options=chosen)
            if options.get("cpu_offload"):
                assert bool(of_opt) == (dist.get_rank() == 0)
            other_model, other = build(kind, "ae-looksam", seed=99)
            given = StateDictOptions(
                **{k: v for k, v in options.items() if k != "cpu_offload"},
                broadcast_from_rank0="cpu_offload" in options,
            )
            # not set_state_dict: it takes a rank that was given nothing for one without a model
            set_model_state_dict(inside(other_model), copy.deepcopy(of_model), options=given)
            set_optimizer_state_dict(
                inside(other_model), other, copy.deepcopy(of_opt), options=given
            )
            if kind == "fsdp2":
                goes_on_from_a_file_of_this_rank(other)
                memories = [e["aesam.between"] for e in other.state_dict()["state"].values()]
                for memory, p in zip(memories, other_model.parameters(), strict=True):
                    assert memory.placements == p.placements
            found[kind, name] = train_between(kind, "ae-looksam", stop, other_model, other)
    return found


HANDED = {
    "whole": {"full_state_dict": True},
    "whole, from rank 0 alone": {"full_state_dict": True, "cpu_offload": True},
    "sharded and flattened": {"flatten_optimizer_state_dict": True},
}


def rank_main(rank, count, port, work, args, results):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=count)
    try:
        results.put(work(*args))
        dist.barrier()
    except BaseException:
        results.put(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


def in_processes(count, work, *args):
    """What ``work`` returns in each of so many processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    given = (count, port, work, args, results)
    workers = [context.Process(target=rank_main, args=(r, *given)) for r in range(count)]
    try:
        for worker in workers:
            worker.start()
        found = [results.get(timeout=120) for _ in workers]
    finally:
        for worker in workers:
            worker.join(30)
            worker.kill()
    failed = [each for each in found if isinstance(each, str)]
    assert not failed, "\n".join(failed)
    return found


def check(found, method, stop):
    at, used = never_stopped(method)
    ends, decisions = found
    assert decisions == used[stop - 8 : stop]
    for left, right in zip(ends, at[stop], strict=True):
        torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-10)


def begin(folder):
    return go_on(folder, STOPS[1]), hand_over(STOPS[2])


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder and the ends of what two processes did first."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return folder, in_processes(2, begin, folder)


@pytest.mark.slow
def test_two_processes_then_one_then_two_are_one_training(begun, matrix):
    """DDP and FSDP2, each loaded by the other at last."""
    folder, first = begun
    one = in_processes(1, go_on, folder, STOPS[2])
    two = in_processes(2, go_on, folder, STOPS[3])
    ends = [(found, STOPS[1]) for found, _ in first]
    for found, stop in [*ends, (one[0], STOPS[2]), *((found, STOPS[3]) for found in two)]:
        assert len(found) == len(OTHER) * len(CASES)
        for (_, method), end in found.items():
            check(end, method, stop)
    assert set(never_stopped("ae-looksam")[1][STOPS[1] :]) == {True, False}
    matrix.right("torch.distributed.checkpoint", "DDP and FSDP2, 2 → 1 → 2 processes", 1e-10)


@pytest.mark.slow
def test_whole_and_flattened_state_dicts_go_to_all_processes(begun, matrix):
    for _, found in begun[1]:
        assert len(found) == len(OTHER) * len(HANDED)
        for end in found.values():
            check(end, "ae-looksam", STOPS[2])
    use = "full_state_dict, cpu_offload, broadcast_from_rank0, flattened"
    matrix.right("torch.distributed.checkpoint", use, 1e-10)
