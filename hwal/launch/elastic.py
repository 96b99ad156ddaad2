"""The command line of torchrun: what hwal adds, and what it reads of --engine-args. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.errors import UsageError

# A rendezvous of the user's own; without one, hwal asks for a free port on this machine.
MEETING = ("rdzv-backend", "rdzv-endpoint", "rdzv-conf", "standalone", "master-addr", "master-port", "node-rank")
HWALS = {"nproc-per-node": "-n says how many processes", "module": "hwal names the program", "m": "hwal names the program"}
HWALS |= dict.fromkeys(("no-python", "run-path"), "hwal runs its own worker, which runs the script")


def arguments(processes: int, given: Sequence[str]) -> tuple[str, ...]:
    """torchrun's flags for `processes` on this machine; `given` are the user's, passed on as they are.

    A free port is always chosen on one machine: port 0 lets the system pick one, so that two runs never meet.
    """
    names = _names(given)
    for name in names:
        if name in HWALS:
            raise UsageError(
                f"--{name} cannot be given to torchrun here: {HWALS[name]}",
                where=f"--engine-args {' '.join(given)!r}",
                hint=f"leave --{name} out of it",
            )
    own: list[str] = ["--nproc-per-node", str(processes)]
    if "nnodes" not in names:
        own += ["--nnodes", "1"]
    if nodes(given) == 1 and not names & set(MEETING):
        own += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    return (*own, *given)


def nodes(given: Sequence[str]) -> int | None:
    """How many machines --nnodes asks for; None where it is a range, which may change while the run goes on."""
    low, high = _range(given)
    return low if low == high else None


def most_nodes(given: Sequence[str]) -> int:
    """As nodes(), but the most where it is a range."""
    return _range(given)[1]


def _range(given: Sequence[str]) -> tuple[int, int]:
    text = _value(given, "nnodes")
    if text is None:
        return 1, 1
    low, _, high = text.partition(":")
    if not low.isdigit() or (high and not high.isdigit()) or int(low) < 1:
        raise UsageError(
            f"--nnodes {text} is not a number of machines", where="--engine-args", hint="--nnodes 2, or --nnodes 1:4"
        )
    return int(low), int(high or low)


def _names(given: Sequence[str]) -> set[str]:
    """The long names of the flags in `given`; torchrun takes - and _ alike."""
    return {text.lstrip("-").partition("=")[0].replace("_", "-") for text in given if text.startswith("-")}


def _value(given: Sequence[str], name: str) -> str | None:
    found = None
    for position, text in enumerate(given):
        flag, equals, value = text.partition("=")
        if text.startswith("--") and flag[2:].replace("_", "-") == name:
            found = value if equals else given[position + 1] if position + 1 < len(given) else ""
    return found
