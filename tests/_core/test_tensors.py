"""Arithmetic on lists of tensors, against loops over their numbers; buffers and who has them."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from aesam._core import tensors
from aesam._core.joined import joined


def many_small(count=300, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    shapes = [(7, 3), (5,), (), (2, 2, 4)]
    made = [torch.randn(shapes[i % 4], generator=draw, dtype=torch.float64) for i in range(count)]
    return [t.to(dtype) for t in made]


def norm_by_hand(given):
    dense = [t.to_dense() if t.is_sparse else t for t in given]
    numbers = [abs(x) for t in dense for x in t.flatten().tolist()]
    return math.sqrt(math.fsum(x * x for x in numbers))


OTHERS = {
    "nothing": [],
    "a large one": [torch.full((40, 40), 0.5, dtype=torch.float64)],
    "another dtype": [torch.full((3,), 0.25, dtype=torch.float32)],
    "a sparse one": [torch.eye(3, dtype=torch.float64).to_sparse()],
    "complex numbers": [torch.tensor([3.0 + 4.0j], dtype=torch.complex128)],
    "a transposed one": [torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T],
}


@pytest.mark.parametrize("others", OTHERS)
def test_the_norm_of_many_small_tensors_is_that_of_all_their_numbers(others):
    given = [*OTHERS[others], *many_small(), *OTHERS[others]]
    assert tensors.norm(given).item() == pytest.approx(norm_by_hand(given), rel=1e-6)
    given[-1].mul_(2.0)  # what was joined before is not used again
    assert tensors.norm(given).item() == pytest.approx(norm_by_hand(given), rel=1e-6)


def test_tensors_of_other_shapes_and_as_many_numbers_are_joined_too():
    given = [torch.full((2, 6), float(i)) for i in range(200)]
    assert tensors.norm(given).item() == pytest.approx(norm_by_hand(given), rel=1e-6)
    turned = [t.reshape(3, 4) + 1.0 for t in given]
    assert tensors.norm(turned).item() == pytest.approx(norm_by_hand(turned), rel=1e-6)


def test_many_small_tensors_of_16_bits_are_summed_in_more():
    given = [torch.full((8,), 2.0**12, dtype=torch.float16) for _ in range(300)]
    assert tensors.norm(given).item() == pytest.approx(2.0**12 * math.sqrt(2400.0), rel=1e-6)


def test_small_tensors_are_joined_and_few_or_large_ones_are_not():
    lines, others = joined(many_small(300))
    assert (sum(line.numel() for line in lines), len(others)) == (75 * (21 + 5 + 1 + 16), 0)
    few = many_small(100)
    assert joined(few)[1] == few
    large = [torch.zeros(2000) for _ in range(200)]
    assert joined(large)[1] == large


def test_each_thread_joins_in_memory_of_its_own():
    given = [[t * (k + 1) for t in many_small()] for k in range(4)]
    expected = [norm_by_hand(each) for each in given]

    def norms(each):
        return [tensors.norm(each).item() for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(norms, given), expected, strict=True):
            assert found == pytest.approx([wanted] * 50)


# Buffers ------------------------------------------------------------------------------------


def lent_and_back(workspace, owners, like):
    buffers = workspace.take(owners, like)
    workspace.give(owners, buffers)
    return list(map(id, buffers))


def test_buffers_are_lent_again_also_for_some_of_the_parameters():
    workspace, params = tensors.Workspace(), [torch.zeros(3), torch.zeros(2, 2)]
    first = lent_and_back(workspace, params, params)
    assert lent_and_back(workspace, params, params) == first
    assert lent_and_back(workspace, params[1:], params[1:]) == first[1:]
    assert lent_and_back(workspace, params, params) == first


def test_no_buffer_is_lent_twice_at_a_time():
    workspace, params = tensors.Workspace(), [torch.zeros(3), torch.zeros(2, 2)]
    lent_and_back(workspace, params, params)
    taken = [workspace.take(params, params), workspace.take(params[:1], params[:1])]
    taken.append(workspace.take(params, params))
    ids = [id(b) for buffers in taken for b in buffers]
    assert len(set(ids)) == len(ids) == 5


def test_a_parameter_that_became_another_gets_a_buffer_like_it():
    workspace, params = tensors.Workspace(), [torch.zeros(3), torch.zeros(4)]
    lent_and_back(workspace, params, params)
    for data in (torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.float64)):
        params[1].data = data
        buffers = workspace.take(params, params)
        assert [(b.shape, b.dtype) for b in buffers] == [(p.shape, p.dtype) for p in params]
        workspace.give(params, buffers)


def test_a_buffer_that_was_exchanged_is_looked_at_again():
    workspace, params = tensors.Workspace(), [torch.zeros(3), torch.zeros(4)]
    buffers = workspace.take(params, params)
    buffers[0] = torch.zeros(5)
    workspace.give(params, buffers)
    assert [b.shape for b in workspace.take(params, params)] == [(3,), (4,)]
