"""A checkpoint of a model that is spread over two processes is gone on from to the bit."""

import copy
import os
import socket

import pytest
import torch
import torch.multiprocessing as mp
from support.problems import Problem, mlp
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

import aesam
from aesam.lab.training import sharding

pytestmark = pytest.mark.slow


def spread(seed):
    model = fully_shard(mlp(seed))
    base = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, aesam.LookSAM(base, model, k=3)


def whole(model):
    return {k: v.numpy() for k, v in sharding.whole_model_state(model).items()}


def on_one_process(rank, port, folder, results):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        model, opt = spread(seed=0)
        Problem(model).train(opt, 5)
        file = folder / f"own{rank}.pt"
        own = sharding.own_optimizer_state(opt)
        torch.save({"model": sharding.whole_model_state(model), "own": own}, file)
        kept = copy.deepcopy(whole(model))
        Problem(model).train(opt, 4, start=5)

        other_model, other = spread(seed=9)
        saved = torch.load(file, weights_only=True)
        sharding.load_whole_model_state(other_model, saved["model"])
        sharding.load_own_optimizer_state(other, saved["own"])
        Problem(other_model).train(other, 4, start=5)
        ends = whole(model), whole(other_model)
        equal = all((ends[0][k] == ends[1][k]).all() for k in kept)
        moved = any((ends[0][k] != kept[k]).any() for k in kept)
        results.put((rank, sharding.is_sharded(model), equal, moved))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_spread_model_goes_on_to_the_bit(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    args = (port, tmp_path, results)
    workers = [context.Process(target=on_one_process, args=(r, *args)) for r in range(2)]
    try:
        for worker in workers:
            worker.start()
        found = sorted(results.get(timeout=120) for _ in workers)
    finally:
        for worker in workers:
            worker.join(30)
            worker.kill()
    assert found == [(0, True, True, True), (1, True, True, True)]


def test_a_model_on_one_process_is_left_as_it_is():
    model = mlp()
    assert not sharding.is_sharded(model)
    saved = sharding.whole_model_state(model)
    assert all(torch.equal(saved[k], v) for k, v in model.state_dict().items())
