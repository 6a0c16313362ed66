"""``aesam sharpness``: how sharp the loss is at the end of a finished run."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.progress import Progress, TaskID

from aesam import sharpness
from aesam.lab import config, files, validation
from aesam.lab.cli.console import command_line, console, say
from aesam.lab.errors import UsageError
from aesam.lab.show import Line, Sheet, as_rich, canvas
from aesam.lab.training.engine import threads
from aesam.lab.training.restored import TrainedRun, load_run
from aesam.lab.training.trainer import versions

RADII = 5  # points of the curve of sharpness against radius, up to --rho
SMALL = 1_000_000  # weights; the threads of a smaller model mostly wait for each other
ASCENT_STEPS = 10  # for each radius, from where the one before ended


@dataclass(frozen=True)
class MeasureSharpness:
    """Measure how sharp the loss is where a finished run ended, and draw it.

    Gradient norms and variance, the Hessian's largest eigenvalues and trace, average and
    worst-case sharpness in a ball, and slices of the loss; in eval mode, on training samples
    without augmentation. Writes sharpness.json and one sharpness-….svg for each measure.
    """

    run: tyro.conf.Positional[Path]
    """Folder of a finished run."""
    samples: int = 512
    """Most training samples to measure on."""
    k: int = 5
    """Eigenvalues, from the largest."""
    rho: float = 0.05
    """Radius of the ball."""
    trace_samples: int = 30
    """Random vectors for the trace."""
    grid: int = 15
    """Points of the slices, in each direction."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where data sets lie; where they lay in training if left out."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where to write; the run's folder if left out."""
    cpu: bool = False
    """Stay on the CPU also where there is an accelerator."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Threads to compute with; one for a model of under a million weights if left out."""
    seed: int = 0
    """Of the samples and of all random vectors."""

    def __call__(self) -> int:
        out = _writable(self.out or self.run)
        self._check()
        finished = load_run(self.run, root=self.root, device=_device(self.cpu))
        weights = sum(p.numel() for p in finished.model.parameters())
        if self.k > weights:
            raise UsageError(f"k must be at most the model's {weights} weights, got {self.k}")
        files.make_writable_folder(out)
        batches = finished.training_batches(self.samples, self.seed)
        count = sum(len(labels) for _, labels in batches)
        say(f"measured on {count} of {len(finished.samples.train)} training samples, in eval mode")
        with threads(self.threads or (1 if weights < SMALL else torch.get_num_threads())):
            try:
                found = self._measure(finished, batches)
            except FloatingPointError as error:
                raise UsageError(f"the run in {self.run} went astray: {error}") from error
        console.print(as_rich(_table(found), console.width))
        if len(batches) == 1:
            say(f"all {count} samples are one batch: for the gradient variance raise --samples")
        self._write(out, finished, found, count)
        say(f"written: {out / 'sharpness.json'} and {len(found)} figures, sharpness-….svg")
        return 0

    def _check(self) -> None:
        validation.check_whole(validation.OF_A_MEASUREMENT, vars(self))
        validation.check_positive("rho", self.rho)

    def _measure(self, finished: TrainedRun, batches: list[Any]) -> dict[str, Any]:
        """Each measure's result, with a bar for what is under way, or a line in a log."""
        found: dict[str, Any] = {}
        about = (finished.model, finished.loss, batches)
        with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
            measures = self._measures()
            for name, (measure, settings) in measures.items():
                task, begin = bar.add_task(name, total=None), time.perf_counter()
                found[name] = measure(*about, **settings, progress=partial(_tell, bar, task))
                if not console.is_terminal:
                    say(f"{len(found)}/{len(measures)} {name}: {time.perf_counter() - begin:.1f} s")
        return found

    def _measures(self) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
        radii = [self.rho * (i + 1) / RADII for i in range(RADII)]
        drawn, steps = {"seed": self.seed}, max(100, 2 * self.k)
        return {
            "gradients": (sharpness.gradient_variance, {}),
            "full-gradient": (sharpness.full_gradient_norm, {}),
            "eigenvalues": (sharpness.hessian_eigenvalues, drawn | {"k": self.k, "steps": steps}),
            "trace": (sharpness.hessian_trace, drawn | {"samples": self.trace_samples}),
            "average": (sharpness.average_sharpness, drawn | {"rho": radii}),
            "worst-case": (
                sharpness.worst_case_sharpness,
                drawn | {"rho": radii, "steps": ASCENT_STEPS},
            ),
            "slice-1d": (sharpness.slice_1d, drawn | {"points": self.grid}),
            "slice-2d": (sharpness.slice_2d, drawn | {"points": self.grid}),
        }

    def _write(self, out: Path, finished: TrainedRun, found: dict[str, Any], count: int) -> None:
        document = {
            "command": command_line(),
            "versions": versions(),
            "config_hash": config.config_hash(finished.run),
            "samples": count,
            "training_samples": len(finished.samples.train),
            "batch_size": finished.run.training.batch_size,
            "mode": "eval",
            "seed": self.seed,
            "summary": dict(_rows(found)),
            "measures": {name: asdict(result) for name, result in found.items()},
        }
        files.write_json(out / "sharpness.json", files.without_nan(document))
        for name, result in found.items():
            svg = canvas.draw(f"sharpness-{name}", lambda _, axes, r=result: r.plot(axes))
            files.write_text(out / f"sharpness-{name}.svg", svg + "\n")


def _tell(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def _rows(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The numbers of the table, by what they are."""
    gradients, spectrum, trace = found["gradients"], found["eigenvalues"], found["trace"]
    average, worst = found["average"], found["worst-case"]
    several = len(gradients.norms.squared_norms) > 1  # one batch says nothing of their variance
    return [
        ("loss", average.loss),
        ("mean squared gradient norm over batches", gradients.norms.mean),
        ("squared norm of the full gradient", gradients.full_squared_norm),
        ("gradient variance (Eq. 3)", gradients.variance if several else math.nan),
        *[(f"Hessian eigenvalue {i}", value) for i, value in enumerate(spectrum.values, start=1)],
        ("Hessian eigenvalues, off by at most", max(spectrum.residuals)),
        ("Hessian trace", trace.mean),
        ("Hessian trace, standard error", trace.standard_error),
        (f"average sharpness, ρ = {average.radii[-1]:g}", average.value),
        ("average sharpness, standard error", average.standard_errors[-1]),
        (f"worst-case sharpness, ρ = {worst.radii[-1]:g}", worst.value),
    ]


def _table(found: Mapping[str, Any]) -> Sheet:
    lines = tuple(
        Line((name, f"{value:.4g}" if math.isfinite(value) else "–"))
        for name, value in _rows(found)
    )
    return Sheet("", ("measure", "value"), (lines,))


def _writable(out: Path) -> Path:
    """``out``, unless it is no folder."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: choose a folder")
    return out


def _device(cpu: bool) -> torch.device:
    found = None if cpu else torch.accelerator.current_accelerator(check_available=True)
    return found or torch.device("cpu")
