"""Methods by name: made, listed and refused from their records."""

import inspect

import pytest
import torch
from support.problems import FOR_ANY_MODEL
from torch import nn

import aesam
from aesam import Setting, SharpnessAware
from aesam.methods import Common
from aesam.parts import controls
from aesam.parts.budget import Budget
from aesam.registry import COMMON, OF_THE_LAB, forget_method

NAMES = FOR_ANY_MODEL


def model():
    return nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))


def needed(record):
    return {"total_steps": 10} if record.needs_total_steps else {}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_made_by_its_name_with_its_defaults(name):
    record = aesam.method_record(name)
    opt = aesam.create(name, model(), optimizer="adamw", lr=1e-3, **needed(record))
    assert isinstance(opt, SharpnessAware)
    assert isinstance(opt.base, torch.optim.AdamW)
    assert opt.param_groups[0]["lr"] == 1e-3
    settings = {k: v for part in opt.parts.by_name.values() for k, v in part.settings().items()}
    settings |= {"rho": opt.param_groups[0]["rho"], "normalize": opt.normalize}
    made_of = opt.parts.method
    settings |= {"elementwise": "WithWeights" in made_of, "norm_layers": "NormLayers" in made_of}
    settings.setdefault("start", settings.get("wait"))  # a part's start() is another thing
    assert {k: settings.get(k) for k in record.defaults} == record.defaults


def with_momentum(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_has_the_defaults_of_its_record(name):
    record = aesam.method_record(name)
    if inspect.isclass(record.make):
        net = model()
        given = needed(record)
        by_name = aesam.create(name, net, optimizer=with_momentum(net), **given)
        by_class = record.make(with_momentum(net), net, **given)
        assert repr(by_class) == repr(by_name)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_explained(name):
    record = aesam.method_record(name)
    assert record.label
    assert record.summary
    assert all(s.help and s.allowed and list(s.grid) == sorted(s.grid) for s in record.settings)


def test_settings_reach_the_method_and_arguments_the_optimizer():
    opt = aesam.create(
        "ae-sam", model(), optimizer="SGD", lr=0.2, momentum=0.8, rho=0.1, total_steps=7, delta=0.5
    )
    assert (opt.param_groups[0]["momentum"], opt.param_groups[0]["rho"]) == (0.8, 0.1)
    assert (opt.policy.total_steps, opt.policy.delta) == (7, 0.5)
    assert aesam.create("ss-sam", model(), seed=4).policy.seed == 4
    assert aesam.create("sam", model(), nonfinite="raise").nonfinite == "raise"


def test_an_optimizer_may_be_a_class_or_made_already():
    net = model()
    made = torch.optim.Adam(net.parameters(), lr=0.3)
    assert aesam.create("sam", net, optimizer=made).base is made
    assert isinstance(aesam.create("sam", net, optimizer=torch.optim.Adam).base, torch.optim.Adam)
    with pytest.raises(ValueError, match="sam has no setting lr and Adam is made already"):
        aesam.create("sam", net, optimizer=made, lr=0.1)


BUDGETED = ("ae-sam", "ae-looksam", "inverted-sam", "inverted-looksam")


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_takes_the_place_of_thresholds_and_length(name):
    inverted = name.startswith("inverted")
    expected = controls.InvertedBudget(0.2) if inverted else Budget(0.2)
    for opt in (
        aesam.create(name, model(), budget=0.2),
        aesam.FromParams(model(), method=name, budget=0.2),
        aesam.method_record(name).make(torch.optim.SGD(model().parameters()), budget=0.2),
    ):
        assert opt.policy == expected
        assert not opt.needs_total_steps
        opt.set_total_steps(100)  # as trainers do
        assert opt.policy == expected
    without = aesam.create(name, model(), budget=None, total_steps=7)
    assert without.policy.total_steps == 7


@pytest.mark.parametrize("name", BUDGETED)
def test_what_goes_with_no_budget_is_refused_by_name_beside_it(name):
    record = aesam.method_record(name)
    for other in ("lambda1", "lambda2", "delta", "initial_variance", "total_steps"):
        if other in {*record.defaults, "total_steps"}:
            value = record.defaults.get(other, 9)  # also where it is the default
            with pytest.raises(ValueError, match=f"budget=0.2 cannot be given beside {other}="):
                aesam.create(name, model(), budget=0.2, **{other: value})
    with pytest.raises(ValueError, match="budget must be a number between 0 and 1"):
        aesam.create(name, model(), budget=1.2)


@pytest.mark.parametrize("name", ["matched-sam", "matched-looksam"])
def test_a_coin_has_no_budget_and_says_what_has(name):
    with pytest.raises(ValueError, match="no setting budget .* ss-sam with p=budget"):
        aesam.create(name, model(), budget=0.2)


def test_what_create_makes_trains_as_the_class_does():
    ends = []
    for make in (
        lambda m: aesam.create("looksam", m, lr=0.1, k=2, alpha=0.3),
        lambda m: aesam.LookSAM(torch.optim.SGD(m.parameters(), lr=0.1), m, k=2, alpha=0.3),
    ):
        torch.manual_seed(0)
        net = model()
        x = torch.randn(8, 3)
        opt = make(net)

        def closure(net=net, opt=opt, x=x):
            opt.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        for _ in range(5):
            opt.step(closure)
        ends.append(net[0].weight.detach().clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("words", "settings", "error"),
    [
        (("ae-sma",), {}, r"unknown method 'ae-sma': did you mean ae-sam"),
        (
            ("sam",),
            {"rhoo": 0.1},
            r"sam has no setting rhoo and SGD takes no rhoo: did you mean rho",
        ),
        (("sam",), {"k": 2}, r"sam has no setting k and SGD takes no k"),
        (("sam",), {"total_steps": 2}, r"sam has no setting total_steps"),
        (
            ("sam",),
            {"optimizer": "adamv"},
            r"unknown optimizer 'adamv' of torch\.optim: did you mean",
        ),
        (
            ("looksam",),
            {"optimizer": "rmsprop", "alpha": 0.5},
            r"alpha is a setting of looksam and an",
        ),
    ],
)
def test_what_is_unknown_or_unclear_is_refused_with_the_near_ones(words, settings, error):
    with pytest.raises(ValueError, match=error):
        aesam.create(*words, model(), **settings)


def test_a_method_that_must_know_its_length_says_so():
    sometimes = {"anti-pgd": {"stop": 0.5}, "lpf-sgd": {"growth": 1.0}}
    for name in NAMES:
        asks = aesam.method_record(name).needs_total_steps
        given = sometimes.get(name, {})
        assert aesam.create(name, model(), momentum=0.9, **given).needs_total_steps == asks
        assert not given or not aesam.create(name, model()).needs_total_steps
    assert [n for n in NAMES if aesam.method_record(n).needs_total_steps] == [
        "ae-sam", "ae-looksam", "matched-sam", "inverted-sam", "matched-looksam",
        "inverted-looksam", "late-sam", "lpf-sgd", "anti-pgd",
    ]  # fmt: skip
    assert [n for n in NAMES if aesam.method_record(n).needs_seed] == [
        "esam", "ss-sam", "matched-sam", "matched-looksam", "lpf-sgd", "anti-pgd",
    ]  # fmt: skip


def test_the_keywords_of_all_methods_are_taken_by_name_too():
    every = set(Common.__annotations__) - {"rho", "normalize"}
    assert set(COMMON) == every
    given = {"nonfinite": "raise", "max_norm": 2.0, "replay": True}
    for name in ("erm", "sam", "late-sam"):
        opt = aesam.create(name, model(), **given)
        assert {word: getattr(opt, word) for word in given} == given


def test_only_a_model_is_a_model():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got generator"):
        aesam.create("sam", model().parameters())


def test_methods_are_listed_by_pattern():
    assert aesam.list_methods("ae-*") == ["ae-sam", "ae-looksam"]
    assert aesam.list_methods("?am") == ["sam"]
    assert aesam.list_methods("nothing*") == []


def test_a_method_from_outside_is_created_and_listed():
    @aesam.register_method(
        "wide-sam", label="Wide SAM", settings=[Setting("rho", 2.0, "radius", allowed="≥ 0")]
    )
    class WideSAM(aesam.SAM):
        """SAM with a large radius."""

    try:
        assert "wide-sam" in aesam.list_methods()
        assert aesam.create("wide-sam", model()).param_groups[0]["rho"] == 2.0
        with pytest.raises(ValueError, match="registered already"):
            aesam.register_method("wide-sam", label="", settings=[])
    finally:
        forget_method("wide-sam")
    with pytest.raises(ValueError, match="small letters, digits and hyphens, got 'Wide SAM'"):
        aesam.register_method("Wide SAM", label="", settings=[])


def test_a_subclass_that_hands_its_keywords_on_takes_what_they_are_for():
    @aesam.register_method("my-ae", label="My AE", settings=[Setting("rho", 0.1, "radius")])
    class MyAE(aesam.AESAM):
        def __init__(self, base, model=None, *, rho=0.1, **more):
            super().__init__(base, model, rho=rho, **more)

    try:
        record = aesam.method_record("my-ae")
        assert (record.needs_total_steps, record.needs_seed) == (True, False)
        opt = aesam.create("my-ae", torch.nn.Linear(2, 1), lr=0.1, total_steps=7)
        assert opt.policy.total_steps == 7
    finally:
        forget_method("my-ae")


@pytest.mark.parametrize("optimizer", [None, 3, torch.nn.Linear, lambda params: None])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(TypeError, match="optimizer must be a name of torch.optim, a class"):
        aesam.create("sam", torch.nn.Linear(2, 1), optimizer=optimizer)


def test_a_name_in_capitals_is_near():
    with pytest.raises(ValueError, match="did you mean ae-sam"):
        aesam.create("AE-SAM", torch.nn.Linear(2, 1))


@pytest.mark.parametrize("name", OF_THE_LAB)
def test_what_only_the_lab_has_is_refused_with_the_command_that_has_it(name):
    with pytest.raises(ValueError, match=f"which the lab has .* aesam train --method {name}"):
        aesam.create(name, torch.nn.Linear(2, 1))
    with pytest.raises(ValueError, match="is the name of a method of the lab"):
        aesam.register_method(name, label="Mine", settings=())
    assert name not in aesam.list_methods()


def test_a_setting_that_could_not_work_is_refused_where_it_is_made():
    with pytest.raises(TypeError, match="mode must have numbers or yes/no as values, got 'fast'"):
        Setting("mode", "fast", "how")
    with pytest.raises(ValueError, match="name must be that of a keyword that is a setting"):
        Setting("total_steps", 10, "no setting")
    with pytest.raises(ValueError, match="share stands for others where it is given: default=None"):
        Setting("share", 0.2, "of the steps", instead_of=("k",))
    register = aesam.register_method("my", label="My", settings=[Setting("nosuch", 1.0, "none")])
    with pytest.raises(ValueError, match="SAM does not take the setting nosuch of my"):
        register(aesam.SAM)
    assert "my" not in aesam.list_methods()
