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
    opt.step()"""

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
the scaler's scale was not known when needs_second_pass() decided: leave the gradients of the first
pass scaled, call opt.needs_second_pass(grad_scale=scaler.get_scale()), scale the loss of the second
pass too, and unscale after it."""

STILL_SCALED = """\
the gradients are still scaled. Call scaler.unscale_(opt), if at all, after the second pass and not
before it, then scaler.step(opt)."""

UNSYNCHRONISED = """\
needs_second_pass() inside no_sync(): each process would decide on its own gradient, and those that
disagree would wait for each other for ever. Decide after a backward() that synchronises."""

CHANGED_GRADIENTS = """\
the gradients were changed between needs_second_pass() and perturbed(). Unscale and clip after the
second pass, on the final direction."""


def frames_to_user() -> int:
    """How far up the stack the user's own line is, for a warning that points at it."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("aesam", "torch", "contextlib"):
            break
        frame, level = frame.f_back, level + 1
    return level
