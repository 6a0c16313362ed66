"""Image folders with what is no image, or more than one bargained for: decoded or refused."""

import pytest
from support import hostile_images
from support.processes import under_watch

pytestmark = pytest.mark.slow


def test_other_formats_named_as_images_are_refused_and_start_nothing(tmp_path, faults):
    cases = [*hostile_images.PROGRAMS.items(), *hostile_images.formats()]
    ends, _ = under_watch("images", tmp_path / "images", cases)
    assert len(cases) > 30
    for label, end in ends.items():
        if label in hostile_images.TAKEN:
            assert end is None, end
        else:
            assert end is not None, f"{label} was taken"
            assert "it is no JPEG or PNG inside): repair or remove the file" in end, (label, end)
    assert not list(tmp_path.rglob("*canary*"))
    faults.held("a file of another format named .jpg", len(cases) - 3, "refused; nothing started")


def test_image_bombs_are_refused_before_they_are_unpacked(tmp_path, faults):
    cases = list(hostile_images.bombs())
    ends, most = under_watch("images", tmp_path / "images", cases)
    for label, end in ends.items():
        if label in {"png without an end", "frames in png"}:
            assert end is None, end  # no more is unpacked than the image has, and its first frame
        else:
            assert end is not None, f"{label} was taken"
            assert "remove the file" in end
    assert "has more than 178,956,970 pixels" in ends["png of 65500 × 65500"]
    assert "has more than 178,956,970 pixels" in ends["jpeg of 65500 × 65500"]
    assert most < 700, f"{most} MB"
    faults.held("an image bomb", len(cases), "refused, or its first frame read, in little memory")


def test_damaged_images_are_decoded_alike_twice_or_refused(tmp_path, faults):
    cases = list(hostile_images.damaged(faults.number(15, 1000)))
    ends, most = under_watch("images", tmp_path / "images", cases)
    for label, end in ends.items():
        assert end is None or end.startswith(("cannot decode ", str(tmp_path))), (label, end)
    refused = sum(end is not None for end in ends.values())
    assert len(ends) / 4 < refused < len(ends)
    assert most < 2000, f"{most} MB"  # a flipped bit may say 10,000 × 10,000
    faults.held("a cut or flipped image", len(cases), "decoded or refused")
