"""What users are told: errors of several lines, and whose line of code a warning points at."""

import sys

NOTHING_DECIDED = """\
step() has nothing to apply: no closure was given and nothing was decided since the last step. Use
    opt.step(closure)             # the closure clears the gradients, computes the loss, calls
                                  # backward() and returns the loss; it runs once or twice
or own the passes:
    loss.backward()
    if opt.needs_second_pass():
        with opt.perturbed():
            ...                   # forward and backward again, on the same batch
    opt.step()
or, where a trainer calls step() by itself, pass replay=True to the method (and the model). There
are also aesam.integrations.lightning.SharpnessAwareCallback, which a loss scaler in Lightning
needs, and aesam.integrations.transformers.SharpnessAwareMixin."""

NO_BACKWARD = """\
step(closure) ran the closure, which ran no backward() (Lightning's manual optimization hands an
empty one to a bare step()): the closure clears the gradients, computes the loss, calls backward()
and returns the loss. If the loop runs backward() itself and calls step() after it, pass
replay=True to the method, or own the passes: needs_second_pass(), perturbed()."""

CLOSURE_AFTER_DECISION = """\
step(closure) after needs_second_pass() had decided, and the closure changed the gradients: give
step() no closure after owning the passes, or let step(closure) own them alone. The decision was
discarded."""

OTHER_MICRO_BATCHES = """\
the second pass ran {second} backward passes where the gradient of the first had {first}: both
must see the same micro-batches. The step was discarded. When accumulating, keep the micro-batches
and run all of them in both passes, or let step() without a closure do it (replay=True). In a
trainer:
    Lightning      callbacks=[aesam.integrations.lightning.SharpnessAwareCallback()]
    Transformers   class T(aesam.integrations.transformers.SharpnessAwareMixin, Trainer)
    Accelerate     aesam.integrations.accelerate.step(accelerator, opt, micro_batches, loss_fn)"""

OTHER_SPLITS = """\
the gradient is of {found} backward passes where it should be of {splits} splits of the batch, each
with a forward and a backward of its own: use step(losses), which makes them; or make {splits}
micro-batches of each batch and step() once for all, each mean loss divided by {splits}; or leave
splits at 1."""

EDITED_GRADIENTS = """\
the gradients were changed between backward() and the decision, as clipping does: the decision
needs the whole gradient. Clip the final direction: pass max_norm= to the method, in place of
clip_grad_norm_, Accelerate's and Fabric's clipping, skorch's GradientNormClipping or
Transformers' max_grad_norm (set that to 0); or clip between perturbed() and step(). The trainer
itself may clip in Lightning's automatic optimization with
callbacks=[aesam.integrations.lightning.SharpnessAwareCallback()] and in Transformers with
aesam.integrations.transformers.SharpnessAwareMixin. With replay=True a loss scaler unscales in
scaler.step(opt), not before a bare opt.step(). Gradients that were changed on purpose, averaged
by hand for instance, are taken by needs_second_pass(edited=True) or step(closure, edited=True)."""

UNSCALED_BEFORE = """\
the gradients were unscaled between backward() and the decision: leave them scaled, call
opt.needs_second_pass(grad_scale=scaler.get_scale()), and unscale after the second pass."""

IN_ACCUMULATE = """\
this closure ran {found} backward pass where Accelerate accumulates over {steps} micro-batches:
its step(closure) is not called while gradients are not synchronised, so the other micro-batches
are never run. Use aesam.integrations.accelerate.step(accelerator, opt, micro_batches, loss_fn),
or replay=True and step() without a closure."""

NO_GRADIENT = """\
step() found no gradient in any p.grad: call backward() before it, and zero_grad() after step() or
before backward()."""

LOST_GRADIENTS = """\
replay=True: gradients that backward() left were taken away before step() (p.grad = None), which the
second pass would bring back: freeze with requires_grad_(False), or use step(closure)."""

NOT_RECORDED = """\
replay=True found a gradient that came through no recorded forward of the model: call the model
itself (not model.forward() or one of its submodules), the one that was passed as model; do not
change its output in place; give torch.compile's module as model if that is what you call; and
leave no backward() outside the model (a penalty on the weights for instance). Outputs are found in
tensors, tuples, lists, dicts and dataclasses. Of two optimizers that replay one model make one
(aesam.Together). Or put all of it into one module that returns the loss, or use step(closure)."""

BYPASSED = """\
replay=True cannot make the gradient of {names} again: part of it did not come through the model's
recorded forwards (a penalty outside the model, submodules called directly, an output changed in
place), or the weights, random numbers or state that they used are others now (another optimizer
stepped first). Put all of it into one module that returns the loss and pass that as model, or use
step(closure)."""

DOUBLE_BACKWARD = """\
replay=True cannot replay a backward with create_graph=True (gradient penalties): use
step(closure)."""

STALE_FORWARD = """\
replay=True: a backward() after step() was of a forward before it, at weights that are gone. Run
forward and backward on the same side of step(), or use step(closure)."""

INSIDE_DDP = """\
replay=True: the model that was given is inside of the module that DDP wraps, which takes other
inputs and cannot be run again with those of the model: wrap the model itself in DDP and make the
loss outside of it, or use step(closure)."""

CHANGED_INPUT = """\
replay=True: an input of the model was changed in place since its forward, so it cannot be run
again: pass the model a copy, or use step(closure)."""

CHANGED_OUTPUT = """\
replay=True: an output of the model was changed in place, which hides its gradient: write
out = out.relu() for out.relu_(), or use step(closure)."""

CHANGED_MODE = """\
replay=True: the model was switched between train() and eval() since its forward, so it cannot
be run again: switch after step()."""

CHAINED_FORWARDS = """\
replay=True: an input of the model was computed from parameters that are trained (its own
output, fed back, for instance). Put the whole computation into one module and pass that as
model, or use step(closure)."""

LOSS_INSIDE = """\
functional SAM keeps the loss's slope at the model's outputs, and this model returns the loss
itself, one number, whose slope is 1 everywhere: it would be SAM. Give the module that returns the
logits as model and make the loss outside of it (Transformers' Trainer: compute_loss_func=), or use
SAM. If that number is the output for a batch of one row, keep its dimensions: squeeze(-1), not
squeeze()."""

LOSS_UNKNOWN = """\
{policy!r} looks at the loss, which a bare step() does not know: use step(closure), or
needs_second_pass(loss=...) before step()."""

EDITED_FIRST_ONLY = """\
edited=True: gradients that were changed after backward() cannot be made by functional SAM, which
runs the model again by itself and cannot do the same to the second gradient. Change the final
direction instead, after needs_second_pass() or in a step hook, or use SAM."""

UNDECIDED = """\
perturbed() without a decision: call opt.needs_second_pass() after the first backward(), and enter
perturbed() only if it returned True"""

NO_SECOND_PASS = """\
perturbed() is not needed now: needs_second_pass() returned False, or the second pass was made
already. Call opt.step() next."""

CLOSURE_IN_SCALER = """\
scaler.step(opt, closure) cannot unscale the gradients that the closure makes: call
opt.step(closure, scaler=scaler), then scaler.update()"""

SCALE_NOT_GIVEN = """\
the scaler's scale was not known when needs_second_pass() decided: leave the gradients of the
first pass scaled, call opt.needs_second_pass(grad_scale=scaler.get_scale()), scale the loss of
the second pass too, and unscale after it."""

STILL_SCALED = """\
the gradients are still scaled. Call scaler.unscale_(opt), if at all, after the second pass and not
before it, then scaler.step(opt)."""

MOVES_FIRST = """\
this method moves the weights before the first gradient: use `with opt.first_pass():` around forward
and backward, or step(closure); or give the model, whose own forward then moves them."""

BROUGHT_BACK = """\
this method moves the weights for a training forward, and they were brought back to w before its
backward(): by a forward in evaluation mode or without gradients, state_dict(), or a call of the
optimizer in between (step() of the batch before); or backward() ran a second time. Evaluate, save
and step before the training forward or after its backward(); of several losses make one backward().
A sub-batch is of one training forward: another one before backward() brings them back too."""

NOT_MOVED_FOR = """\
step() found a gradient of no training forward of the model, so that it may not be taken where this
method takes it: call the model itself (not model.forward() or one of its submodules), the one that
was passed as model, in training mode; give torch.compile's module as model if that is what you
call; outputs are found in tensors, tuples, lists, dicts and dataclasses. Or use
`with opt.first_pass():` around forward and backward, or step(closure)."""

NO_LOSS_RETURNED = """\
replay=True with a sub-batch takes the gradient of some rows in the model's own forward, and so
needs a model that returns the loss: one number, or an output that has it as .loss. This one does
not. Put the loss into a module, give that as model and call it in training,
    class WithLoss(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net
        def forward(self, x, y):
            return torch.nn.functional.cross_entropy(self.net(x), y)
or use opt.step(losses) without replay."""

LOSS_OUTSIDE = """\
replay=True with a sub-batch: the backward() began at another output of the model than its loss,
whose gradient on some rows was ascended along. Backpropagate the loss that the model returns, or
use opt.step(losses) without replay."""

NO_ROWS = """\
replay=True with a sub-batch found no rows in what the model is given: tensors whose first
dimension is the batch, in arguments, tuples, lists, dicts and dataclasses. Give it such, or use
opt.step(losses) without replay."""

WHICH_ROWS = """\
replay=True with a sub-batch takes rows of those tensors that have as many as most have, and as many
tensors that the model is given have {one} as have {other}: which of them is the batch? Give it
tensors whose first dimension is the batch (batch_first=True), and keep others, class weights for
instance, in the model; or use opt.step(losses) without replay."""

OF_SOME_ROWS = """\
This came of the forward that sub-batch ascent (replay=True) makes on some rows of the batch: of
each tensor argument that has as many rows as most have. If the model cannot run on them, use
opt.step(losses) without replay."""

SEVERAL_FORWARDS = """\
replay=True with a sub-batch ascends for one training forward a step, and this gradient is of
several (accumulation): each had rows, a decision and a place of its own. Give all rows to one
forward; or own the passes: inside `with opt.first_pass():` backpropagate the rows
opt.parts.samples.first_rows of every micro-batch, inside `with opt.perturbed():` all of them."""

DECIDES_IN_FORWARD = """\
replay=True with a sub-batch decides in the model's training forward, and there was none: call the
model itself, the one that was passed as model, in training mode, then backward() and step(); give
torch.compile's module as model if that is what you call. To own the passes use
`with opt.first_pass():` around the first one."""

REPLICATED = """\
torch.nn.DataParallel runs copies of the weights, which the forward of a copy cannot move: use
DistributedDataParallel, or one device."""

NO_LOGITS = """\
this method compares rows of logits, one row of two or more numbers for each sample, and the
model returned {found}. Give a model that returns such logits, or an output with the name `logits`
(and the loss by the name `loss`, as Transformers' models do for classes of whole samples)."""

OTHER_ITEMS = """\
the model's loss is a sum over its {rows} samples divided by {items:g} (num_items_in_batch): a part
of a mean over micro-batches or processes, in which the weight of this method's term is not known.
Accumulate nothing, and set average_tokens_across_devices=False."""

OTHER_SHAPE = """\
the averaged weights gave outputs of another shape than the weights on the same inputs, {shapes}: a
model whose shapes are random cannot be compared with its average."""

INPUT_WRITTEN = """\
the model writes to its inputs in place, so that its average and the model would not see the same
ones: let it work on a copy of them."""

NOT_COMPARED = """\
step() found a gradient that came through no training forward of the model, so that this method's
term is not in it: call the model itself (not model.forward() or one of its submodules), the one
that was passed as model, in training mode; leave no backward() outside of it; and where the model
returns its loss, backpropagate that."""

COMPARED_SEVERAL = """\
this method's term is of one forward and one backward() a step, and the gradient is of {found}: how
the losses of micro-batches are weighted is not known, so the term's weight is not either. Use one
batch a step (accumulation 1), and one forward of the model in it."""

COMPARED_UNSCALED = """\
the loss had the factor {scale:g} of a loss scaler when it was backpropagated, which this method's
term did not know: use opt.step(closure, scaler=scaler), or a model that returns the loss beside its
logits, or train without a scaler (bfloat16 needs none)."""

COMPARED_TWICE_DIFFERENTIATED = """\
this method's term has no second derivative: a backward with create_graph=True (gradient penalties)
through the model's outputs is refused."""

UNSYNCHRONISED = """\
needs_second_pass() inside no_sync(): each process would decide on its own gradient, and those that
disagree would wait for each other for ever. Decide after a backward() that synchronises."""

PARAMETERS_GIVEN = """\
{method} is wrapped around an optimizer, and was given parameters. Write
    aesam.{method}({optimizer}(model.parameters(){theirs}), model{own})
or, where a framework makes the optimizer as cls(params, **settings),
    aesam.FromParams(params, method="{name}", optimizer={by_name}, model=model{own}{theirs})"""

ADAPTIVE = """\
adaptive=True is ASAM, a method of its own: aesam.ASAM(optimizer, model, rho=0.5). For other methods
it is a part: SharpnessAware(..., ascent=aesam.parts.scaled_ascents.WithWeights())."""

MODEL_NOT_GIVEN = """\
the model was not given, so if it has BatchNorm, its statistics are counted twice on steps with a
second gradient: pass model=..., or model=None to say that there is nothing to guard"""

NO_SECOND_GRADIENT = """\
no parameter has a gradient after perturbed(): run the forward again on the same batch and call
backward() inside the block. The weights are as before, and the step was discarded."""

CHANGED_GRADIENTS = """\
the gradients were changed between needs_second_pass() and perturbed(). Unscale and clip after the
second pass, on the final direction."""

LOST_STATISTICS = """\
the second pass wrote to frozen parameters that no earlier pass had written, so what they held
before is lost: {names}. Register what a forward pass writes as buffers, or give it a value in the
first forward pass too; the optimizer guards these from now on."""

LOCAL_ASCENT_SHARDED = """\
local_ascent=True needs each process to hold the whole gradient, as in DDP. Of sharded parameters
(FSDP, DTensor) no process ever has its own: leave local_ascent out there."""

LOCAL_ASCENT_UNHEARD = """\
local_ascent=True has not heard this step's gradients as they arrived: there was no backward() since
the last step, or parameters were added, replaced or unfrozen, or the optimizer copied, after
zero_grad(). Call opt.zero_grad() or enter `with opt.first_pass():` before the first backward()."""


def of_functional_sam(text: str) -> str:
    """What is said to who asked for a replay, in words for who asked for functional SAM.

    Its second gradient is never the closure's, so that a closure is no way out.
    """
    for asked, functional in (
        ("replay=True", "functional SAM"),
        ("use step(closure)", "use SAM with step(closure)"),
        ("Use step(closure)", "Use SAM with step(closure)"),
    ):
        text = text.replace(asked, functional)
    return text


def frames_to_user() -> int:
    """How far up the stack the user's own line is, for a warning that points at it."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("aesam", "torch", "contextlib"):
            break
        frame, level = frame.f_back, level + 1
    return level
