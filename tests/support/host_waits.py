"""How often a step makes the host wait for a device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HostReads(TorchDispatchMode):
    """Counts every operation that makes the host wait for a number."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def waits(opt, problem, t, transfers):
    """How often a step waits, and whether it takes a second gradient.

    ``transfers`` gets an item with each transfer of many numbers.
    """
    problem.losses(t).mean().backward()
    transfers.clear()
    with HostReads() as reads:
        needed = opt.needs_second_pass()
    if needed:
        with opt.perturbed():
            problem.losses(t).mean().backward()
            inside = HostReads()
            inside.__enter__()
        inside.__exit__(None, None, None)
        reads.count += inside.count
    with HostReads() as at_step:
        opt.step()
    opt.zero_grad()
    return len(transfers) + reads.count + at_step.count, needed
