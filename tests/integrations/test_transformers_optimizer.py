"""Where the Trainer's sharpness-aware optimizer comes from, and what is refused."""

import os
import socket
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.language import (
    arguments,
    furthest,
    gpt,
    groups,
    language_loss,
    micro_batches,
    sequences,
    train_plainly,
)
from transformers import Trainer

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin
from aesam.parts.policies import Periodic

pytestmark = pytest.mark.slow
WITHIN, RANKS = 1e-9, 2
REPLAY = {"replay": True, "max_norm": 0.3}


@pytest.fixture(autouse=True)
def accelerate_afresh():
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    pass


class AlwaysSAM(SharpnessAwareTrainer):
    sharpness_aware = "sam"


def trainer_of(model, folder, trainer=SharpnessAwareTrainer, *, changes=None, **given):
    args = arguments(folder, **(changes or {}))
    return trainer(model, args, train_dataset=sequences(), **given)


def adamw(model, **settings):
    return torch.optim.AdamW(model.parameters(), lr=0.01, **settings)


def like_the_trainer_s(model):
    """AdamW as ``args.optim`` makes it, without weight decay."""
    return adamw(model, weight_decay=0.0)


def of_parts(base, model):
    return aesam.SharpnessAware(base, model, policy=Periodic(k=3), rho=0.1)


# Made by the mixin ---------------------------------------------------------------------------

GIVEN = {
    "a name": (
        lambda _: {"sharpness_aware": "sam"},
        lambda model: aesam.SAM(like_the_trainer_s(model), model),
    ),
    "a name and settings": (
        lambda _: {"sharpness_aware": {"method": "looksam", "k": 2, "rho": 0.1}},
        lambda model: aesam.LookSAM(like_the_trainer_s(model), model, k=2, rho=0.1),
    ),
    "an attribute of the class": (
        lambda _: {"trainer": AlwaysSAM},
        lambda model: aesam.SAM(like_the_trainer_s(model), model),
    ),
    "a function": (
        lambda _: {"sharpness_aware": of_parts},
        lambda model: of_parts(like_the_trainer_s(model), model),
    ),
    "around optimizer_cls_and_kwargs": (
        lambda _: {
            "sharpness_aware": "sam",
            "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        },
        lambda model: aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model),
    ),
    "optimizer_cls_and_kwargs=(FromParams, …)": (
        lambda model: {
            "optimizer_cls_and_kwargs": (
                aesam.FromParams,
                {"method": "ae-sam", "optimizer": "adamw", "model": model, "lr": 0.01, "rho": 0.1},
            ),
        },
        lambda model: aesam.AESAM(adamw(model), model, rho=0.1, total_steps=36),
    ),
    "around optimizers=": (
        lambda model: {"sharpness_aware": "sam", "optimizers": (adamw(model), None)},
        lambda model: aesam.SAM(adamw(model), model),
    ),
    "total_steps left out": (
        lambda _: {"sharpness_aware": {"method": "ae-sam", "rho": 0.1, "delta": 0.5}},
        lambda model: aesam.AESAM(
            like_the_trainer_s(model), model, rho=0.1, delta=0.5, total_steps=36
        ),
    ),
    "optimizers=, total_steps left out": (
        lambda model: {"optimizers": (aesam.AESAM(adamw(model), model, rho=0.1, delta=0.5), None)},
        lambda model: aesam.AESAM(adamw(model), model, rho=0.1, delta=0.5, total_steps=36),
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_method_is_put_around_what_the_trainer_would_use(name, tmp_path, matrix):
    given, expected = GIVEN[name]
    model, twin = gpt(), gpt()
    plain = expected(twin)
    trainer = trainer_of(model, tmp_path, **given(model))
    trainer.train()
    train_plainly(twin, plain, 2 * groups())
    found = aesam.unwrap(trainer.optimizer)
    assert type(found) is type(plain)
    assert found.policy == plain.policy
    assert 0.0 < found.sam_fraction == plain.sam_fraction
    assert furthest(model, twin) < WITHIN
    matrix.right("Transformers' Trainer", f"the optimizer: {name}", within=WITHIN)


def test_training_goes_on_with_the_same_optimizer(tmp_path):
    model = gpt()
    trainer = trainer_of(model, tmp_path, sharpness_aware="sam", changes={"max_steps": 3})
    trainer.train()
    before = aesam.unwrap(trainer.optimizer)
    trainer.train()
    assert aesam.unwrap(trainer.optimizer) is before
    assert before.last_step.index == 5


def test_total_steps_follow_a_batch_size_that_the_trainer_finds(tmp_path):
    class TooLarge(SharpnessAwareTrainer):
        seen = 0

        def compute_loss(self, model, inputs, *args, **kwargs):
            self.seen += 1
            if len(inputs["input_ids"]) > 2 and self.seen == 2:  # inside a group of micro-batches
                raise RuntimeError("CUDA out of memory.")
            return super().compute_loss(model, inputs, *args, **kwargs)

    model, twin = gpt(), gpt()
    changes = {
        "auto_find_batch_size": True,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
    }
    given = {"method": "ae-sam", "rho": 0.1, "delta": 0.5}
    trainer = trainer_of(model, tmp_path, TooLarge, changes=changes, sharpness_aware=given)
    trainer.train()
    steps = 2 * groups(3, micro_batches(size=3))  # Accelerate's next try
    plain = aesam.AESAM(like_the_trainer_s(twin), twin, rho=0.1, delta=0.5, total_steps=len(steps))
    train_plainly(twin, plain, steps)
    assert aesam.unwrap(trainer.optimizer).policy.total_steps == len(steps)
    assert furthest(model, twin) < WITHIN


# Several processes ---------------------------------------------------------------------------


def train_rank(rank, port, folder, results):
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS), OMP_NUM_THREADS="1",
    )  # fmt: skip
    changes = {
        "ddp_backend": "gloo", "ddp_find_unused_parameters": False,
        "gradient_accumulation_steps": 2,
    }  # fmt: skip
    for kind, own, theirs in ((SharpnessAwareTrainer, {}, 0.3), (Trainer, REPLAY, 0.0)):
        model = gpt()
        opt = aesam.AESAM(adamw(model), model, rho=0.1, delta=0.5, total_steps=10, **own)
        setting = {**changes, "max_grad_norm": theirs}
        trainer = trainer_of(model, folder, kind, changes=setting, optimizers=(opt, None))
        trainer.train()
        ends = [p.detach().numpy() for p in model.parameters()]
        results.put((ends, type(trainer.model_wrapped).__name__, opt.sam_fraction))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one_on_their_batches_together(tmp_path, matrix):
    twin = gpt()
    plain = aesam.AESAM(adamw(twin), twin, rho=0.1, delta=0.5, total_steps=10)
    train_plainly(twin, plain, 2 * groups(2 * RANKS), max_norm=0.3)
    context = mp.get_context("spawn")
    results = context.Queue()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = [
        context.Process(target=train_rank, args=(r, port, tmp_path, results)) for r in range(RANKS)
    ]
    try:
        for worker in workers:
            worker.start()
        found = [results.get(timeout=240) for _ in range(2 * RANKS)]
    finally:
        for worker in workers:
            worker.join(30)
            worker.kill()
    for ends, wrapper, share in found:
        assert wrapper == "DistributedDataParallel"
        assert 0.0 < share == plain.sam_fraction < 1.0
        for left, right in zip(ends, twin.parameters(), strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right.detach(), rtol=0, atol=1e-10)
    use = "DDP, two processes, accumulation"
    matrix.right("Transformers' Trainer", use, within=1e-10)
    matrix.right("Transformers' Trainer, replay=True", use, within=1e-10)


# Refused -------------------------------------------------------------------------------------


def test_a_sharpness_aware_optimizer_in_a_plain_trainer_is_refused(tmp_path, matrix):
    model = gpt()
    trainer = trainer_of(
        model, tmp_path, Trainer, optimizers=(aesam.SAM(adamw(model), model), None)
    )
    with pytest.raises(RuntimeError, match="nothing to apply") as error:
        trainer.train()
    matrix.refused("Transformers' Trainer", "without the mixin and without replay", error.value)


def test_the_mixin_without_a_method_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r'SharpnessAwareTrainer\(\.\.\., sharpness_aware="ae-sam"\)'
    ):
        trainer_of(gpt(), tmp_path).train()


def test_a_method_around_a_method_is_refused(tmp_path):
    model = gpt()
    given = {"optimizers": (aesam.SAM(adamw(model), model), None), "sharpness_aware": "ae-sam"}
    with pytest.raises(ValueError, match="a SAM already, and sharpness_aware='ae-sam' was given"):
        trainer_of(model, tmp_path, **given).train()


@pytest.mark.parametrize("given", [{"rho": 0.1}, 3, lambda base, _: base])
def test_what_names_no_method_is_refused(given, tmp_path):
    with pytest.raises(TypeError, match="sharpness_aware must be the name of a method"):
        trainer_of(gpt(), tmp_path, sharpness_aware=given).train()


def test_methods_that_select_samples_are_refused(tmp_path, matrix):
    with pytest.raises(ValueError, match="ESAM selects samples") as error:
        trainer_of(gpt(), tmp_path, sharpness_aware="esam").train()
    matrix.refused("Transformers' Trainer", "ESAM", error.value)


def test_the_mixin_comes_first():
    with pytest.raises(TypeError, match=r"class Wrong\(SharpnessAwareMixin, Trainer\)"):

        class Wrong(Trainer, SharpnessAwareMixin):
            pass


@pytest.mark.parametrize("optim", ["lomo", "galore_adamw_layerwise"])
def test_optimizers_that_step_during_backward_are_refused(optim, tmp_path, matrix):
    changes = {"optim": optim, "optim_target_modules": ["c_attn"]}
    trainer = trainer_of(gpt(), tmp_path, changes=changes, sharpness_aware="sam")
    with pytest.raises(ValueError, match=f"optim='{optim}' changes the weights") as error:
        trainer.create_optimizer()
    matrix.refused("Transformers' Trainer", f"optim={optim!r}", error.value)


def test_deepspeed_is_refused(tmp_path, matrix):
    trainer = trainer_of(gpt(), tmp_path, sharpness_aware="sam")
    trainer.is_deepspeed_enabled = True  # the package itself needs a GPU's compiler
    with pytest.raises(RuntimeError, match="use DDP or FSDP") as error:
        trainer.create_optimizer()
    matrix.refused("Transformers' Trainer", "DeepSpeed", error.value)


class MakesItsOwnInputs(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = model(**inputs, num_items_in_batch=num_items_in_batch).loss
        self.accelerator.backward(loss)
        return loss.detach()


def test_a_step_whose_inputs_cannot_be_known_is_refused(tmp_path):
    class Unrepeatable(SharpnessAwareMixin, MakesItsOwnInputs):
        pass

    trainer = trainer_of(gpt(), tmp_path, Unrepeatable, sharpness_aware="sam")
    with pytest.raises(
        RuntimeError, match=r"Unrepeatable\.training_step does not prepare its inputs"
    ):
        trainer.train()


def test_inputs_that_are_written_to_are_refused(tmp_path):
    class Masks(SharpnessAwareTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            inputs["input_ids"][:, 0] = 1
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = trainer_of(gpt(), tmp_path, Masks, sharpness_aware="sam")
    with pytest.raises(RuntimeError, match=r"writes to inputs\['input_ids'\] in place"):
        trainer.train()


def test_inputs_that_are_generated_after_preparing_are_refused(tmp_path, matrix):
    class Dreams(SharpnessAwareTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            with torch.no_grad():
                longer = model.generate(inputs["input_ids"], max_new_tokens=4, do_sample=True)
            return super().compute_loss(
                model, {"input_ids": longer, "labels": longer}, *args, **kwargs
            )

    given = {"method": "sam", "rho": 5.0}
    trainer = trainer_of(gpt(), tmp_path, Dreams, sharpness_aware=given)
    with pytest.raises(RuntimeError, match="Dreams gives the model other inputs") as error:
        trainer.train()
    matrix.refused("Transformers' Trainer", "inputs generated in compute_loss", error.value)


def test_inputs_that_are_prepared_twice_are_seen_twice(tmp_path):
    class Careful(SharpnessAwareTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            inputs = self._prepare_inputs({**inputs, "input_ids": (inputs["input_ids"] + 1) % 32})
            return super().compute_loss(model, inputs, *args, **kwargs)

    def loss(model, part, group):
        return language_loss(model, {**part, "input_ids": (part["input_ids"] + 1) % 32}, group)

    model, twin = gpt(), gpt()
    opt, plain = (aesam.SAM(adamw(m), m, rho=0.1) for m in (model, twin))
    trainer_of(model, tmp_path, Careful, optimizers=(opt, None)).train()
    train_plainly(twin, plain, 2 * groups(), loss=loss)
    assert furthest(model, twin) < WITHIN


def test_each_model_of_model_init_has_an_optimizer_of_its_own(tmp_path):
    changes = {"max_steps": 2}
    given = {"model_init": partial(gpt, 0.0), "sharpness_aware": "sam"}
    trainer = trainer_of(None, tmp_path, changes=changes, **given)
    found = []
    for _ in range(2):
        trainer.train()
        found.append(aesam.unwrap(trainer.optimizer))
        assert found[-1].model is trainer.model
        assert found[-1].last_step.index == 1
    assert found[0] is not found[1]
