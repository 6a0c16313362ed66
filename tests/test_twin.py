"""Every method is its literal twin: same decisions, same weights."""

import numpy as np
import pytest
import torch
from support import twin
from support.problems import BASES, METHODS, TOTAL_STEPS, Problem, mlp

OPTIONS = {
    "erm": {},
    "sam": {},
    "ss-sam": {"p": 0.4, "seed": 3},
    "looksam": {"k": 3, "alpha": 0.5},
    "ae-sam": {"lambda1": -1.0, "lambda2": 1.0, "delta": 0.9, "total_steps": TOTAL_STEPS},
    "ae-looksam": {
        "lambda1": 0.0,
        "lambda2": 2.0,
        "delta": 0.9,
        "total_steps": TOTAL_STEPS,
        "alpha": 0.3,
    },
    "esam": {"beta": 0.6, "gamma": 0.5, "seed": 5},
}

TWIN_BASES = {
    "sgd": lambda: twin.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda: twin.SGD(lr=0.05, momentum=0.8, nesterov=True),
    "adam": lambda: twin.Adam(lr=0.01, weight_decay=1e-3),
    "adamw": lambda: twin.Adam(lr=0.01, weight_decay=0.1, decoupled=True),
}


def flat(model: torch.nn.Module) -> np.ndarray:
    """The model's weights in the twin's layout (x W, not W x)."""
    return np.concatenate([p.detach().numpy().T.ravel() for p in model.parameters()])


@pytest.mark.parametrize("form", ["closure", "own passes"])
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize(
    "base", [pytest.param(b, marks=[pytest.mark.slow] * (b in ("nesterov", "adam"))) for b in BASES]
)
@pytest.mark.parametrize("method", METHODS)
def test_method_equals_its_literal_twin(method, base, normalize, form, matrix):
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](
        BASES[base](model.parameters()), model, rho=0.1, normalize=normalize, **OPTIONS[method]
    )
    oracle = twin.Twin(method, flat(model), TWIN_BASES[base](), 0.1, normalize, OPTIONS[method])
    take_step = problem.step if form == "closure" else problem.own_passes
    decisions = []
    for t in range(TOTAL_STEPS):
        loss = take_step(opt, t)
        expected = oracle.step(problem.x[t % 50].numpy(), problem.y[t % 50].numpy())
        assert loss.item() == pytest.approx(expected, rel=1e-10)
        decisions.append(opt.last_step.used_sam)
    assert decisions == oracle.decisions
    assert opt.sam_fraction == np.mean(oracle.decisions)
    np.testing.assert_allclose(flat(model), oracle.w, rtol=0, atol=1e-10)
    matrix.right("plain PyTorch", f"{form}, against the paper's algorithms in NumPy", within=1e-10)


def test_the_twin_s_gradient_is_the_derivative_of_its_loss():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    w = rng.normal(size=sum(s.stop - s.start for s in twin.slices()))
    _, gradient = twin.per_sample(w, x, y)
    for i, step in enumerate(1e-6 * np.eye(len(w))):
        rise = twin.per_sample(w + step, x, y)[0].mean() - twin.per_sample(w - step, x, y)[0].mean()
        assert gradient()[i] == pytest.approx(rise / 2e-6, abs=1e-8)
