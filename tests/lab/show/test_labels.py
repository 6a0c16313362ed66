"""Names beside marks: apart from each other, led to their marks, none for what has no name."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text

from aesam.lab.show.labels import Mark, label_marks


def labelled(*marks):
    figure = Figure()
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    figure.draw_without_rendering()
    label_marks(axes, marks)
    figure.draw_without_rendering()  # so that labels know where they are
    return axes.texts


def test_names_of_marks_on_one_spot_do_not_cover_each_other():
    texts = labelled(*(Mark(0.5, 0.5, name) for name in ("AE-LookSAM", "LookSAM (k = 20)", "SAF")))
    boxes = [Text.get_window_extent(text) for text in texts]  # without the lines
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_a_line_of_the_marks_colour_leads_from_each_name_to_its_mark():
    (text,) = labelled(Mark(0.2, 0.3, "SAM", colour="#0072B2"))
    assert text.get_color() == "#0072B2"
    assert text.xy == (0.2, 0.3)
    assert text.arrow_patch is not None


def test_a_mark_without_a_name_is_kept_clear():
    (alone,) = labelled(Mark(0.5, 0.5, "SAM"))
    place = Text.get_window_extent(alone)
    x, y = alone.axes.transData.inverted().transform((place.x0 + 5, (place.y0 + place.y1) / 2))
    texts = labelled(Mark(0.5, 0.5, "SAM"), Mark(x, y, ""))
    assert len(texts) == 1
    assert Text.get_window_extent(texts[0]).bounds != place.bounds
