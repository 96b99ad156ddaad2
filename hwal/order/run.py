"""What a run takes when no devices are named: whole ones of one kind that nobody else uses, in their best ring."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.order.graph import graph
from hwal.order.kinds import fastest
from hwal.order.ring import order
from hwal.order.select import select
from hwal.topology import Device, Link
from hwal.values import Picked


def for_a_run(devices: Sequence[Device], links: Sequence[Link], count: int | None = None) -> Picked:
    """`count` devices, or all; those in use only where there are not enough others, and then beside all of these."""
    chosen, others = fastest([device for device in devices if not device.parts])
    if not chosen:
        return Picked((), "all are cut into MIG instances, of which a mask names one" if devices else None)
    why = [f"not mixed with {', '.join(others)}"] if others else []
    used = [device for device in chosen if device.in_use]
    free = [device for device in chosen if not device.in_use]
    enough = bool(free) if count is None else count <= len(free)
    if used:
        whose = ", ".join(device.use for device in used)
        why.append(f"left out, in use by others: {whose}" if enough else f"in use by others, for want of free ones: {whose}")
    field = free if enough else list(chosen)
    net = graph(field, links)
    if count is not None and 0 < count < len(field):
        answer = select(net, count, () if enough else [place for place, device in enumerate(field) if not device.in_use])
        worst = f", their worst link {answer.bottleneck}" if answer.bottleneck else ""
        why.insert(0, f"the best {count} of {len(field)}{worst}: {answer.why}")
        field = [field[place] for place in answer.places]
        net = graph(field, links)
    return Picked(tuple(field[place] for place in order(net).places), "; ".join(why) or None)
