"""The blocks of a step that training is inside of, and how all they change is put back.

Python may be interrupted before any line. So whatever a block changes is noted *before* it is
done, putting back may be cut short and done again, and is tried at two levels: one interrupt
cannot hit both.
"""

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

Entered = TypeVar("Entered")
Result = TypeVar("Result")


class Block:
    """One of them, by the name that users know; ``if_failed`` runs where it does not end well."""

    def __init__(self, name: str, if_failed: Callable[[], None] | None = None) -> None:
        self.name = name
        self.is_displaced = False
        self.if_failed = if_failed
        self.manager: weakref.ref[Within[Any]] | None = None
        self._undo: list[Callable[[], None]] = []

    def will(self, undo: Callable[[], None]) -> None:
        """Note how something is put back, before it is done; ``undo`` may be called again."""
        self._undo.append(undo)

    def put_back(self) -> None:
        """Undo everything, the last first; cut short and called again it goes on."""
        failed: Exception | None = None
        while self._undo:
            try:
                self._undo[-1]()
            except Exception as error:  # the others still go back
                failed = failed or error
            self._undo.pop()
        self.is_displaced = False
        if failed is not None:
            raise failed

    def was_left(self) -> bool:
        """Whether an interrupt left the ``with`` statement before it could tell us."""
        if self.manager is None:
            return False
        manager = self.manager()
        if manager is None:
            return True
        errors = (sys.exc_info()[1], getattr(sys, "last_value", None))
        return any(error is not None and _ended(manager, error) for error in errors)


def _ended(manager: "Within[Any]", error: BaseException) -> bool:
    """Whether an error has come out of the manager's ``__exit__``."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "__exit__" and frame.f_locals.get("self") is manager:
            return True
        trace = trace.tb_next
    return False


class Blocks:
    """The stack of open blocks. ``end_step`` ends a step that is under way when one fails."""

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._open: list[Block] = []
        self._end_step = end_step

    @property
    def name(self) -> str | None:
        """Of the innermost block, None outside of all."""
        return self._open[-1].name if self._open else None

    @property
    def are_displaced(self) -> bool:
        """Whether the weights are somewhere else in any of them."""
        return any(block.is_displaced for block in self._open)

    def push(self, block: Block) -> Block:
        self._open.append(block)
        return block

    def close(self, block: Block) -> None:
        """Put back what the block changed; it ended well."""
        block.put_back()
        block.manager = None
        self._open.remove(block)

    def holds(self, block: Block) -> bool:
        return block in self._open

    def drop_left(self) -> None:
        """End the blocks that an interrupt left open."""
        while self._open and self._open[-1].was_left():
            self._unwind(len(self._open) - 1)

    def manager_is_gone(self, _: object) -> None:
        with suppress(BaseException):  # nobody hears it here, and the next call does it again
            self.drop_left()

    def safely(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do ``work``; where anything ends it early, blocks that it opened are put back.

        So is what a ``torch.no_grad()`` inside has changed, and the step under way ends.
        """
        depth, gradients = len(self._open), torch.is_grad_enabled()
        try:
            try:
                return work(*args)
            except BaseException:
                self._recover(depth, gradients)
                raise
        except BaseException:
            self._recover(depth, gradients)  # an interrupt may have cut the first one short
            raise

    def fail(self, block: Block) -> None:
        """End a block that an error left, and all inside of it, and the step under way."""
        try:
            self._fail(block)
        except BaseException:
            self._fail(block)
            raise

    def _fail(self, block: Block) -> None:
        self._unwind(self._open.index(block) if self.holds(block) else len(self._open))

    def _recover(self, depth: int, gradients: bool) -> None:
        torch.set_grad_enabled(gradients)
        self._unwind(depth)

    def _unwind(self, depth: int) -> None:
        while len(self._open) > depth:
            block = self._open[-1]
            block.put_back()
            if block.if_failed is not None:
                block.if_failed()
            block.manager = None
            self._open.pop()
        self._end_step()


class Within(Generic[Entered]):
    """A block of a step as a ``with`` statement: ``enter`` opens one, ``leave`` ends it well.

    ``check`` refuses it before anything is changed; ``enter`` is given what it returns. ``look``
    is the last that is done while all is as in the block.
    """

    def __init__(
        self,
        blocks: Blocks,
        check: Callable[[], Any],
        enter: Callable[[Any], tuple[Block, Entered]],
        leave: Callable[[], None] | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._blocks, self._check, self._enter, self._leave = blocks, check, enter, leave
        self._look = look
        self._block: Block | None = None
        self._gradients = True

    def __enter__(self) -> Entered:
        self._gradients = torch.is_grad_enabled()
        return self._blocks.safely(self._open, self._check())

    def _open(self, checked: Any) -> Entered:
        self._block, entered = self._enter(checked)
        # An interrupt at the very beginning of __exit__ leaves the block open. It ends with the
        # manager, which the error's traceback may hold, or with the next call.
        self._block.manager = weakref.ref(self, self._blocks.manager_is_gone)
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = self._block
        if block is None or not self._blocks.holds(block):
            return  # an interrupt ended it
        try:
            if error is None:
                self._blocks.safely(self._close, block)
            else:
                self._fail(block)
        except BaseException:
            self._fail(block)
            raise

    def _fail(self, block: Block) -> None:
        """End it after an error, and a ``torch.no_grad()`` that an interrupt may have left."""
        try:
            self._blocks.fail(block)
        finally:
            torch.set_grad_enabled(self._gradients)

    def _close(self, block: Block) -> None:
        if self._look is not None:
            self._look()
        block.put_back()
        if self._leave is not None:
            self._leave()
        self._blocks.close(block)
