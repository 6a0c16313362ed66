"""The text transformer: what it sees, and that it learns a text."""

import torch
from torch.nn.functional import cross_entropy

from aesam.lab import models


def net():
    torch.manual_seed(0)
    return models.build("text-transformer", classes=63, size=64)


def test_a_guess_depends_on_the_characters_up_to_its_place_and_on_none_after():
    model, x = net().double(), torch.randint(0, 63, (2, 64))
    before = model(x)
    assert before.shape == (2, 63, 64)
    changed = x.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 63
    after = model(changed)
    torch.testing.assert_close(after[:, :, :40], before[:, :, :40], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, :, 40], before[:, :, 40])


def test_a_shorter_text_is_guessed_as_the_beginning_of_a_longer_one():
    model, x = net().double(), torch.randint(0, 63, (1, 64))
    torch.testing.assert_close(model(x[:, :10]), model(x)[:, :, :10], rtol=0, atol=1e-12)


def test_it_starts_near_guessing_and_learns_a_text_by_heart():
    model, x = net(), torch.randint(0, 63, (4, 65))
    inputs, labels = x[:, :-1], x[:, 1:]
    assert abs(cross_entropy(model(inputs), labels).item() - torch.tensor(63.0).log().item()) < 0.2
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        opt.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        opt.step()
    assert cross_entropy(model(inputs), labels).item() < 1.0


def test_its_size_is_what_its_record_says():
    assert "0.11 M" in models.model_record("text-transformer").help
    assert round(sum(p.numel() for p in net().parameters()) / 1e6, 2) == 0.11
