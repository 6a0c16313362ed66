"""Tables from finished runs: grouping, marks, the paper beside, and the claims judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats
from support.fixtures_report import by_method, config_of

from aesam.lab.show import FinishedRun, Line, Sheet, as_text, comparison_of, label_of
from aesam.lab.show.canvas import Drawing
from aesam.paper import accuracy_tables, claims, noise_curves, setups, verdicts
from aesam.paper.claims import Claim
from aesam.paper.entries import ENTRIES
from aesam.paper.entry_files import page_of
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel
from aesam.paper.setups import Options

ACCURACIES = by_method("""
    erm         45.0  46.0  44.0
    sam         64.0  66.0  65.0
    ss-sam      47.0  48.0  49.0
    ae-sam      50.0  52.0  51.0
    looksam     75.0  74.0  76.0
    ae-looksam  75.5  73.0  76.0
""")
SHARES = dict(zip(ACCURACIES, (0.0, 100.0, 50.0, 49.0, 50.0, 51.0), strict=True))
SHARES |= {"matched-looksam": 50.0}


PANEL = Panel(
    "digits-cnn on digits, 60 % label noise",
    (),
    {"model": "resnet18", "dataset": "cifar10", "noise": 0.6},
    "label-noise",
)


def finished(tmp_path, method, seed, accuracy):
    summary = {
        "test_accuracy": accuracy, "train_accuracy": 80.0, "percent_sam": SHARES[method],
        "steps": 100, "gradients": 100 + SHARES[method], "seconds": 10.0 + SHARES[method] / 10,
    }  # fmt: skip
    return FinishedRun(tmp_path / f"{method}{seed}", config_of(method, seed), [], summary)


@pytest.fixture
def comparison(tmp_path):
    named = [
        (label_of(m), [finished(tmp_path, m, s, a) for s, a in enumerate(values)])
        for m, values in ACCURACIES.items()
    ]
    return comparison_of("digits-cnn on digits, 60 % label noise", config_of("erm"), named)


def test_the_table_is_grouped_marked_and_beside_the_paper(comparison):
    text = as_text(accuracy_tables.sheet_of(PANEL, comparison))
    golden = (Path(__file__).parent / "golden_table.txt").read_text()
    assert text.startswith(golden)
    assert "n = 3 seeds (0, 1, 2)" in text
    assert "Paper: ResNet-18 on CIFAR-10" in text.replace("\n", " ")


def lines_of(group):
    return tuple(Line(tuple(x["cells"]), x["best"], x["best_in_group"]) for x in group)


def test_every_published_table_is_its_numbers_as_text():
    for path in (Path(__file__).parents[2] / "results").glob("*/table.txt"):
        text, numbers = path.read_text(), json.loads(path.with_name("results.json").read_text())
        for t in numbers["tables"]:
            groups = tuple(lines_of(group) for group in t["groups"])
            shown = as_text(Sheet(t["title"], tuple(t["columns"]), groups, t["caption"]))
            assert f"\n{shown}" in text, path


def test_verdicts_are_the_paired_tests_of_the_seeds(comparison):
    found = {
        (v.claim.better, v.claim.worse): v for v in claims.judge(comparison, claims.TABLE_NOISE)
    }
    verdict = found["AE-LookSAM", "SS-SAM"]
    expected = stats.ttest_rel(ACCURACIES["ae-looksam"], ACCURACIES["ss-sam"])
    assert verdict.test.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert verdict.word == "holds here"
    assert verdict.test.n == 3
    assert found["AE-LookSAM", "LookSAM"].word == "not seen here"
    assert found["AE-LookSAM", "SAM"].word == "better here"
    assert found["AE-SAM", "SS-SAM"].word == "holds here"
    assert ("AE-LookSAM", "ESAM") not in found


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (Claim("sam", "looksam"), "disagrees"),
        (Claim("sam", "looksam", comparable=True), "disagrees: worse here"),
        (Claim("looksam", "ae-looksam", comparable=True), "no difference found"),
        (Claim("looksam", "ae-looksam"), "same direction, not significant"),
        (Claim("sam", "erm", by="why?"), "yes"),
        (Claim("erm", "sam", by="why?"), "no, the other way round"),
        (Claim("looksam", "ae-looksam", by="why?"), "cannot tell"),
    ],
)
def test_disagreement_is_said_as_it_is(comparison, claim, word):
    (verdict,) = claims.judge(comparison, [claim])
    assert verdict.word == word
    assert word in verdict.sentence()


def test_equal_differences_are_no_proof(tmp_path):
    named = [("SAM", "sam", 60.0), ("ERM", "erm", 59.72)]
    rows = [(label, [finished(tmp_path, m, s, a) for s in range(2)]) for label, m, a in named]
    same = comparison_of("two seeds", config_of("erm"), rows)
    (verdict,) = claims.judge(same, [Claim("sam", "erm")])
    assert verdict.word == claims.SAME
    assert "p <" not in verdict.sentence()


def test_k_2_is_set_against_the_best_other_k(tmp_path):
    def run(k, seed, accuracy):
        config = config_of("looksam", seed)
        config["method"] |= {"k": k}
        return replace(finished(tmp_path, "looksam", seed, accuracy), config=config)

    accuracies = {2: (80.0, 82.0, 84.0), 3: (70.0, 73.0, 72.0), 5: (60.0, 60.0, 61.0)}
    rows = [(f"k = {k}", [run(k, s, a) for s, a in enumerate(v)]) for k, v in accuracies.items()]
    (verdict,) = accuracy_tables.best_k(comparison_of("place", config_of("erm"), rows))
    (panel,) = accuracy_tables.looksam_k_panels(
        options := Options(noise=(0.6,)), setups.noisy(options)
    )
    assert panel.remark == "the same ρ and α for every k, chosen at k = 5"
    sentence = verdict.sentence()
    p_value = stats.ttest_rel(accuracies[2], accuracies[3]).pvalue
    assert (
        "k = 2 more accurate than k = 3 → holds here (82.00 against 71.67: +10.33 points"
        in sentence
    )
    assert f"p = {p_value:.3f}, n = 3" in sentence
    assert accuracy_tables.best_k(comparison_of("place", config_of("erm"), rows[1:])) == []


def test_two_seeds_are_too_few_for_a_verdict(comparison):
    rows = [(row.label, row.runs[:2]) for row in comparison.rows]
    (verdict,) = claims.judge(comparison_of("x", config_of("erm"), rows), [Claim("sam", "ss-sam")])
    assert verdict.word == claims.FEW


@pytest.mark.parametrize(("worse", "remark"), [("ss-sam", ""), ("sam", "not like for like")])
def test_unequal_shares_of_sam_are_remarked_on(comparison, worse, remark):
    (verdict,) = claims.judge(comparison, [Claim("ae-sam", worse, alike=True)])
    assert verdict.remark == (remark and f"{remark}: 49 and 100 % SAM")
    assert ("like for like" in verdict.sentence()) == bool(remark)
    assert ("like for like" in verdicts.sheets_of([verdict])[0].lines[0].cells[1]) == bool(remark)


@pytest.mark.parametrize(("accuracy", "remarked"), [(19.0, True), (21.0, False)])
def test_a_method_that_hardly_learnt_is_remarked_on(tmp_path, comparison, accuracy, remarked):
    """At 60 % noise, where 40 % of the labels are right."""
    rows = [(row.label, list(row.runs)) for row in comparison.rows]
    own = [finished(tmp_path, "sam", s, 15.0 + s * s) for s in range(3)]
    failed = [replace(r, summary=r.summary | {"train_accuracy": accuracy}) for r in own]
    for run in failed:
        run.config["data"]["noise"] = 0.6
    rows = [(label, failed if label == "SAM" else runs) for label, runs in rows]
    found = comparison_of("x", config_of("erm"), rows)
    (verdict,) = claims.judge(found, [Claim("ae-looksam", "sam", comparable=True)])
    told = "SAM hardly learnt with these settings, 19 % in training"
    assert verdict.remark == (told if remarked else "")


def claimed(name):
    return [(c.better, "≈" if c.comparable else ">", c.worse) for c in CLAIMS[name]]


CLAIMS = {
    "table-cifar": claims.TABLE_CIFAR,
    "table-imagenet": claims.TABLE_IMAGENET,
    "table-noise": claims.TABLE_NOISE,
    "fig-noise-curves": noise_curves.CLAIMS,
}


def test_the_claims_are_those_of_the_paper():
    """Sections 4.1 to 4.4: Tables 1, 2 and 3 and Figure 4."""
    assert claimed("table-cifar") == [
        ("ae-sam", ">", "sam"), ("ae-sam", ">", "ss-sam"), ("ae-looksam", ">", "looksam"),
    ]  # fmt: skip
    assert claimed("table-imagenet") == [
        ("ae-sam", "≈", "sam"), ("ae-looksam", ">", "looksam"),
    ]  # fmt: skip
    assert claimed("table-noise") == [
        ("ae-looksam", "≈", "sam"), ("ae-looksam", ">", "esam"), ("ae-looksam", ">", "ss-sam"),
        ("ae-looksam", ">", "looksam"), ("ae-sam", ">", "ss-sam"), ("sam", ">", "erm"),
    ]  # fmt: skip
    assert claimed("fig-noise-curves") == [
        ("sam", ">", "erm"), ("sam", ">", "ss-sam"), ("ae-sam", ">", "erm"),
        ("looksam", ">", "erm"), ("ae-looksam", "≈", "sam"),
    ]  # fmt: skip
    for name, judged in CLAIMS.items():
        shown = ENTRIES[name].show
        assert getattr(shown, "keywords", {}).get("claimed", judged) == judged


def test_rows_of_unequal_n_are_not_said_to_be_equal(comparison):
    rows = [(r.label, r.runs[:1] if r.method == "sam" else r.runs) for r in comparison.rows]
    part = comparison_of(comparison.title, config_of("erm"), rows)
    shown = accuracy_tables.sheet_of(PANEL, part)
    assert "over n = 1 to 3 seeds (0, 1, 2)" in shown.caption
    by_method = {line.cells[0]: line.cells[2] for line in shown.lines}
    assert (by_method["SAM"], by_method["ERM"]) == ("1", "3")


@pytest.mark.parametrize(("seeds", "told"), [(2, True), (3, True), (5, False)])
def test_the_interval_of_few_seeds_is_their_range(tmp_path, seeds, told):
    rows = [(m, [finished(tmp_path, m, s, 50.0 + s * s) for s in range(seeds)]) for m in ("erm",)]
    shown = accuracy_tables.sheet_of(PANEL, comparison_of("place", config_of("erm"), rows))
    assert (f"which with {seeds} seeds is no more than their range" in shown.caption) == told


def test_signs_are_signs_and_names_keep_their_hyphens(comparison):
    (verdict,) = claims.judge(comparison, [Claim("ae-looksam", "looksam")])
    assert "AE-LookSAM more accurate than LookSAM" in verdict.sentence()
    assert "−0.17 points" in verdict.sentence()


def test_a_control_is_tested_against_what_it_controls(tmp_path, comparison):
    own = [finished(tmp_path, "matched-looksam", s, 60.0 + s * s) for s in range(3)]
    rows = [(row.label, list(row.runs)) for row in comparison.rows]
    more = comparison_of("with control", config_of("erm"), [*rows, ("matched coin", own)])
    row = next(row for row in more.rows if row.label == "matched coin")
    assert row.against_baseline.label == "AE-LookSAM"
    (verdict,) = [
        v for v in claims.judge(more, claims.CONTROL_CLAIMS) if "geometry" in v.sentence()
    ]
    assert verdict.claim.worse == "matched coin"
    expected = stats.ttest_rel(ACCURACIES["ae-looksam"], (60.0, 61.0, 64.0)).pvalue
    assert verdict.test.p_value == pytest.approx(expected)
    assert verdict.word == "yes"


def test_verdicts_are_counted_and_shown_as_a_table_for_each_place(comparison):
    asked = (Claim("sam", "erm", by="why?"), Claim("looksam", "ae-looksam", by="and why?"))
    found = claims.judge(comparison, (*claims.TABLE_NOISE, *asked))
    assert verdicts.summary(found) == (
        "Claims of the paper: 3 × holds here; 1 × better here; 1 × not seen here. "
        "Questions of ours: 1 × yes; 1 × cannot tell."
    )
    (shown,) = verdicts.sheets_of(found)
    assert shown.title == f"Claims: {comparison.title}"
    assert [len(group) for group in shown.groups] == [5, 2]
    last = shown.groups[1][1].cells
    assert last[:3] == ("LookSAM more accurate than AE-LookSAM (and why?)", "cannot tell",
                        "+0.17 points")  # fmt: skip
    page = page_of("title", "lede", Result(verdicts=found), "aesam reproduce")
    assert "1 × not seen here" in page
    assert "LookSAM more accurate than AE-LookSAM (and why?)</th>" in page


def test_the_page_shows_whatever_it_is_given_and_obeys_none_of_it():
    hostile = "<script>x</script>\" onload='y'"
    drawing = Drawing("name", hostile, hostile, '<svg xmlns="w3" id="name"><path/></svg>')
    shown = Sheet(hostile, (hostile, "b"), ((Line((hostile, hostile)),),), hostile)
    result = Result([shown], [drawing], [hostile], notes=[hostile], text=hostile)
    page = page_of(hostile, hostile, result, hostile)
    assert "<script" not in page
    assert '" onload' not in page
    assert page.count("&lt;script&gt;") == 17
    assert '&#39;y&#39;" id="name"><path/></svg>' in page  # the label, then our own SVG as it is
