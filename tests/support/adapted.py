"""A small network with LoRA adapters in float64, and Bi-LoRA written out beside it."""

import math

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from support.problems import Problem, mlp

RANK, ALPHA = 2, 3
SCALING = ALPHA / RANK


def adapted(seed=0, dropout=0.0, net=mlp, **more):
    """The twin's network with an adapter on each linear layer, none of whose matrices is zero."""
    base = net(seed)
    given = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["0", "2"], **more}
    torch.manual_seed(seed + 1)
    model = get_peft_model(base, LoraConfig(lora_dropout=dropout, **given)).double()
    draw = torch.Generator().manual_seed(seed + 2)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.1, generator=draw)
    return model


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def two_rates(model):
    """Groups as LoRA+ has them: another learning rate for B than for A."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for n, p in named if "lora_A" in n], "lr": 0.1},
        {"params": [p for n, p in named if "lora_B" in n], "lr": 0.3},
    ]


BASES = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=0.1),
}


class Literal:
    """``W₀ + s B₁A₁ + B₂A₂`` by hand: plain tensors, autograd, and one optimizer on A₁ and B₁."""

    def __init__(self, kind, rho, lr_ratio=1.0, seed=0, dropout=0.0, maximize=False):
        model = adapted(dropout=dropout)
        self.rho, self.ratio, self.dropout = rho, lr_ratio, dropout
        self.sign = -1.0 if maximize else 1.0
        frozen = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        self.weights = [v for n, v in frozen.items() if "weight" in n]
        self.biases = [v for n, v in frozen.items() if "bias" in n]
        own = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.down = [p for n, p in own.items() if "lora_A" in n]
        self.up = [p for n, p in own.items() if "lora_B" in n]
        groups = [{"params": self.down, "lr": 0.1}, {"params": self.up, "lr": 0.3}]
        self.base = BASES[kind]([{**g, "maximize": maximize} for g in groups])
        draw = torch.Generator().manual_seed(seed)
        self.down_2, self.up_2 = [], []
        for a, b in zip(self.down, self.up, strict=True):
            bound = 1 / math.sqrt(a.shape[1])
            start = torch.empty(a.shape, dtype=torch.float64).uniform_(
                -bound, bound, generator=draw
            )
            self.down_2.append(start)
            self.up_2.append(torch.zeros_like(b))
        self.problem = Problem(model)

    def forward(self, x, of_second):
        for i, (w, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            dropped = nn.functional.dropout(x, self.dropout)
            a_2, b_2 = of_second[i]
            y = x @ (w + b_2 @ a_2).T + bias
            x = y + SCALING * (dropped @ self.down[i].T) @ self.up[i].T
            x = torch.tanh(x) if i == 0 else x
        return x

    def step(self, t):
        leaves = [
            (a.clone().requires_grad_(), b.clone().requires_grad_())
            for a, b in zip(self.down_2, self.up_2, strict=True)
        ]
        self.base.zero_grad()
        x, y = self.problem.x[t], self.problem.y[t]
        ((self.forward(x, leaves) - y).square().sum(1) / 2).mean().backward()
        rates = [self.sign * self.ratio * group["lr"] for group in self.base.param_groups]
        self.down_2 = [a.detach() + rates[0] * a.grad for a, _ in leaves]
        self.up_2 = [b.detach() + rates[1] * b.grad for _, b in leaves]
        self.base.step()
        c = self.norm()
        if c > self.rho:
            self.down_2 = [a * math.sqrt(self.rho / c) for a in self.down_2]
            self.up_2 = [b * math.sqrt(self.rho / c) for b in self.up_2]

    def norm(self):
        both = zip(self.down_2, self.up_2, strict=True)
        return math.sqrt(sum(float((b @ a).square().sum()) for a, b in both))

    def trained(self):
        both = zip(self.down, self.up, strict=True)
        return [p.detach() for pair in both for p in pair]
