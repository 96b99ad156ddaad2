"""--micro-batch auto on a rank: which size a training feed begins with, and when a size has proved to fit (hwal.micro_batch).

All ranks reckon alike: rank 0 reads what is known when a feed begins, and what they learn then, that a global batch is done,
all of them learn. A rank that runs out of memory leaves word in the run's folder before it ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from hwal import shortage
from hwal.display import size
from hwal.env import spelled
from hwal.errors import OutputError
from hwal.host import Host
from hwal.micro_batch import Tried, cache_path, cached, read_tries, remember, write_tries

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

PROOF = 2  # global batches after which a size fits: the optimizer's state, made in the first, is there in the second


class Search:
    """The micro-batch of one run.

    Attributes:
        tried: what is known for the feed in progress; None before the first.
    """

    def __init__(self, rt: SharedTorchRuntime) -> None:
        self._rt = rt
        self.tried: Tried | None = None
        self._grown = False
        self._from_cache = False
        self._works = False
        self._done = 0  # global batches with this size
        self._proved = False

    def begin(self, data: Any) -> None:
        """A training feed begins. Every rank calls it."""
        rt = self._rt
        batch = rt.job.settings.global_batch or getattr(data, "batch_size", None)
        key = self._key(batch)
        share = None if batch is None else -(-batch // rt.dp_size)
        before = self.tried  # rank 0 compares keys: those of machines that are not alike differ
        self.tried = rt.channel.ask(lambda: before if before and before.key == key else self._known(key, share))
        if before != self.tried or self.tried.next() != self.tried.trying:
            self._take()
        self.at_work(True)

    @property
    def proved(self) -> bool:
        """Whether nothing is left to find out about this size."""
        return self._proved

    def at_work(self, works: bool) -> None:
        """Whether a forward of training may be at work: what the kernel kills while none is says nothing of its size."""
        if self.tried is not None and works != self._works:
            self._works = works
            self._keep()

    def step(self) -> bool:
        """A global batch is done; whether the next one is to be cut into larger forwards."""
        if self._proved or self.tried is None:
            return False
        self._done += 1
        rows = self.tried.trying or self.tried.share
        if self._done < PROOF or rows is None:
            return False
        self.tried = self.tried.fitted(rows)
        if self.tried.settled:
            self._settle(rows)
            return False
        self._take()
        self._rt.say(f"micro-batch {rows} fits; tries {self.tried.trying}")
        self._grown = True
        return True

    def grown(self) -> bool:
        """Whether that was so since this was asked last."""
        grown, self._grown = self._grown, False
        return grown

    def failed(self, rows: int) -> int | None:
        """Leaves word that forwards of `rows` ran out of memory; returns the size that is to be tried instead, 0 where even one
        row was too much, None where nobody is searching or the word cannot be left."""
        if self.tried is None:
            return None
        known = read_tries(self._rt.run_dir)
        tried = known.get(self.tried.key, self.tried).failed(rows)
        with suppress(OSError):
            write_tries(self._rt.run_dir, {**known, tried.key: tried})
            return tried.next()
        return None

    def _take(self) -> None:
        """Goes on with the size that is next."""
        assert self.tried is not None
        rows = self.tried.next()
        self.tried = replace(self.tried, trying=rows)
        self._done, self._proved, self._works = 0, False, True
        self._rt.cut = replace(self._rt.cut, micro_batch=max(rows, 1) if rows is not None else None)
        self._keep()

    def _keep(self) -> None:
        """Rank 0 leaves in the run's folder what is known and tried now. What another rank said meanwhile stays."""
        tried, run_dir = self.tried, self._rt.run_dir
        if not self._rt.is_main or tried is None:
            return
        known = {key: replace(other, trying=None) for key, other in read_tries(run_dir).items()}
        before = known.get(tried.key)
        if before is not None and before.fails is not None and tried.trying is not None and before.fails <= tried.trying:
            tried = before
        if not self._works:
            tried = replace(tried, trying=None)
        try:
            write_tries(run_dir, {**known, tried.key: tried})
        except OSError as error:
            self._rt.say_once(f"the search for a micro-batch cannot be kept in {run_dir}: {error.strerror}")

    def _settle(self, rows: int) -> None:
        assert self.tried is not None
        self._proved = True
        self._keep()
        if not self._rt.is_main:
            return
        path = cache_path(os.environ)
        known, _ = cached(path, self.tried.key)
        if known != rows and (wrong := remember(path, self.tried.key, rows)):
            self._rt.say(wrong)
        if not self._from_cache:
            self._tell(rows, self._why(rows))

    def _why(self, rows: int) -> str:
        assert self.tried is not None
        if self.tried.fails is not None:
            return f"the largest found that fits: {self.tried.fails} did not"
        return "all of a rank's rows fit" if rows == self.tried.share else "fits"

    def _tell(self, rows: int, why: str) -> None:
        """The decision, with its reason: to the person, and into plan.json."""
        rt = self._rt
        rt.say_once(f"micro-batch {rows}: {why}")
        try:
            rt.write_plan(**rt.decided, micro_batch=rows, notes=(*rt.job.plan.notes, f"micro-batch {rows}: {why}"))
        except OutputError as error:
            rt.say_once(f"plan.json does not have it: {error.what}")

    def _known(self, key: str, share: int | None) -> Tried:
        """On rank 0: what this run has tried, else what another found."""
        if (own := read_tries(self._rt.run_dir).get(key)) is not None:
            return own
        path = cache_path(os.environ)
        rows, wrong = cached(path, key)
        if wrong:
            self._rt.say(wrong)
        if rows is None:
            return Tried(key, share)
        rows = min(rows, share or rows)
        self._from_cache = True
        self._tell(rows, f"as found before ({path}); {spelled('micro_batch', 'N')} overrides")
        return Tried(key, share, fits=rows, settled=True)

    def _key(self, batch: int | None) -> str:
        """What a choice depends on, as far as it is known before a batch is read."""
        rt, settings = self._rt, self._rt.job.settings
        parameters = [(name, tuple(p.shape), p.requires_grad) for name, p in rt.parameters().items()]
        models = " + ".join(type(model).__name__ for model in rt.models)
        optimizers = " + ".join(type(optimizer).__name__ for optimizer in rt.optimizers)
        count = sum(p.numel() for p in rt.parameters().values())
        hardware = rt.job.hardware
        limits = [limit.bytes for limit in shortage.limits(Host())] if rt.device.type == "cpu" else []
        parts = [
            f"{models} {count} #{sha256(repr(parameters).encode()).hexdigest()[:12]} {optimizers}",
            f"{hardware.name or hardware.backend} {size(min(limits, default=hardware.memory_bytes))}",
            rt.job.plan.precision.value,
            f"{rt.strategy_decision.value} × {rt.world_size}",
            f"global batch {batch}",
            *(name for name, on in (("grad-checkpoint", settings.grad_checkpoint), ("compile", settings.compile)) if on),
        ]
        return "; ".join(parts)
