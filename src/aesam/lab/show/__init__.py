"""Tables, figures, ``results.json`` and one HTML page, made from the folders of finished runs.

Nothing but ``config.json``, ``metrics.jsonl`` and ``summary.json`` of each run is read.
"""

from aesam.lab.lab_methods import colour_of, label_of
from aesam.lab.show.comparison import Against, Comparison, MethodRow, compare, comparison_of
from aesam.lab.show.comparison_tables import results_sheet
from aesam.lab.show.finished_runs import FinishedRun, read_runs, versions_of
from aesam.lab.show.page import html_report
from aesam.lab.show.report_files import as_json, write_report
from aesam.lab.show.stats import (
    PairedTest,
    Spread,
    bootstrap_interval,
    mean,
    paired_t_test,
    sample_std,
    spread,
)
from aesam.lab.show.table import Line, Sheet, as_rich, as_text

__all__ = [
    "Against",
    "Comparison",
    "FinishedRun",
    "Line",
    "MethodRow",
    "PairedTest",
    "Sheet",
    "Spread",
    "as_json",
    "as_rich",
    "as_text",
    "bootstrap_interval",
    "colour_of",
    "compare",
    "comparison_of",
    "html_report",
    "label_of",
    "mean",
    "paired_t_test",
    "read_runs",
    "results_sheet",
    "sample_std",
    "spread",
    "versions_of",
    "write_report",
]
