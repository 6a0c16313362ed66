"""Small problems in float64 whose answers are known, and brute force for those whose are not."""

import torch
from torch import nn
from torch.func import functional_call

from aesam import sharpness


class Point(nn.Module):
    """A model that is its weights, so that a loss can be any function of them."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(start, dtype=torch.float64))

    def forward(self, x):
        return self.w


ONE_BATCH = [(torch.zeros(1), torch.zeros(1))]


def quadratic(matrix, slope=None):
    """``wᵀAw/2 + bᵀw``."""
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    slope = torch.zeros(len(matrix), dtype=torch.float64) if slope is None else slope
    return lambda w, _: w @ matrix @ w / 2 + slope @ w


def symmetric(values, seed=0):
    """A matrix with these eigenvalues and random eigenvectors."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.as_tensor(values, dtype=torch.float64)
    n = len(values)
    basis, _ = torch.linalg.qr(torch.randn(n, n, generator=draw, dtype=torch.float64))
    return basis @ torch.diag(values) @ basis.T


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def batch_normed():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    net(data(sizes=(40,), seed=5)[0][0])  # running statistics that are not the batches'
    return net


def stochastic():
    """Everything that measuring could disturb: BatchNorm, dropout, and a part in another mode."""
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Tanh(), nn.Linear(4, 2)
    ).double()
    net[1].eval()
    return net


def data(sizes=(5, 5, 3), seed=3):
    """Batches of unequal size."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, 3, generator=draw, dtype=torch.float64),
            torch.randn(n, 2, generator=draw, dtype=torch.float64),
        )
        for n in sizes
    ]


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def loss_at(model, loss, batches, vector):
    """The mean loss over all samples with ``vector`` for weights, batch by batch."""
    pieces, taken = {}, 0
    for name, p in model.named_parameters():
        if p.requires_grad:
            pieces[name] = vector[taken : taken + p.numel()].view_as(p)
            taken += p.numel()
    state = {name: b.clone() for name, b in model.named_buffers()} | pieces
    count = sum(len(y) for _, y in batches)
    return sum(loss(functional_call(model, state, x), y) * len(y) for x, y in batches) / count


def gradient_at(model, loss, batches, vector):
    vector = vector.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(model, loss, batches, vector), vector)
    return gradient


def hessian_by_differences(model, loss, batches, step=1e-5):
    """Column by column, from central differences of the gradient."""
    start = weights(model)
    columns = [
        gradient_at(model, loss, batches, start + step * e)
        - gradient_at(model, loss, batches, start - step * e)
        for e in torch.eye(len(start), dtype=start.dtype)
    ]
    return torch.stack(columns) / (2 * step)


#: Every measure, with settings that make it quick; ``rho`` and the like are the measure's own.
MEASURES = {
    "squared norms": (sharpness.squared_gradient_norms, {}),
    "variance": (sharpness.gradient_variance, {}),
    "full gradient": (sharpness.full_gradient_norm, {}),
    "eigenvalues": (sharpness.hessian_eigenvalues, {"k": 2, "steps": 5}),
    "trace": (sharpness.hessian_trace, {"samples": 3}),
    "average": (sharpness.average_sharpness, {"rho": (0.05, 0.1), "samples": 2}),
    "worst case": (sharpness.worst_case_sharpness, {"rho": (0.05, 0.1), "steps": 3}),
    "line": (sharpness.slice_1d, {"points": 3}),
    "plane": (sharpness.slice_2d, {"points": 3}),
}
