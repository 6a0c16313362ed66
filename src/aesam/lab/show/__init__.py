"""Tables, figures, ``results.json`` and one HTML page, made from the folders of finished runs.

Nothing but ``config.json``, ``metrics.jsonl`` and ``summary.json`` of each run is read.
"""

from aesam.lab.lab_methods import colour_of, label_of
from aesam.lab.show.comparison import Against, Comparison, MethodRow, compare
from aesam.lab.show.finished_runs import FinishedRun, read_runs
from aesam.lab.show.page import html_report
from aesam.lab.show.report_files import write_report
from aesam.lab.show.results_json import as_json
from aesam.lab.show.stats import (
    PairedTest,
    Spread,
    bootstrap_interval,
    mean,
    paired_t_test,
    sample_std,
    spread,
)
from aesam.lab.show.tables import rich_table, text_table

__all__ = [
    "Against",
    "Comparison",
    "FinishedRun",
    "MethodRow",
    "PairedTest",
    "Spread",
    "as_json",
    "bootstrap_interval",
    "colour_of",
    "compare",
    "html_report",
    "label_of",
    "mean",
    "paired_t_test",
    "read_runs",
    "rich_table",
    "sample_std",
    "spread",
    "text_table",
    "write_report",
]
