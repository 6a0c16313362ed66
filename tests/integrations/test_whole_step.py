"""One call over micro-batches in Accelerate and in Fabric is the plain loop over all of them."""

import pytest
import torch
from support.in_stacks import STACKS, forget_accelerate
from support.plain_loops import PlainLoop, largest_difference, micro_batches, new_optimizer
from support.problems import AboveAverageLoss, Problem, mlp, stochastic_net, weights

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
]
STEPS = 20
UNEQUAL = (4, 2, 2)


@pytest.fixture(params=STACKS)
def stack(request):
    forget_accelerate()
    yield request.param
    forget_accelerate()


def compared(stack, method, sizes=(2, 2, 2, 2), max_norm=None, counts=None, **options):
    """Both loops on the same batches from the same state; the largest difference, and the plain."""
    plain = PlainLoop(method, stochastic_net(), max_norm, **options)
    problem = Problem(plain.model)
    torch.manual_seed(3)
    for t in range(STEPS):
        plain.step(micro_batches(problem, t, sizes), counts)
    net = stochastic_net()
    trainer = STACKS[stack]()
    trainer.setup(net, new_optimizer(method, net, **options))
    given = {} if max_norm is None else {"max_norm": max_norm}
    torch.manual_seed(3)
    losses, used = [], []
    for t in range(STEPS):
        batches = iter(micro_batches(problem, t, sizes))  # an iterator is enough
        loss = trainer.step(batches, weights=counts, **given)
        assert not loss.requires_grad
        losses.append(loss.item())
        used.append(aesam.unwrap(trainer.opt).last_step.used_sam)
    assert losses == pytest.approx(plain.losses, abs=1e-12)
    assert used == plain.used_sam
    return largest_difference(net, plain.model), plain


@pytest.mark.parametrize("method", ["erm", "sam", "ss-sam", "looksam", "ae-sam", "ae-looksam"])
def test_four_micro_batches_are_the_plain_loop_with_dropout_and_batchnorm(stack, method, matrix):
    difference, plain = compared(stack, method)
    assert difference < 1e-12
    assert plain.opt.sam_fraction > 0 or method == "erm"
    matrix.right(stack, "step(…) over 4 micro-batches, dropout and BatchNorm", within=1e-12)


def test_an_optimizer_that_could_replay_is_the_plain_loop_too(stack):
    difference, plain = compared(stack, "ae-sam", max_norm=0.3, replay=True)
    assert difference < 1e-12
    assert 0 < plain.opt.sam_fraction < 1


def test_one_batch_is_the_plain_loop(stack, matrix):
    difference, plain = compared(stack, "ae-looksam", sizes=[8])
    assert difference < 1e-12
    assert 0 < plain.opt.sam_fraction < 1
    matrix.right(stack, "step(…) on one batch", within=1e-12)


@pytest.mark.parametrize("method", ["ae-sam", "ae-looksam"])
def test_max_norm_clips_the_direction_and_not_what_is_decided_on(stack, method, matrix):
    difference, plain = compared(stack, method, max_norm=0.3)
    assert difference < 1e-12
    assert 0 < plain.opt.sam_fraction < 1
    unclipped, _ = compared(stack, method)
    assert unclipped < 1e-12
    without = PlainLoop(method, stochastic_net())
    problem = Problem(without.model)
    torch.manual_seed(3)
    for t in range(STEPS):
        without.step(micro_batches(problem, t, (2, 2, 2, 2)))
    assert largest_difference(without.model, plain.model) > 1e-3  # it did clip
    matrix.right(stack, "step(…, max_norm=…): clipping of the final direction", within=1e-12)


def test_weights_make_unequal_micro_batches_the_mean_over_their_rows(stack, matrix):
    difference, _ = compared(stack, "ae-sam", sizes=UNEQUAL, counts=UNEQUAL)
    assert difference < 1e-12
    model = mlp()
    whole, problem = PlainLoop("ae-sam", model), Problem(model)
    net = mlp()
    forget_accelerate()
    trainer = STACKS[stack]()
    trainer.setup(net, new_optimizer("ae-sam", net))
    for t in range(STEPS):
        whole.step(micro_batches(problem, t, [8]))
        trainer.step(micro_batches(problem, t, UNEQUAL), weights=UNEQUAL)
    assert largest_difference(net, model) < 1e-12
    matrix.right(stack, "step(…, weights=…): unequal micro-batches", within=1e-12)


def test_a_policy_that_looks_at_the_loss_is_given_the_mean(stack):
    ends = []
    for wrapped in (False, True):
        net = mlp()
        problem = Problem(net)
        base = torch.optim.SGD(net.parameters(), lr=0.1)
        opt = aesam.SharpnessAware(base, net, policy=AboveAverageLoss(), rho=0.2)
        trainer = STACKS[stack]()
        trainer.setup(net, opt)
        for t in range(STEPS):
            batches = micro_batches(problem, t, (4, 4))
            trainer.step(batches) if wrapped else problem.step(opt, t)
        assert 0 < opt.sam_fraction < 1
        ends.append(net)
    assert largest_difference(*ends) < 1e-12


def test_the_optimizer_inside_may_be_given(stack):
    ends = []
    for inside in (False, True):
        net = mlp()
        problem = Problem(net)
        opt = new_optimizer("sam", net)
        trainer = STACKS[stack]()
        trainer.setup(net, opt)
        trainer.opt = opt if inside else trainer.opt
        for t in range(3):
            trainer.step(micro_batches(problem, t, (4, 4)))
        ends.append(net)
    assert largest_difference(*ends) == 0.0


def test_a_scheduler_stays_the_user_s(stack):
    net = mlp()
    problem = Problem(net)
    opt = new_optimizer("sam", net)
    trainer = STACKS[stack]()
    trainer.setup(net, opt)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    for t in range(5):
        trainer.step(micro_batches(problem, t, (4, 4)))
        scheduler.step()
    assert opt.base.param_groups[0]["lr"] == pytest.approx(0.05)


# Refused ----------------------------------------------------------------------------------------


def test_a_method_that_selects_rows_is_refused_with_what_to_do(stack, matrix):
    net = mlp()
    trainer = STACKS[stack]()
    trainer.setup(net, new_optimizer("esam", net))
    with pytest.raises(TypeError, match=r"ESAM selects samples.*optimizer.step\(losses\)") as told:
        trainer.step(micro_batches(Problem(net), 0, (4, 4)))
    matrix.refused(stack, "step(…) with ESAM, which selects rows", told.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batches": []}, ValueError, "micro_batches must have at least one batch"),
        ({"batches": torch.ones(3, 2)}, TypeError, r"\[batch\] for one, got a Tensor"),
        ({"batches": {"x": 1}}, TypeError, r"\[batch\] for one, got a dict"),
        ({"batches": 3}, TypeError, r"\[batch\] for one, got a int"),
        ({"max_norm": 0.0}, ValueError, "max_norm must be a finite number > 0, got 0.0"),
        ({"weights": [1, 2, 3]}, ValueError, "one number for each micro-batch, got 3 for 2"),
        ({"weights": [1, -1]}, ValueError, "a weight of a micro-batch must be .* got -1"),
        ({"weights": [0, 0]}, ValueError, "weights must have a sum above 0"),
        ({"loss_fn": lambda _: 0.5}, TypeError, "loss_fn must return the mean loss.* got float"),
        ({"loss_fn": lambda b: b[0]}, TypeError, r"loss_fn must return the mean.* got \(4, 3\)"),
    ],
)
def test_what_cannot_be_a_step_is_named_and_changes_nothing(stack, options, error, words):
    net = mlp()
    before = weights(net)
    opt = new_optimizer("sam", net)
    trainer = STACKS[stack]()
    trainer.setup(net, opt)
    options = {"batches": micro_batches(Problem(net), 0, (4, 4))} | options
    with pytest.raises(error, match=words):
        trainer.step(**options)
    assert all(map(torch.equal, before, weights(net)))
    assert opt.last_step is None
