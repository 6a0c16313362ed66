"""Settings of each method's own on digits, where 40 % of the training labels are wrong.

They are what `aesam frontier --benches digits-40` chose for the row with the method's name and what
it fixes of that row; ``results/frontier/digits-40.json`` has every value that was tried.
"""

from collections.abc import Mapping

_HALF = {"lambda1": -1.0, "lambda2": 1.0}  # half of the steps, as in the paper under label noise

ON_DIGITS: Mapping[str, Mapping[str, float]] = {
    "erm-early": {"length": 0.0884},
    "sam": {"rho": 2.0},
    "esam": {"rho": 0.5},
    "ss-sam": {"rho": 2.0},
    "ae-sam": {"rho": 2.83},
    "looksam": {"rho": 2.0, "alpha": 0.5, "k": 2},
    "ae-looksam": {"rho": 1.0, "alpha": 0.6, **_HALF},
    "late-sam": {"rho": 2.83},
    "matched-sam": {"rho": 2.0},
    "inverted-sam": {"rho": 2.83},
    "matched-looksam": {"rho": 1.41, "alpha": 0.5, **_HALF},
    "inverted-looksam": {"rho": 2.0, "alpha": 0.3, **_HALF},
    "sub-sam": {"rho": 2.83},
    "k-sam": {"rho": 0.5},
    "functional-sam": {"rho": 1.41},
    "msam": {"rho": 4.24},
    "stale-sam": {"rho": 1.0},
    "mesa": {"weight": 0.626, "decay": 0.99},
    "lpf-sgd": {"rho": 0.001},
    "anti-pgd": {"rho": 0.001},
    "asam": {"rho": 5.66},
    "fisher-sam": {"rho": 2.0, "eta": 10.0},
    "gnp": {"rho": 1.41, "alpha": 0.8},
    "f-sam": {"rho": 2.83, "decay": 0.8},
    "vasso": {"rho": 1.41, "theta": 0.9},
    "gsam": {"rho": 2.0, "alpha": 0.1},
    "wsam": {"rho": 1.0, "gamma": 0.9},
    "sam-on": {"rho": 5.66},
    "le-sam": {"rho": 4.0, "rise": 0.397},
    "ema": {"ema_decay": 0.999},
    "swa": {"rate_floor": 0.141},
    "swad": {"tolerance": 1.1},
    "entropy-sgd": {"scope": 0.00178, "inner_lr": 0.1},
    "saf": {"weight": 16.0},
}
