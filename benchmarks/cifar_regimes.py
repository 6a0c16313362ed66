"""Regimes tried for the clean CIFAR-10 bench, on held-out images: does SAM help at all, and where?

python benchmarks/cifar_regimes.py [--data data] [--out runs/regimes]

Writes results/frontier/cifar-regimes.json and goes on where it stopped. The first regime is the
bench's own; each other one changes one thing. SAM helps where it is above plain training of every
length, each with a schedule of its own. No verdict: two seeds, and the radii that are listed.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from aesam.evidence.benches import BENCHES
from aesam.lab import lab_methods
from aesam.lab.config import Method, Model, Run
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job, run_all
from aesam.lab.training.trainer import versions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/frontier/cifar-regimes.json"
OWN = BENCHES["cifar-clean"].search
SEEDS = (0, 1)
LENGTHS = (0.125, 0.25, 0.5, 1.0)  # of plain training

#: What is changed, and which radii SAM is tried with; fixed before the runs.
REGIMES: dict[str, tuple[Run, tuple[float, ...]]] = {
    "2,500 images, as they are": (OWN, (0.2, 0.4, 0.8)),
    "with crops and flips": (replace(OWN, data=replace(OWN.data, augment=True)), (0.05, 0.1, 0.2)),
    "weight decay 5e-4": (
        replace(OWN, training=replace(OWN.training, weight_decay=5e-4)),
        (0.2, 0.4, 0.8),
    ),
    "weight decay 2e-3": (
        replace(OWN, training=replace(OWN.training, weight_decay=2e-3)),
        (0.2, 0.4, 0.8),
    ),
    "batches of 32, lr 0.05": (
        replace(OWN, training=replace(OWN.training, batch_size=32, lr=0.05)),
        (0.1, 0.2, 0.4),
    ),
    "no BatchNorm: an MLP, lr 0.05": (
        replace(OWN, model=Model("mlp"), training=replace(OWN.training, lr=0.05)),
        (0.05, 0.1, 0.2),
    ),
    "5,000 images": (
        replace(OWN, data=replace(OWN.data, subset=7500, holdout=1 / 3)),
        (0.2, 0.4, 0.8),
    ),
}


def runs(root: str) -> list[tuple[str, Run]]:
    """Every run with the name of its regime."""
    found: list[tuple[str, Run]] = []
    for name, (base, radii) in REGIMES.items():
        rows = [(Method("erm"), length) for length in LENGTHS]
        rows += [(Method("sam", rho=rho), 1.0) for rho in radii]
        for method, length in rows:
            run = replace(
                base,
                data=replace(base.data, root=root),
                method=lab_methods.fill(method),
                training=replace(base.training, epochs=round(length * base.training.epochs)),
            )
            found += [(name, replace(run, seed=seed)) for seed in SEEDS]
    return found


def row(name: str, job: Job) -> dict[str, Any]:
    """A finished run in one line."""
    summary = RunFolder(job.folder).read_summary(job.run)
    return {
        "regime": name,
        "method": job.run.method.name,
        "rho": job.run.method.settings.get("rho"),
        "epochs": job.run.training.epochs,
        "seed": job.run.seed,
        "train_accuracy": summary["train_accuracy"],
        "validation_accuracy": summary["validation_accuracy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data", help="where CIFAR-10 lies")
    parser.add_argument("--out", type=Path, default=Path("runs/regimes"), help="where runs go")
    given = parser.parse_args()
    named = [(name, Job(run, folder_of(run, given.out))) for name, run in runs(given.data)]
    ended = run_all([job for _, job in named], workers=2, done=lambda o: print(o.job.folder.name))
    failed = [outcome for outcome in ended if outcome.error is not None]
    if failed:
        raise SystemExit(f"{len(failed)} runs failed, the first with: {failed[0].error}")
    found = {
        "command": "python benchmarks/cifar_regimes.py",
        "versions": versions(),
        "runs": [row(name, job) for name, job in named],
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
