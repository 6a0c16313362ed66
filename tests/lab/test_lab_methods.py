"""What the lab knows of a method beside the library's record, and does without it."""

from functools import partial

import pytest
import torch
from support.problems import FOR_ANY_MODEL
from torch import nn

import aesam
from aesam import registry
from aesam.lab import lab_methods
from aesam.lab.companions.companion import Companion
from aesam.lab.config import Method
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import (
    LabMethod,
    all_methods,
    fill,
    lab_method,
    label_of,
    order_of,
    tuned,
)
from aesam.lab.own_methods import list_own_methods, own_method
from aesam.parts.policies import Always, Never
from aesam.registry import forget_method


@pytest.fixture
def borrower():
    """A method from outside whose record borrows."""
    name, rho = "borrower", aesam.Setting("rho", 0.1, "radius")
    aesam.register_method(name, label="Borrower", settings=[rho])(aesam.SAM)
    lab_methods.register_lab_method(name, LabMethod("control", borrows="looksam", colour="#123456"))
    yield name
    lab_methods.forget_lab_method(name)
    forget_method(name)


def test_a_borrower_takes_only_the_settings_that_it_has(borrower):
    assert lab_method("looksam").tuned.keys() == {"rho", "alpha", "k"}
    assert tuned(borrower) == {"rho": lab_method("looksam").tuned["rho"]}
    assert lab_methods.colour_of(borrower) == "#123456"


def test_a_method_without_a_record_has_defaults():
    assert lab_method("nobody-s") == LabMethod()
    assert label_of("nobody-s") == "nobody-s"
    assert order_of("nobody-s") > order_of("ae-looksam")


def test_every_method_has_a_group_and_a_known_baseline():
    groups = {name: lab_method(name).group for name in all_methods()}
    assert sorted(set(groups.values())) == ["control", "paper", "variant"]
    for name in groups:
        assert lab_method(name).baseline in groups
        assert (lab_method(name).borrows or "sam") in groups


@pytest.mark.parametrize("name", all_methods())
def test_filled_settings_are_the_record_s_but_for_implied_ones(name):
    record = lab_methods.record_of(name)
    named = {s.name: s.default for s in record.settings if not s.implied}
    assert fill(Method(name)).settings == named


def test_what_only_the_lab_has_is_listed_after_the_library_s_and_is_none_of_it():
    assert tuple(list_own_methods()) == registry.OF_THE_LAB
    assert all_methods() == [*aesam.list_methods(), *list_own_methods()]
    assert not set(aesam.list_methods()) & set(list_own_methods())
    assert [r.name for r in lab_methods.all_records()] == all_methods()


@pytest.mark.parametrize("name", list_own_methods())
def test_a_method_of_the_lab_s_has_a_rule_a_cost_a_paper_and_a_companion_of_its_own(name):
    own = own_method(name)
    assert own.record.rule
    assert own.record.cost
    assert own.record.paper
    assert own.where
    assert type(lab_methods.companion_of(Method(name))) is not Companion
    assert type(lab_methods.companion_of(Method("sam"))) is Companion


def test_an_unknown_name_is_told_with_those_of_the_lab_s_too():
    with pytest.raises(UsageError, match=r"unknown method 'emma': did you mean ema.*, swa"):
        lab_methods.record_of("emma")


def test_an_implied_setting_is_named_where_it_differs():
    assert fill(Method("ae-sam", initial_variance=1e-12)).get("initial_variance") == 1e-12


def test_defaults_stand_back_for_a_budget_and_given_settings_are_refused():
    assert fill(Method("ae-looksam", budget=1)).settings == {
        "rho": 0.05, "alpha": 0.5, "budget": 1.0, "normalize": True,
    }  # fmt: skip
    lab_methods.check_settings(fill(Method("ae-looksam", budget=0.2)))
    with pytest.raises(UsageError, match="budget=0.2 cannot be given beside lambda1=0.0"):
        lab_methods.check_settings(fill(Method("ae-looksam", budget=0.2, lambda1=0.0)))
    with pytest.raises(UsageError, match="no setting budget: a coin .* ss-sam with p=budget; it"):
        fill(Method("matched-sam", budget=0.2))


@pytest.mark.parametrize("name", FOR_ANY_MODEL)
def test_a_radius_is_compensated_where_a_part_of_the_steps_takes_a_second_gradient(name):
    model = nn.LayerNorm(1)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    make = partial(lab_methods.make, base=base, model=model, total_steps=1, seed=0)
    plain = make(fill(Method(name)))
    if isinstance(plain.policy, Always | Never):
        with pytest.raises(UsageError, match="has no setting compensate: it has"):
            fill(Method(name, compensate=4))
        assert fill(Method(name, compensate=4), strict=False) == fill(Method(name))
    else:
        compensated = fill(Method(name, compensate=4))
        assert repr(compensated.get("compensate")) == "4.0"
        assert compensated.but(compensate=None) == fill(Method(name))
        assert (plain.compensate, make(compensated).compensate) == (None, 4.0)


def test_numbers_take_the_kind_of_their_setting():
    assert repr(fill(Method("looksam", rho=1, k=3.0))).startswith("Method('looksam', rho=1.0")
    assert repr(fill(Method("looksam", k=3.0)).get("k")) == "3"


def test_a_setting_that_a_method_lacks_is_refused_or_dropped():
    with pytest.raises(UsageError, match="sam has no setting k: it has rho, normalize"):
        fill(Method("sam", k=2))
    assert fill(Method("sam", k=2), strict=False).get("k") is None


@pytest.mark.parametrize("wrong", [{"group": "varient"}, {"colour": "redd"}, {"marker": "??"}])
def test_a_record_that_could_not_be_drawn_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be"):
        LabMethod(**wrong)


def test_a_method_for_other_models_than_the_lab_s_is_refused_in_words():
    with pytest.raises(UsageError, match="bi-lora is for PEFT models .* lab's models are not"):
        lab_methods.check_settings(fill(Method("bi-lora")))
