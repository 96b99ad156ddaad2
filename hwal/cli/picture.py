"""A picture of the machine (`hwal devices --svg FILE`): devices in their best ring, links by class, islands, NUMA nodes.

The devices stand on a circle in ring order, so the ring is its rim and every other link a chord, bent inwards so that no box
hides it. Paths over PCIe are drawn only where nothing better joins any pair, or where the ring has to use them; the key says
how many pairs each class has. Each box tells its NUMA node, by its colour too, and the nearest NIC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import cos, pi, sin

from hwal.order import Answer, graph
from hwal.order.graph import label
from hwal.topology import Device, Link

# Okabe and Ito's palette, which people who do not see all colours can tell apart
COLOURS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00")
FILLS = ("#DCEBF7", "#FCE8D0", "#DDF2E9", "#F6E1EE", "#FFF7CC", "#E6E6E6")
BEND = 0.25  # of the way to the centre
CHORDS = 24  # devices; with more the chords would hide each other
BOX = 92

Point = tuple[float, float]


def draw(title: str, devices: Sequence[Device], links: Sequence[Link], ring: Answer) -> str:
    """The SVG document. `ring` is the order of `devices`, by place."""
    order = [devices[place] for place in ring.places]
    radius = max(200, 19 * len(order)) if len(order) > 3 else 60 * len(order)
    width = max(2 * radius, 400) + 260
    centre = (width / 2, radius + 110)
    at = _places(order, *centre, radius)
    of = {(link.a, link.b): link for link in links}
    counts = Counter(label(link) or "unknown" for link in links if link.a in at and link.b in at)
    net = graph(devices, links)
    levels = {net.names[a][b] or "unknown": net.level[a][b] for a in range(net.n) for b in range(a)}
    kinds = sorted(counts, key=lambda name: -levels.get(name, 0))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(kinds)}
    rim = {(min(a.index, b.index), max(a.index, b.index)) for a, b in _pairs(order)}
    drawn = _drawn(kinds, len(order))
    used = {label(of[pair]) or "unknown" for pair in rim if pair in of}
    told = [*_words(counts, ring, order), *_near(order)]
    height = 2 * radius + 230 + 22 * (len(told) + len(kinds))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="34" font-size="20" text-anchor="middle" font-weight="bold">{_text(title)}</text>',
        *_islands(order, of, *centre, radius),
        *(
            _line(of[pair], at, centre, colours, pair in rim)
            for pair in sorted(of, key=lambda p: p in rim)
            if pair in rim or ((label(of[pair]) or "unknown") in drawn and pair[0] in at and pair[1] in at)
        ),
        *(_box(device, *at[device.index]) for device in order),
        *(f'<text x="40" y="{2 * radius + 222 + 22 * i}" font-size="15">{_text(line)}</text>' for i, line in enumerate(told)),
        *_key(kinds, counts, colours, drawn, used, 2 * radius + 222 + 22 * len(told)),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _places(order: Sequence[Device], x: float, y: float, radius: float) -> dict[int, Point]:
    """Device -> where its box is centred; the first on top, the others clockwise; two side by side."""
    begin = pi if len(order) == 2 else -pi / 2
    angles = {device.index: 2 * pi * i / len(order) + begin for i, device in enumerate(order)}
    return {index: (round(x + radius * cos(a), 1), round(y + radius * sin(a), 1)) for index, a in angles.items()}


def _pairs(order: Sequence[Device]) -> list[tuple[Device, Device]]:
    if len(order) < 2:
        return []
    return list(zip(order, [*order[1:], order[0]], strict=True)) if len(order) > 2 else [(order[0], order[1])]


def _drawn(kinds: Sequence[str], n: int) -> set[str]:
    """The classes whose every link is drawn: direct links, or the best class where there are none."""
    if n > CHORDS:
        return set()
    direct = {name for name in kinds if name.startswith(("NV", "XGMI"))}
    return direct or set(kinds[:1])


def _line(link: Link, at: Mapping[int, Point], centre: Point, colours: Mapping[str, str], in_ring: bool) -> str:
    """Straight along the rim; a chord through a point between its middle and the centre."""
    if link.a not in at or link.b not in at:
        return ""
    (x1, y1), (x2, y2) = at[link.a], at[link.b]
    x, y = ((a + b) / 2 * (1 - BEND) + middle * BEND for a, b, middle in ((x1, x2, centre[0]), (y1, y2, centre[1])))
    way = f"L {x2} {y2}" if in_ring else f"Q {x:.1f} {y:.1f} {x2} {y2}"
    name = label(link) or "unknown"
    direct = name.startswith(("NV", "XGMI"))
    wide = 7 if in_ring else min(1.2 + 0.5 * (link.count or 0), 3) if direct else 1.2
    dash = "" if direct else ' stroke-dasharray="7 5"'
    told = f"{link.a} – {link.b}: {name}" + (f", {link.bandwidth / 1e9:.4g} GB/s" if link.bandwidth else "")
    return (
        f'<path d="M {x1} {y1} {way}" fill="none" stroke="{colours[name]}" stroke-width="{wide:g}"'
        f' stroke-opacity="{0.95 if in_ring else 0.55}"{dash}><title>{_text(told)}</title></path>'
    )


def _box(device: Device, x: float, y: float) -> str:
    node = "NUMA ?" if device.numa is None else f"NUMA {device.numa}"
    fill = "#F2F2F2" if device.numa is None else FILLS[device.numa % len(FILLS)]
    half, up = BOX / 2, 8 if device.nics else 0
    rows = [(-2 - up, 'font-size="17" font-weight="bold"', str(device.index)), (16 - up, 'font-size="12"', node)]
    if device.nics:
        rows.append((22, 'font-size="10"', _nic(device)))
    return (
        f"<g><title>{_text(f'{device.name or device.backend} {device.id or device.pci or str()}')}</title>"
        f'<rect x="{x - half:g}" y="{y - 25 - up / 2:g}" width="{BOX}" height="{50 + up}" rx="8" fill="{fill}" stroke="#333"/>'
        + "".join(
            f'<text x="{x:g}" y="{y + down:g}" text-anchor="middle" {style}>{_text(text)}</text>' for down, style, text in rows
        )
        + "</g>"
    )


def _nic(device: Device) -> str:
    """`mlx5_0 PIX`; `4 NICs NODE`."""
    name, path = next(iter(device.nics.items()))
    if len(device.nics) > 1:
        return f"{len(device.nics)} NICs {path}"
    return f"{name if len(name) < 12 else name[:10] + '…'} {path}"


def _near(order: Sequence[Device]) -> Iterator[str]:
    """The names of the NICs where a box has no room for them; devices that have the same are told together."""
    groups: dict[str, list[int]] = {}
    for device in order:
        if len(device.nics) > 1:
            groups.setdefault(" ".join(device.nics), []).append(device.index)
    for names, indices in groups.items() if len(groups) <= 8 else ():
        yield f"NICs of {' '.join(map(str, sorted(indices)))}: {names}"


def islands(devices: Sequence[Device], links: Sequence[Link]) -> list[list[int]]:
    """Sets of devices that direct links join, by index; a device without any is no island."""
    near: dict[int, set[int]] = {device.index: set() for device in devices}
    for link in links:
        if link.a in near and link.b in near and link.class_.startswith(("NV", "XGMI")):
            near[link.a].add(link.b)
            near[link.b].add(link.a)
    found, left = [], {index for index, others in near.items() if others}
    while left:
        island, todo = set(), [min(left)]
        while todo:
            index = todo.pop()
            if index not in island:
                island.add(index)
                todo += near[index]
        left -= island
        found.append(sorted(island))
    return found


def _islands(order: Sequence[Device], of: Mapping[tuple[int, int], Link], x: float, y: float, radius: float) -> Iterator[str]:
    """An arc outside the rim for each island, where it stands together and is not all there is."""
    found = islands(order, list(of.values()))
    if len(found) < 2 and not (found and len(found[0]) < len(order)):
        return
    places = [device.index for device in order]
    step, far = 2 * pi / len(order), radius + 62
    for number, island in enumerate(found, 1):
        spots = sorted(places.index(index) for index in island)
        first = next((s for s in spots if (s - 1) % len(order) not in spots), spots[0])
        if {(first + i) % len(order) for i in range(len(spots))} != set(spots):
            continue
        begin, end = (first - 0.38) * step - pi / 2, (first + len(spots) - 1 + 0.38) * step - pi / 2
        (x1, y1), (x2, y2) = ((x + far * cos(a), y + far * sin(a)) for a in (begin, end))
        large = int(end - begin > pi)
        middle = (begin + end) / 2
        yield (
            f'<path d="M {x1:.1f} {y1:.1f} A {far} {far} 0 {large} 1 {x2:.1f} {y2:.1f}" fill="none" stroke="#999"'
            ' stroke-width="3"/>'
            f'<text x="{x + (far + 16) * cos(middle):.1f}" y="{y + (far + 16) * sin(middle):.1f}" font-size="13" fill="#555"'
            f' text-anchor="{_anchor(cos(middle))}">island {number}</text>'
        )


def _anchor(across: float) -> str:
    return "middle" if abs(across) < 0.3 else "start" if across > 0 else "end"


def _words(counts: Mapping[str, int], ring: Answer, order: Sequence[Device]) -> Iterator[str]:
    """The ring."""
    numbers = " ".join(str(device.index) for device in order)
    text = f"ring (thick): {numbers}" if len(order) <= 24 else f"ring of {len(order)} devices"
    if set(counts) == {"unknown"}:
        yield f"{text}: as they are, for nothing is known of how they are linked"
    elif len(order) > 1:
        yield f"{text}; worst link {ring.bottleneck}, {ring.proof}"
    else:
        yield "a single device"


def _key(
    kinds: Sequence[str],
    counts: Mapping[str, int],
    colours: Mapping[str, str],
    drawn: set[str],
    used: set[str],
    y: float,
) -> Iterator[str]:
    """What the colours mean."""
    for i, name in enumerate(kinds):
        line = y + 22 * i
        dash = "" if name.startswith(("NV", "XGMI")) else ' stroke-dasharray="7 5"'
        rest = "" if name in drawn else " (drawn only in the ring)" if name in used else " (not drawn)"
        pairs = f"{counts[name]} pair{'s' * (counts[name] > 1)}"
        yield (
            f'<line x1="40" y1="{line}" x2="84" y2="{line}" stroke="{colours[name]}" stroke-width="4"{dash}/>'
            f'<text x="94" y="{line + 5}" font-size="14">{_text(f"{name}: {pairs}{rest}")}</text>'
        )


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
