"""A comparison's table, in plain text and on a terminal."""

from io import StringIO

from rich.console import Console
from support.fixtures_report import compared, write_methods, write_short_run

from aesam.lab.show import as_rich, as_text, results_sheet

GOLDEN = """\
digits · digits-cnn · 60 % label noise
test accuracy in %, mean ± standard deviation over 3 seeds (0, 1, 2)

                          test                      grads         train    p vs  p vs
method      n         accuracy        % SAM   time  /step      accuracy     SAM  baseline
----------------------------------------------------------------------------------------------
ERM         3    44.50  ± 0.50    0.0 ± 0.0  1.00×   1.00  41.00 ± 3.00   0.001  –
----------------------------------------------------------------------------------------------
SAM         3   _63.77_ ± 1.07  100.0 ± 0.0  2.00×   2.00  60.00 ± 3.00       –  0.001 ERM
ESAM        3    59.67  ± 0.76  100.0 ± 0.0  1.80×   2.00  56.00 ± 3.00   0.037  0.002 ERM
----------------------------------------------------------------------------------------------
SS-SAM      3    47.77  ± 1.00   50.0 ± 0.0  1.50×   1.50  44.00 ± 3.00  <0.001  0.031 ERM
AE-SAM      3   _48.43_ ± 0.51   46.5 ± 0.5  1.48×   1.46  45.00 ± 3.00   0.002  0.469 SS-SAM
----------------------------------------------------------------------------------------------
LookSAM     3    75.03  ± 0.95   20.0 ± 0.0  1.20×   1.20  71.00 ± 3.00   0.005  <0.001 ERM
AE-LookSAM  3  *_83.53_ ± 0.55   19.5 ± 0.5  1.22×   1.19  80.00 ± 3.00   0.002  0.008 LookSAM

* best of all, _best of its group_. Rows with similar % SAM stand together. Time is a multiple
of ERM's. p is of a two-sided paired t-test by seed, against SAM and against the method's own
baseline (of SAM, ESAM, SS-SAM, LookSAM: ERM; of AE-SAM: SS-SAM; of AE-LookSAM: LookSAM).
"""


def test_the_table_in_plain_text_is_the_golden_one(tmp_path):
    (comparison,) = compared(write_methods(tmp_path))
    assert as_text(results_sheet(comparison), 96) == GOLDEN


def test_rows_that_lack_seeds_are_named(tmp_path):
    write_methods(tmp_path, ("erm",), seeds=3)
    write_methods(tmp_path, ("sam",), seeds=1)
    (comparison,) = compared(tmp_path)
    assert "SAM lacks seeds 1, 2" in as_text(results_sheet(comparison))


def rendered(comparison, width):
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(as_rich(results_sheet(comparison, narrow=True), width))
    return console.file.getvalue()


def test_the_terminals_table_has_the_best_in_bold_and_underlined(tmp_path):
    (comparison,) = compared(write_methods(tmp_path))
    text = rendered(comparison, 80)
    assert "\x1b[1;4m83.53\x1b[0m" in text
    assert "\x1b[4m63.77\x1b[0m" in text


def test_the_terminals_table_of_all_methods_fits_80_columns_unbroken(tmp_path):
    write_methods(tmp_path)
    numbers = {"test_accuracy": 81.5, "train_accuracy": 100.0}
    for seed in range(3):  # the longest name of the default comparison
        write_short_run(tmp_path, "erm-early", seed, **numbers)
    (comparison,) = compared(tmp_path)
    narrow = [
        line.rstrip() for line in rendered(comparison, 80).split("accuracy in %")[0].splitlines()
    ]
    wide = [
        line.rstrip() for line in rendered(comparison, 200).split("accuracy in %")[0].splitlines()
    ]
    assert len(narrow) == len(wide)
    assert "…" not in "".join(narrow)


def test_names_from_files_are_not_read_as_terminal_markup_or_codes(tmp_path):
    write_short_run(tmp_path, "[bold]x[/bold]\x1b[31m")
    (comparison,) = compared(tmp_path)
    text = rendered(comparison, 200)
    assert "[bold]x[/bold]?[31m" in text
    assert "\x1b[31m" not in text
