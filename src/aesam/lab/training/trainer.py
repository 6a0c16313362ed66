"""A training run from its first step, or from where it stopped, to its summary."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# accelerate carries no types.

import platform
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor

import aesam
from aesam.lab import (
    config,
    data,
    files,
    fit,
    lab_methods,
    locks,
    second_gradients,
    summaries,
    validation,
)
from aesam.lab.companions.companion import Stage
from aesam.lab.config import Run
from aesam.lab.data import AnySplit
from aesam.lab.data.run_samples import samples_of
from aesam.lab.errors import UsageError
from aesam.lab.folders import RunFolder
from aesam.lab.training import fitting, run_checkpoint, sharding
from aesam.lab.training.counts import Counts, Sums
from aesam.lab.training.engine import Engine, accelerator_for, leave_processes
from aesam.lab.training.interrupts import Stopped, StopRequest
from aesam.lab.training.meter import Meter
from aesam.lab.training.passes import Passes, evaluate
from aesam.lab.training.reporters import Clock, Reporter, Silent
from aesam.lab.training.shown import shown


def train(
    run: Run,
    path: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    trackers: Iterable[str] = (),
    root: Path | None = None,
) -> dict[str, Any]:
    """Train ``run`` in the folder ``path`` and return its summary.

    With ``resume`` a folder that holds part of this run is gone on with, a finished one returns its
    summary at once, and an empty one starts. ``root`` is where this process finds the data, if not
    where the run says; what is saved has the run's.
    """
    validation.check(run)
    folder = RunFolder(path)
    if folder.admit(run, resume) and folder.is_finished(run):
        return folder.read_summary(run)
    trainer = Trainer(run, folder, reporter or Silent(), trackers, root)
    try:
        with trainer.hold_folder():
            trainer.tidy()
            if folder.admit(run, resume):  # again: another process may have left it just now
                trainer.go_on()
            return trainer.train()
    finally:
        trainer.close()


class Trainer:
    """One run under way on this process; the main one of them writes the files."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        reporter: Reporter,
        trackers: Iterable[str],
        root: Path | None = None,
    ) -> None:
        self._run, self._folder = run, folder
        names = list(trackers)
        self._accelerator = accelerator_for(run.training, names, str(folder.path))
        if run.training.precision == "fp16" and self._accelerator.device.type == "cpu":
            raise UsageError("fp16 needs an accelerator: on a CPU use bf16 or no")
        main = self._accelerator.is_main_process
        self._reporter = reporter if main else Silent()
        samples = samples_of(run, root)
        self._kind, self._held, self._data_set = samples.kind, samples.held, samples.data_set
        self._kept = samples.kept
        self._batches = self._make_batches(samples.train)
        fit.check_smallest_pass(run, samples.data_set, self._accelerator.num_processes)
        self._companion = lab_methods.companion_of(run.method)
        self._engine = Engine(
            run, samples.data_set, len(self._batches), self._accelerator, self._companion
        )
        self._passes = Passes(self._engine, run.training, self._companion)
        self._sharded = sharding.is_sharded(self._engine.net)
        self._begin_companion(len(samples.train))
        if run.training.measure is not None and self._sharded:
            raise UsageError(
                f"measure {run.training.measure} needs the whole model on each process: leave it "
                "out where the model is sharded"
            )
        self._meter = Meter(run, samples.train, samples.data_set, self._accelerator.device)
        self._counts = Counts()
        self._sums = Sums(self._accelerator.device)
        self._tracked = bool(names)

    def _make_batches(self, train: Any) -> Any:
        world, training = self._accelerator.num_processes, self._run.training
        if training.batch_size % (world * training.accumulate):
            raise UsageError(
                f"batch_size {training.batch_size} must be a multiple of processes × accumulate = "
                f"{world} × {training.accumulate}"
            )
        return data.Batches(
            train,
            self._data_set,
            training.batch_size,
            self._run.seed,
            augment=self._run.data.augment,
            device=self._accelerator.device,
            rank=self._accelerator.process_index,
            world=world,
            channels_last=training.channels_last,
            cutout=self._run.data.cutout,
            workers=training.workers,
        )

    def _begin_companion(self, count: int) -> None:
        if self._sharded and lab_methods.is_own(self._run.method.name):
            raise UsageError(
                f"{self._run.method.name} needs the whole model on each process: use another "
                "method where the model is sharded"
            )
        stage = Stage(
            self._engine.net,
            self._engine.opt,
            self._engine.total_steps,
            len(self._batches),
            count,
            self._accelerator.gather,
            self._own_loss,
        )
        self._companion.begin(stage)
        self._evaluated: dict[str, Tensor] | None = None  # what the run is judged by in the end

    def _own_loss(self) -> float:
        """The loss of the model on what its method keeps to choose by, never the test set."""
        if self._kept is None:
            raise ValueError(f"{self._run.method.name} keeps no samples for itself")
        return evaluate(self._engine, self._chunks(self._kept))[0]

    def hold_folder(self) -> AbstractContextManager[None]:
        """The folder to ourselves: the main process holds it, and the others go with it."""
        main = self._accelerator.is_main_process
        return locks.held(self._folder.path) if main else nullcontext()

    def tidy(self) -> None:
        """Remove what a crash left behind: nobody else writes here now."""
        if self._accelerator.is_main_process:
            self._folder.remove_unfinished()

    def train(self) -> dict[str, Any]:
        """All epochs that are left, then the summary."""
        counts, total = self._counts, self._engine.total_steps
        if self._accelerator.is_main_process:
            self._folder.begin(self._run)
            self._folder.write_metrics(counts.metrics)
        self._begin_tracking()
        self._reporter.begin(self._run, total, counts.step)
        with StopRequest() as request:
            while counts.epoch < self._engine.epochs:
                self._train_epoch(request)
                self._finish_epoch(self._measure() if self._is_measured() else {})
        return self._summarise()

    def _train_epoch(self, request: StopRequest) -> None:
        counts, steps = self._counts, len(self._batches)
        clock, sums, begin = Clock(self._reporter.every), self._sums, time.perf_counter()
        at = counts.epoch, counts.batch
        batches = zip(self._batches.epoch(*at), self._batches.rows(*at), strict=True)
        for (inputs, labels), rows in batches:
            before = self._engine.opt.last_step
            loss, correct = self._passes.step(inputs, labels, rows)
            record = self._engine.opt.last_step
            counts.count(record if record is not before else None, steps)  # None: it was skipped
            sums.add(loss, correct, labels.numel())
            self._companion.after_step(counts.step)
            if clock.is_due():
                self._reporter.step(counts.step, counts.epoch + 1, loss.item(), counts.percent_sam)
            if self._must_stop(request):
                counts.seconds += time.perf_counter() - begin
                self._save()
                raise Stopped(request.signum, f"at epoch {counts.epoch + 1}, step {counts.step}")
        self._companion.after_epoch(counts.epoch + 1)
        counts.seconds += time.perf_counter() - begin

    def _must_stop(self, request: StopRequest) -> bool:
        """Whether any process was asked to stop: all stop after the same step."""
        if self._accelerator.num_processes == 1:
            return request.signum != 0
        flag = torch.tensor([request.signum], device=self._accelerator.device)
        most: Tensor = self._accelerator.gather(flag).max()
        request.signum = int(most.item())
        return request.signum != 0

    def _is_measured(self) -> bool:
        done, every = self._counts.epoch + 1, self._run.training.evaluate_every
        return done % every == 0 or done == self._engine.epochs

    def _measure(self) -> dict[str, float]:
        """Loss and accuracy on what is evaluated on, of the weights that are evaluated."""
        weights = self._companion.weights()
        with shown(self._engine, weights, self._batches):
            loss, accuracy = evaluate(self._engine, self._chunks(self._held))
            if weights is not None and self._counts.epoch + 1 == self._engine.epochs:
                state = sharding.whole_model_state(self._engine.net)
                self._evaluated = {name: tensor.clone() for name, tensor in state.items()}
        return {f"{self._kind}_loss": loss, f"{self._kind}_accuracy": accuracy}

    def _chunks(self, split: AnySplit) -> Any:
        return data.evaluation_chunks(
            split,
            self._data_set,
            500,
            self._accelerator.device,
            self._accelerator.process_index,
            self._accelerator.num_processes,
            channels_last=self._run.training.channels_last,
            workers=self._run.training.workers,
        )

    def _finish_epoch(self, held: dict[str, float]) -> None:
        lr = float(self._engine.scheduler.get_last_lr()[0])
        train_loss, train_accuracy = self._sums.over_all(self._accelerator)
        self._sums = Sums(self._accelerator.device)
        recorded = self._meter.after(self._counts.epoch + 1, self._engine.net)
        learned = {"train_loss": train_loss, "train_accuracy": train_accuracy}
        line = self._counts.close_epoch(lr, learned | held | recorded)
        self._save()
        if self._tracked:
            plain = {k: v for k, v in line.items() if isinstance(v, int | float)}
            self._accelerator.log(plain, step=self._counts.step)
        self._reporter.epoch(line)

    def _save(self) -> None:
        own: dict[str, Any] = {
            "random": run_checkpoint.random_state(),
            "sums": self._sums.as_list(),
            "optimizer": sharding.own_optimizer_state(self._engine.opt) if self._sharded else None,
        }
        processes = cast(list[Any], gather_object([own]))
        model = sharding.whole_model_state(self._engine.net)
        if not self._accelerator.is_main_process:
            return
        scaler = self._accelerator.scaler
        content: dict[str, Any] = {
            "config": config.as_dict(self._run),
            "model": model,
            "optimizer": None if self._sharded else self._engine.opt.state_dict(),
            "scheduler": self._engine.scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "processes": processes,
            "progress": self._counts.as_dict(),
        }
        if lab_methods.is_own(self._run.method.name):
            content |= {
                "companion": self._companion.state_dict(),
                "evaluated": self._evaluated,
            }
        self._folder.check_is_there()
        run_checkpoint.save(self._folder.checkpoint, content)
        self._folder.write_metrics(self._counts.metrics)

    def go_on(self) -> None:
        """Continue from the checkpoint; without one (killed before the first) start again."""
        path = self._folder.checkpoint
        with files.told_of(path):
            if not path.exists():
                return
        saved = run_checkpoint.load(path)
        apart = config.differences(self._run, run_checkpoint.saved_run(path, saved))
        if apart:
            raise UsageError(f"the checkpoint is of another run: {'; '.join(apart)}")
        with run_checkpoint.taken_from(path):
            self._take(saved)

    def _take(self, saved: dict[str, Any]) -> None:
        engine = self._engine
        self._counts = Counts.from_dict(saved["progress"], len(self._batches))
        if self._counts.step > engine.total_steps:
            raise ValueError(f"progress: step {self._counts.step} is beyond the run's end")
        fitting.check_model(saved["model"], engine.net)
        sharding.load_whole_model_state(engine.net, saved["model"])
        fitting.load_scheduler(saved["scheduler"], engine.scheduler, self._counts.step)
        if self._accelerator.scaler is not None and saved["scaler"] is not None:
            self._accelerator.scaler.load_state_dict(saved["scaler"])
        before = fitting.hyperparameters(engine.opt)
        if saved["optimizer"] is not None:
            fitting.check_memory_of_base(saved["optimizer"], self._run.training)
            engine.opt.load_state_dict(saved["optimizer"])
        elif not self._sharded:
            raise ValueError("optimizer: there is none")
        self._take_own(saved["processes"])
        self._companion.load_state_dict(saved.get("companion", {}))
        rates = [float(rate) for rate in engine.scheduler.get_last_lr()]
        fitting.check_hyperparameters(engine.opt, before, rates)

    def _take_own(self, processes: list[Any]) -> None:
        """Take this process's random state and sums, if there are as many processes as before."""
        if not processes:
            raise ValueError("processes: there are none")
        if len(processes) != self._accelerator.num_processes:
            if self._counts.batch or self._sharded:
                raise UsageError(
                    f"the run stopped on {len(processes)} processes, within an epoch or with its "
                    "optimizer spread over them: go on with as many"
                )
            return
        own = processes[self._accelerator.process_index]
        if self._sharded:
            sharding.load_own_optimizer_state(self._engine.opt, own["optimizer"])
        sums = Sums(self._accelerator.device, own["sums"])
        if sums.batches != self._counts.batch:
            raise ValueError(f"sums: of {sums.batches} batches, not of {self._counts.batch}")
        run_checkpoint.restore_random_state(own["random"])
        self._sums = sums

    def _summarise(self) -> dict[str, Any]:
        counts, last = self._counts, self._counts.metrics[-1]
        skipped = self._engine.opt.skipped_steps
        summary: dict[str, Any] = {
            "method": self._run.method.name,
            "seed": self._run.seed,
            "test_accuracy": last.get("test_accuracy"),
            "validation_accuracy": last.get("validation_accuracy"),
            "test_loss": last.get("test_loss"),
            "validation_loss": last.get("validation_loss"),
            "train_loss": last["train_loss"],
            "train_accuracy": last["train_accuracy"],
            "percent_sam": counts.percent_sam,
            "steps": counts.step,
            "gradients": counts.gradients,
            "seconds": counts.seconds,
            "skipped_steps": skipped,
            "health": second_gradients.of_run(
                counts.metrics, counts.sam_steps, counts.second_seconds
            ),
            "diverged": summaries.has_diverged(counts.step, skipped, self._losses(last)),
            "parameters": self._engine.parameters,
            "processes": self._accelerator.num_processes,
            "device": self._accelerator.device.type,
            "versions": versions(),
            "config_hash": config.config_hash(self._run),
        }
        if self._companion.weights() is not None:
            summary["evaluated"] = self._companion.evaluates
        if self._companion.left_undone():
            summary["left_undone"] = self._companion.left_undone()
        if self._accelerator.is_main_process:
            self._folder.write_summary(summary)
        self._accelerator.wait_for_everyone()
        return summary

    def _losses(self, line: dict[str, Any]) -> list[float]:
        return [line[name] for name in ("train_loss", f"{self._kind}_loss")]

    def _begin_tracking(self) -> None:
        if not self._tracked:
            return
        try:
            self._accelerator.init_trackers("aesam", config.identity(self._run))
        except Exception as error:
            self._tracked = False  # nothing of it to end
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UsageError(
                f"track could not begin ({reason}): log in to that service first, or leave "
                "--track out"
            ) from error

    def close(self) -> None:
        self._reporter.end()
        if self._tracked:
            self._accelerator.end_training()
        if self._accelerator.num_processes > 1:
            del self._engine, self._passes
            self._accelerator.free_memory()
            leave_processes()


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "aesam": aesam.__version__,
        "accelerate": version("accelerate"),
    }
