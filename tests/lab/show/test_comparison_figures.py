import itertools
import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from support.fixtures_report import config_of, epoch_line, summary_of, write_comparison, write_run

from aesam.lab.lab_methods import marker_of, order_of
from aesam.lab.show import colour_of, compare, label_of, read_runs
from aesam.lab.show.curves import adaptive_rows, curves, drawn_rows, over_epochs, trace_of
from aesam.lab.show.figures import figures
from aesam.lab.show.labels import Box
from aesam.lab.show.tradeoff import accuracy_against_cost

pytestmark = pytest.mark.slow
METHODS = ["erm", "sam", "esam", "ss-sam", "ae-sam", "looksam", "ae-looksam"]
# What a person without one kind of cone sees, in linear RGB (Machado and others, 2009).
COLOUR_BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    root = write_comparison(tmp_path_factory.mktemp("seven"), epochs=6)
    (comparison,) = compare(read_runs([root]))
    return comparison


@pytest.fixture(scope="module")
def drawn(seven):
    return figures(seven, "c1")


def linear(colour):
    channels = np.asarray([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.asarray(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089])
    return np.asarray([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_every_method_has_a_label_a_colour_and_a_marker_of_its_own():
    assert sorted(METHODS, key=order_of) == METHODS
    for of in (label_of, colour_of, marker_of):
        assert len({of(method) for method in [*METHODS, "another"]}) == 8
    assert label_of("ae-looksam") == "AE-LookSAM"
    assert sorted(["zeta", "ae-sam", "erm"], key=order_of) == ["erm", "ae-sam", "zeta"]


@pytest.mark.parametrize("kind", COLOUR_BLINDNESS)
def test_colour_blind_readers_can_tell_the_methods_apart(kind):
    seen = [lab(np.asarray(COLOUR_BLINDNESS[kind]) @ linear(colour_of(m))) for m in METHODS]
    nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
    assert nearest > 10  # a difference of 2 is just visible


def test_a_comparison_of_seven_methods_has_all_its_figures(drawn):
    assert [figure.heading for figure in drawn] == [
        "Accuracy against cost",
        "% SAM over training",
        "Test accuracy",
        "Training accuracy",
        "Test loss",
        "Training loss",
        "Decisions of AE-SAM",
        "Decisions of AE-LookSAM",
    ]


def test_every_figure_is_xml_with_labelled_axes_and_names_every_method(seven, drawn):
    for figure in drawn:
        text = " ".join(ElementTree.fromstring(figure.svg).itertext())
        wanted = ["‖g‖²", "mean μ", "threshold", "SAM fired", "step"]
        if "trace" not in figure.name:
            wanted = [row.label for row in seven.rows] + [
                "(%)" if "loss" not in figure.name else "nats"
            ]
        assert [word for word in wanted if word not in text] == []


def test_figures_are_the_same_whatever_the_users_matplotlib_settings_and_keep_them(seven, drawn):
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert figures(seven, "c1") == drawn
        assert dict(mpl.rcParams) == before


def test_figures_share_no_id_and_refer_only_to_their_own(seven, drawn):
    both = [*drawn, *figures(seven, "c2")]
    ids = [re.findall(r' id="([^"]*)"', figure.svg) for figure in both]
    everything = list(itertools.chain(*ids))
    assert len(everything) == len(set(everything))
    for figure, own in zip(both, ids, strict=True):
        referred = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', figure.svg)
        assert {a or b for a, b in referred} <= set(own)


def test_many_long_labels_make_a_figure_taller_and_not_its_axes_flat(tmp_path):
    for method, number in itertools.product(METHODS[1:], range(3)):
        config = config_of(method)
        config["method"] |= {"rho": number / 10, "a setting with quite a long name": number}
        write_run(tmp_path / f"{method}-{number}", config, [epoch_line(1)], summary_of(config))
    (comparison,) = compare(read_runs([tmp_path]))
    curve = curves(comparison, "test_loss", "name")  # matplotlib warns of axes without height
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', curve).groups())
    assert height > width


def test_curves_are_the_mean_and_sample_deviation_over_seeds(tmp_path):
    for seed, accuracies in enumerate([(10.0, 20.0), (30.0, 26.0)]):
        config = config_of("erm", seed)
        lines = [epoch_line(i + 1, test_accuracy=a) for i, a in enumerate(accuracies)]
        write_run(tmp_path / str(seed), config, lines, summary_of(config))
    epochs, means, deviations = over_epochs(read_runs([tmp_path]), "test_accuracy")
    assert (epochs.tolist(), means.tolist()) == ([1, 2], [20.0, 23.0])
    assert deviations == pytest.approx([200**0.5, 18**0.5])


def test_a_loss_that_is_not_a_number_leaves_a_gap(tmp_path):
    config = config_of("erm")
    lines = [epoch_line(1, test_loss=float("nan")), epoch_line(2, test_loss=None), epoch_line(3)]
    write_run(tmp_path / "run", config, lines, summary_of(config))
    runs = read_runs([tmp_path])
    assert np.isnan(over_epochs(runs, "test_loss")[1]).tolist() == [True, True, False]
    assert "test loss" in curves(compare(runs)[0], "test_loss", "name")


def test_the_trace_joins_the_epochs_and_only_adaptive_methods_have_one(seven):
    assert [row.method for row in adaptive_rows(seven)] == ["ae-sam", "ae-looksam"]
    trace = trace_of(adaptive_rows(seven)[0].runs[0])
    assert trace["step"].tolist() == list(range(72))
    fired = trace["squared_norm"] >= trace["threshold"]
    assert (trace["used_sam"] == fired).all()


def test_only_the_best_three_settings_of_a_method_are_drawn(tmp_path):
    for number in range(5):
        config = config_of("sam")
        config["method"]["rho"] = number / 10
        summary = summary_of(config, test_accuracy=80.0 - number)
        write_run(tmp_path / str(number), config, [epoch_line(1)], summary)
    (comparison,) = compare(read_runs([tmp_path]))
    assert [row.settings["rho"] for row in drawn_rows(comparison)] == [0.0, 0.1, 0.2]
    text = curves(comparison, "test_accuracy", "name")
    assert [f"ρ = {rho})" in text for rho in ("0", "0.1", "0.2", "0.3")] == [
        True,
        True,
        True,
        False,
    ]


def test_without_erm_the_cost_is_gradients_per_step(tmp_path):
    root = write_comparison(tmp_path, methods=("sam", "ae-sam"), seeds=2, epochs=2)
    cost = accuracy_against_cost(compare(read_runs([root]))[0], "name")
    assert "gradients per step" in cost
    assert "multiple of ERM" not in cost


def test_boxes_know_how_much_they_overlap():
    assert Box(0, 0, 4, 4).overlap(Box(2, 3, 9, 9)) == 2
    assert Box(0, 0, 4, 4).overlap(Box(5, 0, 6, 4)) == 0
    assert Box(0, 0, 4, 4).outside(Box(2, 0, 9, 9)) == 8
