"""One job at a time beside the main thread: a checkpoint is written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs a job on a thread of its own. Its error comes out of the next wait(); it is never lost.

    The thread is no daemon: the interpreter does not end before the job does.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether an error waits to be raised."""
        return self._error is not None

    def start(self, job: Callable[[], None]) -> None:
        """Waits for the job before, raises its error, and starts this one."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(job,), name="hwal-background")
        thread.start()  # which fails where there is no memory for its stack: there is none to wait for then
        self._thread = thread

    def run(self, job: Callable[[], None]) -> None:
        """Runs a job right here; its error, too, comes out of the next wait()."""
        self.wait()
        self._run(job)

    def wait(self) -> None:
        """Returns when no job is running. Raises the error of the last one, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
