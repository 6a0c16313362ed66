"""Methods for what makes optimizers itself, as `cls(params, **settings)`."""

import copy
import functools
import pickle
import warnings

import numpy as np
import pytest
import skorch
import torch
import transformers
from support.problems import BASES, Problem, mlp, same, stochastic_net, weights
from torch import nn

import aesam


def test_it_makes_what_a_user_would_make_by_hand():
    ends = []
    for by_hand in (True, False):
        model = mlp()
        if by_hand:
            base = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
            opt = aesam.AELookSAM(base, model, total_steps=20, rho=0.2, alpha=0.3)
        else:
            opt = aesam.FromParams(
                model.parameters(), method="ae-looksam", optimizer="adamw", model=model,
                lr=0.01, weight_decay=0.1, total_steps=20, rho=0.2, alpha=0.3,
            )  # fmt: skip
        assert type(opt) is aesam.AELookSAM
        assert opt.model is model
        Problem(model).train(opt, 8)
        ends.append(weights(model))
    assert same(*ends)


def test_without_the_model_it_warns_of_batch_norm_and_none_says_that_there_is_nothing_to_guard():
    model = mlp()
    with pytest.warns(UserWarning, match="BatchNorm.*counted twice") as caught:
        aesam.FromParams(model.parameters(), method="sam")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert aesam.FromParams(model.parameters(), method="sam", model=None).model is None
        assert aesam.FromParams(model.parameters(), method="sam", model=model).model is model
        assert aesam.FromParams(model, method="sam").model is model
        aesam.FromParams(model.parameters(), method="erm")  # one pass only


def test_groups_names_classes_and_partials_are_taken():
    first, second = mlp()[0], mlp()[2]
    groups = [
        {"params": first.parameters(), "lr": 0.5, "rho": 0.3},
        {"params": list(second.parameters())},
    ]
    opt = aesam.FromParams(groups, method="sam", model=None, lr=0.1, momentum=0.9)
    assert [(g["lr"], g["rho"], g["momentum"]) for g in opt.param_groups] == [
        (0.5, 0.3, 0.9), (0.1, 0.05, 0.9),
    ]  # fmt: skip
    named = aesam.FromParams(first.named_parameters(), method="sam", model=None)
    assert named.param_groups[0]["param_names"] == ["weight", "bias"]
    for kind in (torch.optim.RMSprop, functools.partial(torch.optim.RMSprop, lr=0.2)):
        opt = aesam.FromParams(first.parameters(), method="sam", model=None, optimizer=kind)
        assert type(opt.base) is torch.optim.RMSprop
    assert opt.param_groups[0]["lr"] == 0.2
    with pytest.raises(ValueError, match="SGD takes no rhoo: did you mean rho"):
        aesam.FromParams(first.parameters(), method="sam", model=None, rhoo=1.0)
    with pytest.raises(TypeError, match="optimizer must be a name.*is made already"):
        aesam.FromParams(first.parameters(), optimizer=opt.base)


def test_it_binds_and_pickles_like_a_class():
    assert issubclass(aesam.FromParams, torch.optim.Optimizer)
    assert pickle.loads(pickle.dumps(aesam.FromParams)) is aesam.FromParams
    sam = functools.partial(aesam.FromParams, method="sam", model=None)
    assert type(sam(mlp().parameters(), lr=0.2)) is aesam.SAM
    assert type(sam(params=mlp().parameters(), lr=0.2)) is aesam.SAM  # as Hydra may


# Who writes what another library's SAM takes ----------------------------------------------------


def advice(error):
    """The two lines that an error tells to write."""
    return [line.strip() for line in str(error.value).splitlines() if line.startswith("    ")]


@pytest.mark.parametrize(
    ("make", "own_line", "from_params"),
    [
        (
            lambda p: aesam.SAM(p, torch.optim.SGD, lr=0.1, momentum=0.9),
            "aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)",
            (
                'aesam.FromParams(params, method="sam", optimizer="sgd", model=model, lr=0.1, '
                "momentum=0.9)"
            ),
        ),
        (
            lambda p: aesam.SAM(p, base_optimizer=torch.optim.AdamW, rho=0.2, adaptive=False),
            "aesam.SAM(torch.optim.AdamW(model.parameters(), lr=0.1), model, rho=0.2)",
            (
                'aesam.FromParams(params, method="sam", optimizer="adamw", model=model, rho=0.2, '
                "lr=0.1)"
            ),
        ),
        (
            lambda p: aesam.SAM(p, torch.optim.SGD, rho=2.0, adaptive=True, lr=0.1),
            "aesam.ASAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=2.0)",
            (
                'aesam.FromParams(params, method="asam", optimizer="sgd", model=model, rho=2.0, '
                "lr=0.1)"
            ),
        ),
        (
            lambda p: aesam.AESAM(list(p), total_steps=50, lr=0.3),
            "aesam.AESAM(torch.optim.SGD(model.parameters(), lr=0.3), model, total_steps=50)",
            (
                'aesam.FromParams(params, method="ae-sam", optimizer="sgd", model=model, '
                "total_steps=50, lr=0.3)"
            ),
        ),
        (
            lambda p: aesam.ERM([{"params": list(p)}], lr=0.3),
            "aesam.ERM(torch.optim.SGD(model.parameters(), lr=0.3), model)",
            'aesam.FromParams(params, method="erm", optimizer="sgd", model=model, lr=0.3)',
        ),
    ],
)
def test_parameters_where_an_optimizer_is_wrapped_are_refused_with_the_line(
    make, own_line, from_params
):
    model = mlp()
    with pytest.raises(TypeError, match="is wrapped around an optimizer, and was given") as error:
        make(model.parameters())
    assert advice(error) == [own_line, from_params]
    names = {"aesam": aesam, "torch": torch, "model": model, "params": model.parameters()}
    made = [eval(line, names) for line in advice(error)]
    assert type(made[0]) is type(made[1])
    groups = [[{**g, "params": None} for g in opt.param_groups] for opt in made]
    assert groups[0] == groups[1]


def test_an_adaptive_sam_is_said_to_be_asam():
    with pytest.raises(TypeError, match="adaptive=True is ASAM"):
        aesam.SAM(BASES["sgd"](mlp().parameters()), adaptive=True)
    with pytest.raises(TypeError, match="adaptive=True is ASAM") as error:
        aesam.AESAM(mlp().parameters(), torch.optim.SGD, adaptive=True, lr=0.1)
    assert "aesam.AESAM(" in advice(error)[0]


def test_the_optimizer_s_keywords_given_to_the_method_are_refused_by_name():
    base = torch.optim.SGD(mlp().parameters(), lr=0.1)
    for make in (aesam.SAM, aesam.ERM, functools.partial(aesam.AESAM, total_steps=3)):
        with pytest.raises(TypeError, match="has no keyword lr. What the optimizer takes"):
            make(base, lr=0.1)
    with pytest.raises(TypeError, match="ERM has no keyword rho"):
        aesam.ERM(base, rho=0.1)


# Frameworks -------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = stochastic_net()

    def forward(self, x):
        return self.net(x)


class GuardingRegressor(skorch.NeuralNetRegressor):
    """Tells the optimizer of the model, as docs/trainers.md shows."""

    def get_params_for_optimizer(self, prefix, named_parameters):
        args, kwargs = super().get_params_for_optimizer(prefix, named_parameters)
        return args, {**kwargs, "model": self.module_}


def skorch_net(**more):
    settings = {"optimizer__method": "sam", "optimizer__rho": 0.1, "optimizer__momentum": 0.9}
    options = {"lr": 0.05, "max_epochs": 2, "batch_size": 8, "train_split": None, "verbose": 0}
    return GuardingRegressor(Net, optimizer=aesam.FromParams, **{**options, **settings, **more})


@pytest.mark.slow
def test_skorch_trains_as_a_plain_loop_does(matrix):
    problem = Problem(Net(), batch=24)
    x, y = problem.x[0], problem.y[0]
    net = skorch_net()
    torch.manual_seed(3)
    net.initialize()
    torch.manual_seed(5)
    net.partial_fit(x.numpy(), y.numpy())
    assert type(net.optimizer_) is aesam.SAM
    model = Net().train()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, rho=0.1)
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_()  # what the loader draws for its workers' seeds
    for epoch in range(2):
        if epoch:
            torch.empty((), dtype=torch.int64).random_()
        for rows in range(0, 24, 8):

            def closure(i=slice(rows, rows + 8)):
                opt.zero_grad()
                loss = nn.functional.mse_loss(model(x[i]), y[i])
                loss.backward()
                return loss

            opt.step(closure)
    assert same(weights(net.module_), weights(model))
    for left, right in zip(net.module_.buffers(), model.buffers(), strict=True):
        assert torch.equal(left, right)
    matrix.right("skorch", "optimizer=aesam.FromParams, optimizer__rho=…", within=0.0)


@pytest.mark.slow
def test_skorch_nets_with_it_are_cloned_and_pickled():
    problem = Problem(Net(), batch=24)
    x, y = problem.x[0].numpy(), problem.y[0].numpy()
    net = skorch_net(optimizer__method="ae-sam", optimizer__total_steps=6).fit(x, y)
    again = pickle.loads(pickle.dumps(net))
    assert np.array_equal(net.predict(x), again.predict(x))
    copied = copy.deepcopy(net.get_params())
    assert copied["optimizer"] is aesam.FromParams
    net.set_params(optimizer__rho=0.5)
    assert net.optimizer_.param_groups[0]["rho"] == 0.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_transformers_makes_it_over_its_groups(tmp_path):
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=11, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), weight_decay=0.3, report_to=[], use_cpu=True
    )
    given = {"method": "sam", "optimizer": "adamw", "lr": 0.01, "rho": 0.2}
    trainer = transformers.Trainer(
        model, args, optimizer_cls_and_kwargs=(aesam.FromParams, {**given})
    )
    with pytest.warns(UserWarning, match="BatchNorm"):
        opt = trainer.create_optimizer()
    assert type(opt) is aesam.SAM
    assert [g["weight_decay"] for g in opt.param_groups] == [0.3, 0.0]
    assert [(g["lr"], g["rho"]) for g in opt.param_groups] == [(0.01, 0.2)] * 2
    # The Trainer hands a model among the settings on in the parameters' place.
    guarded = transformers.Trainer(
        model, args, optimizer_cls_and_kwargs=(aesam.FromParams, {**given, "model": model})
    ).create_optimizer()
    assert guarded.model is model


def test_a_class_knows_the_name_that_the_advice_is_to_show():
    for record in map(aesam.method_record, aesam.list_methods()):
        if isinstance(record.make, type):
            assert record.make.registered_as == record.name
