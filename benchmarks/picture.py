"""Draws the picture of README and docs: accuracy against cost, from results/.

python benchmarks/picture.py
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "results/table-noise-cifar10/results.json"
PICTURE = ROOT / "docs/images/accuracy-and-cost.svg"

GREY, BLUE, ORANGE = "#555555", "#0072B2", "#D55E00"
MARKERS = {  # colour: does a step without a second gradient reuse the last SAM direction?
    GREY: {"ERM": "o", "ERM, twice as long": "s", "SAM": "*"},
    BLUE: {
        "SAM at the end": "d",
        "SS-SAM": "^",
        "AE-SAM": "X",
        "matched coin": "p",
        "inverted": "v",
    },
    ORANGE: {
        "LookSAM": "^",
        "AE-LookSAM": "X",
        "matched coin, reuse": "p",
        "inverted, reuse": "v",
    },
}
DRAWN = {
    label: (colour, marker) for colour, own in MARKERS.items() for label, marker in own.items()
}


def panels() -> list[dict[str, Any]]:
    """The comparisons, low noise first."""
    found = json.loads(SOURCE.read_text())["comparisons"]
    return sorted(found, key=lambda comparison: comparison["settings"]["data"]["noise"])


def description() -> str:
    """What is drawn, in numbers: kept in the picture, so that a test can see if it is old."""
    return "; ".join(
        f"{row['label']} {row['gradients_per_step']:.2f} {row['accuracy']['mean']:.2f}"
        for comparison in panels()
        for row in _drawn(comparison)
    )


def _drawn(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    rows = {row["label"]: row for row in comparison["rows"]}
    return [rows[label] for label in DRAWN]  # ESAM's ρ was SAM's, with which it did not learn


def draw(axes: Axes, comparison: dict[str, Any]) -> None:
    for row in _drawn(comparison):
        colour, marker = DRAWN[row["label"]]
        accuracy = row["accuracy"]
        axes.errorbar(
            row["gradients_per_step"], accuracy["mean"], accuracy["std"], color=colour,
            marker=marker, markersize=9 if marker == "*" else 6, capsize=2, linewidth=1,
            linestyle="none", label=row["label"],
        )  # fmt: skip
    noise = comparison["settings"]["data"]["noise"]
    axes.set_title(f"{noise:.0%} of the training labels wrong", fontsize=10)
    axes.set_xlabel("gradients per step")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    mpl.rcParams.update({"svg.hashsalt": "aesam", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(8.2, 3.4), layout="constrained", facecolor="white")
    both = figure.subplots(1, 2)
    for axes, comparison in zip(both, panels(), strict=True):
        draw(axes, comparison)
    both[0].set_ylabel("test accuracy, %")
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    PICTURE.parent.mkdir(exist_ok=True)
    about = {"Date": None, "Creator": None, "Title": "Accuracy against cost"}
    figure.savefig(PICTURE, metadata={**about, "Description": description()})


if __name__ == "__main__":
    main()
