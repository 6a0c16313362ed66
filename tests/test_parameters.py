"""Every kind of parameter list that a torch optimizer accepts."""

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, weights
from support.saved import ours
from torch import nn

import aesam
from aesam.parts.policies import Always

WITH_SECOND = ["sam", "looksam", "ae-looksam"]


def step_on(opt, gradient_of):
    """One step whose passes put what ``gradient_of(pass)`` gives into ``p.grad``."""
    for p, g in gradient_of(1):
        p.grad = g
    if opt.needs_second_pass():
        with opt.perturbed():
            for p, g in gradient_of(2):
                p.grad = g
    opt.step()


@pytest.mark.parametrize("method", WITH_SECOND)
def test_a_gradient_in_one_pass_only(method):
    a, b, c = (nn.Parameter(torch.full((2,), float(i), dtype=torch.float64)) for i in range(3))
    opt = METHODS[method](torch.optim.SGD([a, b, c], lr=1.0), rho=0.1)
    g = torch.tensor([3.0, 4.0], dtype=torch.float64)

    def gradients(which):
        return [(a, g.clone()), (b, g.clone())] if which == 1 else [(a, 2 * g), (c, g.clone())]

    step_on(opt, gradients)
    opt.zero_grad()
    if opt.last_step.used_sam:
        assert torch.equal(a.detach(), torch.zeros(2) - 2 * g)
        assert torch.equal(b.detach(), torch.ones(2, dtype=torch.float64))
        assert torch.equal(c.detach(), 2 - g)
    for _ in range(3):
        step_on(opt, gradients)
        opt.zero_grad()
    assert all(torch.isfinite(p).all() for p in (a, b, c))


def test_looksam_counts_a_missing_gradient_as_zero():
    a, b = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    opt = aesam.LookSAM(torch.optim.SGD([a, b], lr=1.0), k=2, alpha=1.0)
    one, two = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 2.0]).double()
    # g = (one, one), g_s = (two, none): g·g_s = 0, so g_v = (two, 0)
    step_on(opt, lambda n: [(a, one.clone()), (b, one.clone())] if n == 1 else [(a, two.clone())])
    kept = ours(opt.state_dict())["between"]
    assert kept["values"]["norm"] == 2.0
    assert torch.equal(kept["tensors"][0], two)
    assert torch.equal(kept["tensors"][1], torch.zeros(2).double())
    opt.zero_grad()
    before = weights(nn.ParameterList([a, b]))
    step_on(opt, lambda n: [(a, one.clone())])
    assert torch.equal(a.detach(), before[0] - (one + two / 2))  # ‖g‖/‖g_v‖ = 1/2
    assert torch.equal(b.detach(), before[1])


@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_stay_frozen_and_untouched(method):
    model = mlp()
    model[0].requires_grad_(False)
    before = weights(model[0])
    opt = METHODS[method](BASES["sgd"](model.parameters()), model)
    Problem(model).train(opt, 6)
    assert same(before, weights(model[0]))
    assert not any(p.requires_grad for p in model[0].parameters())
    assert all(p.requires_grad for p in model[2].parameters())


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_tied_parameter_is_counted_once():
    w = nn.Parameter(torch.zeros(2))
    opt = aesam.SAM(torch.optim.SGD([w, w], lr=0.0), rho=1.0)
    w.grad = torch.tensor([3.0, 4.0])
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach(), torch.tensor([0.6, 0.8]))
        w.grad = torch.ones(2)
    opt.step()
    assert opt.last_step.squared_norm == pytest.approx(25.0)


def test_tied_layers_train():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    problem = Problem(model, outputs=3)
    opt = aesam.LookSAM(BASES["sgd"](model.parameters()), model, k=2)
    problem.train(opt, 6)
    assert model[2].weight is model[0].weight


@pytest.mark.parametrize("method", METHODS)
def test_sparse_gradients_equal_dense_ones(method):
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(10, 3, sparse=sparse).double()
        head = nn.Linear(3, 1).double()
        opt = METHODS[method](
            torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1), rho=0.2
        )
        draw = torch.Generator().manual_seed(1)
        for _ in range(12):
            rows_of_table = torch.randint(0, 10, (6,), generator=draw)  # with repetitions

            def losses(rows=None, table=table, head=head, x=rows_of_table):
                i = slice(None) if rows is None else rows
                return (head(table(x[i])) - 1).square().squeeze(1)

            opt.step(losses)
        ends.append(torch.cat([table.weight.detach().flatten(), *weights(head)[0]]))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)


def test_sparse_direction_stays_sparse_for_the_base_optimizer():
    table = nn.Embedding(10, 3, sparse=True)
    opt = aesam.LookSAM(torch.optim.SparseAdam(table.parameters(), lr=0.1), k=2)
    for i in range(4):
        opt.step(lambda rows=None, i=i: table(torch.tensor([i, i + 1])).square().sum(1))
        assert table.weight.grad.is_sparse


def test_empty_groups_are_no_obstacle():
    w = nn.Parameter(torch.ones(2))
    opt = aesam.AELookSAM(
        torch.optim.SGD([{"params": []}, {"params": [w]}], lr=0.1), total_steps=10
    )
    opt.step(lambda rows=None: w.square().reshape(2))
    assert not torch.equal(w.detach(), torch.ones(2))


def test_a_parameter_without_elements_is_no_obstacle():
    a, b = nn.Parameter(torch.empty(0)), nn.Parameter(torch.tensor([1.0]))
    opt = aesam.LookSAM(torch.optim.SGD([a, b], lr=0.1), k=2)
    for _ in range(3):
        opt.step(lambda rows=None: (b.square() + a.sum()).reshape(1))
    assert b.item() < 1.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_floating_dtype_trains(method, dtype):
    model = mlp().to(dtype)
    problem = Problem(model)
    opt = METHODS[method](torch.optim.SGD(model.parameters(), lr=0.05), model)
    first = problem.losses(0).mean().item()
    problem.train(opt, 60)
    assert problem.losses(0).mean().item() < first
    assert all(p.dtype == dtype for p in model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_mixed_dtypes_are_measured_together(method):
    a = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    b = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = METHODS[method](torch.optim.SGD([a, b], lr=0.1), rho=0.1)

    def losses(rows=None):
        loss = (a.double() - 1).square().sum() + (b - torch.tensor([2.0, 3.0])).square().sum()
        return (loss / 4).expand(4)[slice(None) if rows is None else rows]

    opt.step(losses)
    assert opt.last_step.squared_norm == pytest.approx(0.25 * (1 + 1 + 4 + 9), rel=1e-6)
    for _ in range(9):
        opt.step(losses)
    assert losses().mean().item() < 3.75


def test_norms_of_half_precision_gradients_accumulate_in_float32():
    for dtype in (torch.bfloat16, torch.float16):
        w = nn.Parameter(torch.zeros(100_000, dtype=dtype))
        opt = aesam.SAM(torch.optim.SGD([w], lr=0.0))
        w.grad = torch.full_like(w, 0.5)
        opt.needs_second_pass()
        with opt.perturbed():
            w.grad = torch.full_like(w, 0.5)
        opt.step()
        assert opt.last_step.squared_norm == pytest.approx(25_000, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_complex_parameters_train(method):
    w = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j], dtype=torch.complex128))
    opt = METHODS[method](torch.optim.SGD([w], lr=0.1), rho=0.1)
    target = torch.tensor([2j, 1.0], dtype=torch.complex128)
    for _ in range(20):
        opt.step(lambda rows=None: (w - target).abs()[slice(None) if rows is None else rows])
    assert (w - target).abs().sum().item() < (torch.tensor([1 + 1j, 2 - 1j]) - target).abs().sum()


@pytest.mark.parametrize("method", WITH_SECOND)
def test_many_tensors_are_as_one(method):
    """Small tensors are measured in batches: the numbers must be those of one large tensor."""
    ends = []
    start = torch.randn(3000, generator=torch.Generator().manual_seed(0)).double()
    for count in (1, 300, 1000):
        parts = [nn.Parameter(p.clone()) for p in start.chunk(count)]
        opt = METHODS[method](torch.optim.SGD(parts, lr=0.05), rho=0.3)
        for _ in range(10):

            def losses(rows=None, parts=parts):
                w = torch.cat(list(parts))
                return (w.cos().sum() + w[:1500].square().sum()).reshape(1)

            opt.step(losses)
        ends.append(torch.cat([p.detach() for p in parts]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-10)


# Groups ---------------------------------------------------------------------------------------


def displacement(opt, params):
    before = [p.detach().clone() for p in params]
    assert opt.needs_second_pass()
    with opt.perturbed():
        for p in params:
            p.grad = torch.zeros_like(p)
        return [p.detach() - b for p, b in zip(params, before, strict=True)]


def test_each_group_has_its_radius_and_one_norm():
    a, b = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    base = torch.optim.SGD([{"params": [a], "rho": 0.5}, {"params": [b]}], lr=0.1)
    opt = aesam.SAM(base, rho=0.1)
    a.grad, b.grad = torch.tensor([3.0, 0.0]).double(), torch.tensor([0.0, 4.0]).double()
    moved = displacement(opt, [a, b])
    torch.testing.assert_close(moved[0], torch.tensor([0.5 * 3 / 5, 0.0]).double())
    torch.testing.assert_close(moved[1], torch.tensor([0.0, 0.1 * 4 / 5]).double())


def test_rho_is_scheduled_like_lr():
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.1), rho=0.1)
    for rho in (0.1, 0.7, 0.0):
        opt.param_groups[0]["rho"] = rho
        w.grad = torch.ones(1).double()
        assert displacement(opt, [w])[0].item() == pytest.approx(rho)


@pytest.mark.parametrize("rho", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_an_impossible_radius_of_a_group_is_refused_before_anything_moves(rho):
    w = nn.Parameter(torch.zeros(1))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.1))
    opt.param_groups[0]["rho"] = rho
    w.grad = torch.ones(1)
    with pytest.raises((ValueError, TypeError), match="rho of a parameter group"):
        opt.needs_second_pass()
    assert w.item() == 0.0
    with pytest.raises((ValueError, TypeError), match="rho of a parameter group"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "rho": rho})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("added_to", ["wrapper", "base"])
@pytest.mark.parametrize("method", METHODS)
def test_a_group_added_later_takes_part(method, added_to):
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](torch.optim.SGD(model[0].parameters(), lr=0.1), model, rho=0.3)
    problem.train(opt, 3)
    before = weights(model[2])
    (opt if added_to == "wrapper" else opt.base).add_param_group(
        {"params": list(model[2].parameters()), "lr": 0.2}
    )
    assert opt.param_groups[1]["rho"] == 0.3
    problem.train(opt, 4, start=3)
    assert not same(before, weights(model[2]))


def test_maximize_ascends_along_the_negative_gradient():
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.1, maximize=True), rho=0.5)
    w.grad = torch.tensor([3.0, 4.0]).double()
    torch.testing.assert_close(displacement(opt, [w])[0], torch.tensor([-0.3, -0.4]).double())


def test_maximizing_minus_the_loss_is_minimizing_it():
    ends = []
    for sign in (1.0, -1.0):
        model = mlp()
        problem = Problem(model)
        base = torch.optim.SGD(model.parameters(), lr=0.1, maximize=sign < 0)
        opt = aesam.LookSAM(base, model, k=2)
        for t in range(10):
            opt.step(lambda rows=None, t=t, s=sign, p=problem: s * p.losses(t, rows))
        ends.append(weights(model))
    for left, right in zip(*ends, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_wrapping_the_same_base_again_takes_the_new_radius():
    w = nn.Parameter(torch.zeros(1))
    base = torch.optim.SGD([{"params": [w]}, {"params": [], "rho": 0.7}], lr=0.1)
    aesam.SAM(base, rho=0.05)
    opt = aesam.SharpnessAware(base, policy=Always(), rho=0.2)
    assert [g["rho"] for g in opt.param_groups] == [0.2, 0.7]


def test_aliased_gradients_are_copied_before_the_second_pass():
    """As under DDP's gradient_as_bucket_view: both backward passes write into one bucket."""
    bucket = torch.zeros(2, dtype=torch.float64)
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=1.0), k=2)
    first, second = torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 3.0]).double()
    w.grad = bucket.copy_(first)
    assert opt.needs_second_pass()
    with opt.perturbed():
        w.grad = bucket.copy_(second)
    assert w.grad is bucket  # d is written in place
    opt.step()
    assert torch.equal(ours(opt.state_dict())["between"]["tensors"][0], second - first)


def step_along(opt, w, *gradients):
    w.grad = gradients[0].clone()
    if opt.needs_second_pass():
        with opt.perturbed():
            w.grad = gradients[1].clone()
    opt.step()


@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e18, 1e22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_looksam_makes_no_nan_of_finite_gradients(size, dtype):
    w = nn.Parameter(torch.zeros(2, dtype=dtype))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=1e-3), k=2)
    first, second = (torch.tensor(g).to(dtype) * size for g in ([3.0, 4.0], [4.0, 3.0]))
    step_along(opt, w, first, second)
    step_along(opt, w, first)
    assert torch.isfinite(w).all()
    assert opt.skipped_steps == 0


@pytest.mark.parametrize("size", [300.0, 1.0, 1e-3])
def test_looksam_s_products_of_half_precision_have_room(size):
    w = nn.Parameter(torch.ones(2, dtype=torch.float16))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=1e-4), k=2)
    step_along(
        opt, w, torch.tensor([3.0, 4.0]).half() * size, torch.tensor([4.0, 3.0]).half() * size
    )
    kept = ours(opt.state_dict())["between"]["tensors"][0]
    expected = size * torch.tensor([4 - 0.96 * 3, 3 - 0.96 * 4])
    torch.testing.assert_close(kept.float(), expected, rtol=5e-3, atol=2e-3 * size)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1e-5), (torch.float32, 1e-40)])
def test_a_radius_over_a_tiny_norm_may_exceed_the_dtype(dtype, size):
    w = nn.Parameter(torch.zeros(2, dtype=dtype))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.0), rho=2.0)
    w.grad = torch.tensor([size, 0.0]).to(dtype)
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach().float(), torch.tensor([2.0, 0.0]), rtol=0.1, atol=0)
        w.grad = torch.zeros_like(w)


def test_a_refused_constructor_leaves_the_groups_alone():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    base = torch.optim.SGD([{"params": [a]}, {"params": [b], "rho": -1.0}], lr=0.1)
    with pytest.raises(ValueError, match="rho of a parameter group"):
        aesam.SAM(base)
    assert "rho" not in base.param_groups[0]


def test_buffers_of_replaced_parameters_are_let_go():
    opt = aesam.SAM(torch.optim.SGD([nn.Parameter(torch.zeros(3)) for _ in range(2)], lr=0.1))
    for _ in range(20):
        fresh = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        opt.param_groups[0]["params"] = fresh
        opt.step(lambda rows=None, fresh=fresh: (fresh[0] + fresh[1]).square() + fresh[0])
    assert len(opt._ledger.workspace.kept) <= 6
