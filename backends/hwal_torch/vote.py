"""How ranks agree to end within an evaluation, whose batches they do not reach together.

No collective would do: a rank may have no rows in a batch, leave the loop before another does, or not evaluate at all. So
they count in the world's store. Only once one of them has been asked to end does any wait for the others:

- a rank counts itself in when it begins an evaluation, and out when it leaves it;
- at its next batch after one has asked, if all are in, it says so and waits until each of the others has said so or is out;
- if all have said so, all end here; if one was out before it could, or does not come for some seconds, since it waits for the
  others in an `rt.mean` of the script's say, nobody does, and that or the next step decides. The first to know writes it down.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.distributed import Store  # type: ignore[attr-defined]

PAUSE = 0.002  # seconds between two looks at what the others say
WAIT = 2.0  # seconds for the others to come to their next batch


class Vote:
    """One evaluation. `name` is equal on all ranks and new each time; `asked` says whether this rank was asked to end."""

    def __init__(self, store: Store, world: int, name: str, asked: Callable[[], bool]) -> None:
        self._store = store
        self._world = world
        self._name = name
        self._asked = asked
        self._over = False
        self._count("in")

    def _count(self, what: str, more: int = 1) -> int:
        return self._store.add(f"{self._name}/{what}", more)

    def ends(self) -> bool:
        """Whether all ranks end here; asked at each batch."""
        if self._over:
            return False
        key = f"{self._name}/asked"
        if self._asked():
            self._store.set(key, "")
        elif not self._store.check([key]):
            return False
        if self._count("in", 0) < self._world:
            return False
        self._over = True
        self._count("here")
        until = time.monotonic() + WAIT
        while True:
            gone = self._count("out", 0)  # before the others: one that ends here leaves too
            here = self._count("here", 0)
            if here == self._world:
                return self._verdict("yes")
            if here + gone >= self._world or time.monotonic() > until:
                return self._verdict("no")
            time.sleep(PAUSE)

    def _verdict(self, word: str) -> bool:
        """Whether it is yes: this rank's word, unless another's was there before."""
        return bool(self._store.compare_set(f"{self._name}/verdict", "", word) == b"yes")

    def leave(self) -> None:
        """This rank's evaluation is over."""
        self._over = True
        self._count("out")
