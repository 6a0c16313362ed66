"""Pictures and progress, with and without the packages that draw them."""

import os
import subprocess
import sys

import matplotlib
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from support.sharpness_examples import MEASURES, data, mlp
from torch.nn.functional import mse_loss

from aesam import sharpness

LABELS = {
    "squared norms": ("squared norm of the gradient, ‖g‖²", "number of batches"),
    "variance": ("squared norm of the gradient, ‖g‖²", "number of batches"),
    "full gradient": ("norm of the gradient over all samples", "parameter"),
    "eigenvalues": ("place, from the largest", "eigenvalue of the Hessian"),
    "trace": ("random vectors", "trace of the Hessian"),
    "average": ("radius ρ of the ball around the weights", "rise of the loss"),
    "worst case": ("radius ρ of the ball around the weights", "rise of the loss"),
    "line": ("distance from the weights (filter norms)", "loss"),
    "plane": ("first direction (filter norms)", "second direction (filter norms)"),
}
LOGGED = """
import sys
sys.modules["rich"] = None
from aesam.sharpness.progress import counted
with counted(True, "work", {total}) as tick:
    for _ in range(250):
        tick()
"""
BARE = """
import sys
for package in ("matplotlib", "rich"):
    sys.modules[package] = None  # as where it is not installed
import torch
from aesam import sharpness
model, batches = torch.nn.Linear(1, 1), [(torch.ones(2, 1), torch.zeros(2, 1))] * 3
loss = torch.nn.functional.mse_loss
sharpness.squared_gradient_norms(model, loss, batches, progress=True).plot()
"""


def result_of(name):
    measure, settings = MEASURES[name]
    return measure(mlp(), mse_loss, data(), **settings)


@pytest.mark.parametrize("name", MEASURES)
def test_every_result_draws_itself_with_labelled_axes(name):
    axes = Figure().subplots()
    assert result_of(name).plot(axes) is axes
    x, y = LABELS[name]
    assert axes.get_xlabel().startswith(x)
    assert axes.get_ylabel() == y
    assert axes.has_data()


def test_the_histogram_marks_the_mean():
    result = result_of("squared norms")
    axes = result.plot(Figure().subplots())
    (line,) = axes.get_lines()
    assert line.get_xdata()[0] == pytest.approx(result.mean)
    assert sum(bar.get_height() for bar in axes.patches) == 3


def test_lines_show_the_numbers_of_the_result():
    result = result_of("line")
    line = result.plot(Figure().subplots()).get_lines()[0]
    assert tuple(line.get_xdata()) == result.positions
    assert tuple(line.get_ydata()) == result.losses


def test_the_trace_ends_at_its_mean_within_its_standard_error():
    result = result_of("trace")
    axes = result.plot(Figure().subplots())
    assert axes.get_lines()[0].get_ydata()[-1] == pytest.approx(result.mean)
    top = axes.collections[0].get_paths()[0].vertices[:, 1].max()
    assert top >= result.mean + result.standard_error - 1e-12


def test_average_and_worst_case_share_axes():
    axes = Figure().subplots()
    result_of("average").plot(axes)
    result_of("worst case").plot(axes)
    _, labels = axes.get_legend_handles_labels()
    assert labels == ["average ± standard error", "worst-case"]


def test_a_plane_with_points_off_the_scale_is_still_drawn():
    infinite = sharpness.Slice2D((-1.0, 1.0), (-1.0, 1.0), ((1.0, 2.0), (3.0, float("inf"))), "x")
    assert infinite.plot(Figure().subplots()).has_data()
    flat = sharpness.Slice2D((-1.0, 1.0), (-1.0, 1.0), ((1.0, 1.0), (1.0, 1.0)), "x")
    assert flat.plot(Figure().subplots()).has_data()


def test_of_very_many_parameters_the_longest_are_drawn():
    names = tuple(f"layer{i}" for i in range(100))
    result = sharpness.FullGradient(1.0, names, tuple(float(i) for i in range(100)))
    axes = result.plot(Figure().subplots())
    assert [t.get_text() for t in axes.get_yticklabels()] == list(names[60:])


@pytest.mark.slow
def test_without_matplotlib_and_rich_measures_count_on_a_line_and_plots_say_what_to_install():
    terminal, end = os.openpty()
    program = [sys.executable, "-c", BARE]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=end, check=False)
    told = os.read(terminal, 2**16).decode()
    for handle in (terminal, end):
        os.close(handle)
    assert done.returncode == 1
    assert done.stdout == b""
    assert "\rgradient norms 1/3\rgradient norms 2/3\rgradient norms 3/3\r\n" in told
    assert "ImportError: plots need matplotlib" in told
    assert "pip install 'aesam[lab]'" in told


def test_a_plot_makes_its_own_axes_where_none_are_given():
    matplotlib.use("Agg")
    axes = result_of("line").plot()
    assert axes.figure.number in pyplot.get_fignums()
    pyplot.close(axes.figure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total", "lines"),
    [
        (250, [f"work {n}/250" for n in range(25, 251, 25)]),
        (800, [*(f"work {n}/800" for n in (80, 160, 240)), "work 800/800"]),  # it ended early
        (0, ["work 100/?", "work 200/?"]),
    ],
)
def test_progress_in_a_log_without_rich_is_a_line_for_every_tenth(total, lines):
    program = (sys.executable, "-c", LOGGED.format(total=total))
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == lines


def test_progress_with_rich_is_a_bar_on_stderr(capsys):
    sharpness.squared_gradient_norms(mlp(), mse_loss, data(), progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "gradient norms" in told.err
    assert "100%" in told.err
