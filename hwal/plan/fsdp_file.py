"""An FSDP config file: what accelerate writes, or what the Trainer takes as fsdp_config, in hwal's terms. Pure.

Keys are read with and without `fsdp_` before them. What is taken over is said here, what is not in fsdp_keys.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hwal.env import SETTINGS, Settings
from hwal.errors import UsageError, VersionError, nearest
from hwal.plan.fsdp_keys import OFF, RUN_ELSEWHERE, XLA_ELSEWHERE, XLA_IMPLIED, XLA_TAKEN, Keys
from hwal.plan.strategy import OFFLOAD
from hwal.record import Record, dataclass, parse_json
from hwal.values import Wrap

STRATEGIES: Mapping[str, str] = {  # in the order of torch's numbers, from 1
    "FULL_SHARD": "fsdp:full",
    "SHARD_GRAD_OP": "fsdp:grad-op",
    "NO_SHARD": "ddp",
    "HYBRID_SHARD": "fsdp:hybrid",
    "HYBRID_SHARD_ZERO2": "fsdp:hybrid-grad-op",
}
PER_LAYER, PER_SIZE, WHOLE = POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
PREFETCH = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
TORCHS_SIZE = 100_000_000  # parameters: torch's size_based_auto_wrap_policy, where nothing is said


@dataclass(frozen=True)
class FsdpFile(Record):
    """What such a file asks for; None where it says nothing. `processes` counts those of one machine."""

    strategy: str
    wrap: Wrap | None = None
    grad_checkpoint: bool | None = None
    compile: bool | None = None
    precision: str | None = None
    processes: int | None = None
    notes: tuple[str, ...] = ()


def read_fsdp(text: str, name: str) -> FsdpFile:
    """What the text of the file `name` asks for.

    Raises UsageError naming the file and its line, or the key and what is allowed; VersionError without PyYAML.
    """
    keys = Keys(_parse(text, name), name)
    xla = _xla(keys)
    strategy = _strategy(keys, xla)
    if keys.flag("offload_params", "cpu_offload"):
        if strategy == "ddp":
            raise UsageError("parameters that are not sharded are not offloaded either", where=f"{name}: NO_SHARD")
        strategy += OFFLOAD
    prefetch = keys.choice("backward_prefetch", PREFETCH)
    if prefetch not in (None, PREFETCH[0]):
        keys.note(f"backward_prefetch {prefetch} has no counterpart here: FSDP2 gathers a block before its gradients are due")
    recompute = [keys.flag("activation_checkpointing"), keys.flag("xla_fsdp_grad_ckpt")]
    return FsdpFile(
        strategy=strategy,
        wrap=_wrap(keys),
        grad_checkpoint=any(recompute) or None,
        compile=_compile(keys),
        precision=_precision(keys, xla),
        processes=_processes(keys),
        notes=keys.rest(),
    )


def with_file(settings: Settings, file: FsdpFile, explicit: Collection[str], name: str) -> tuple[Settings, tuple[str, ...]]:
    """The settings with what the file asks for. What a flag or variable says (`explicit`: fields) stays, and that is told."""
    changes: dict[str, Any] = {"strategy": file.strategy}
    notes = []
    for row in SETTINGS:
        asked, given = getattr(file, row.field, None), getattr(settings, row.field)
        if row.field == "strategy" or asked is None:
            continue
        if row.field not in explicit:
            changes[row.field] = asked
        elif asked != given:
            notes.append(f"{row.flag} {given} overrides {name}, which says {asked}")
    return replace(settings, **changes), (*file.notes, *notes)


def _parse(text: str, name: str) -> Any:
    """JSON by the file's name, else YAML."""
    if name.lower().endswith(".json"):
        return parse_json(text, name)
    try:
        import yaml  # type: ignore[import-untyped]  # only such a file needs it
    except ModuleNotFoundError:
        hint = "pip install PyYAML, or write the file as JSON"
        raise VersionError("PyYAML is not installed", where=f"--strategy {name}", hint=hint) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).partition("\n")[0]
        at = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise UsageError(f"not YAML: {what}", where=f"{name}{at}") from None


# what is taken over


def _xla(keys: Keys) -> Mapping[str, Any]:
    """What xla_fsdp_settings says of XLA_TAKEN; the rest of it is noted."""
    settings = keys.mapping("xla_fsdp_settings")
    for key, value in settings.items():
        if key in XLA_ELSEWHERE:
            if value not in OFF:
                keys.note(f"xla_fsdp_settings: {key} has no counterpart here: {XLA_ELSEWHERE[key]}")
        elif key not in XLA_TAKEN and key not in XLA_IMPLIED:
            near = nearest(str(key), (*XLA_TAKEN, *XLA_IMPLIED, *XLA_ELSEWHERE))
            keys.note(f"xla_fsdp_settings: unknown key {key}" + (f"; did you mean {near}?" if near else ""))
    return {key: settings[key] for key in XLA_TAKEN if settings.get(key) is not None}


def _strategy(keys: Keys, xla: Mapping[str, Any]) -> str:
    """FSDP 1 names the strategy, under either key; FSDP 2, and XLA's settings, say only whether blocks are resharded after
    their forward."""
    if "reshard_after_forward" in xla and not keys.says("sharding_strategy", "reshard_after_forward"):
        return STRATEGIES[
            "FULL_SHARD" if keys.as_flag("reshard_after_forward", xla["reshard_after_forward"]) else "SHARD_GRAD_OP"
        ]
    named = keys.choice("sharding_strategy", tuple(STRATEGIES))
    if not keys.is_flag("reshard_after_forward"):
        again = keys.choice("reshard_after_forward", tuple(STRATEGIES))
        if named and again and named != again:
            raise keys.contradiction(f"sharding_strategy {named}", f"reshard_after_forward {again}")
        return STRATEGIES[named or again or "FULL_SHARD"]
    reshard = keys.flag("reshard_after_forward")
    if named is None:
        return STRATEGIES["FULL_SHARD" if reshard else "SHARD_GRAD_OP"]
    if named != "NO_SHARD" and reshard == STRATEGIES[named].endswith("grad-op"):
        raise keys.contradiction(f"sharding_strategy {named}", f"reshard_after_forward {str(reshard).lower()}")
    return STRATEGIES[named]


def _wrap(keys: Keys) -> Wrap | None:
    """Where no policy is named, the classes or the size, if any; None leaves it to the model's own blocks."""
    policy = keys.choice("auto_wrap_policy", POLICIES)
    classes = keys.names("transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap")
    size = keys.number("min_num_params") or None
    if policy is None:
        policy = PER_SIZE if size and not classes else PER_LAYER
    if classes and policy != PER_LAYER:
        keys.note(f"transformer_layer_cls_to_wrap does not go with {policy}, and is left out")
    if size and policy != PER_SIZE:
        keys.note(f"min_num_params does not go with {policy}, and is left out")
    if policy == PER_SIZE:
        return Wrap(min_params=size or TORCHS_SIZE)
    return Wrap() if policy == WHOLE else Wrap(classes) if classes else None


def _precision(keys: Keys, xla: Mapping[str, Any]) -> str | None:
    spelled, value = keys.take("mixed_precision")
    computed = str(xla.get("compute_dtype", "")).removeprefix("torch.")
    if computed and computed not in DTYPES:
        raise keys.wrong("compute_dtype", xla["compute_dtype"], ", ".join(DTYPES), nearest(computed, DTYPES))
    if value is None and computed:
        return DTYPES[computed]
    if value == "fp8":
        keys.note(f"mixed_precision fp8 has no counterpart here: {RUN_ELSEWHERE['fp8_config']}")
        return None
    names = {"no": "fp32", "false": "fp32", "fp16": "fp16", "bf16": "bf16"}  # YAML reads a bare `no` as false
    if value is not None and str(value).lower() not in names:
        raise keys.wrong(spelled, value, "no, fp16, bf16")
    return None if value is None else names[str(value).lower()]


def _compile(keys: Keys) -> bool | None:
    config = keys.mapping("dynamo_config")
    backend = str(config.get("dynamo_backend") or config.get("backend") or keys.take("dynamo_backend")[1] or "NO").upper()
    rest = [f"{key} {value}" for key, value in config.items() if not key.endswith("backend") and value not in (*OFF, "default")]
    if backend not in ("NO", "INDUCTOR"):
        rest.append(f"dynamo_backend {backend}")
    if rest:
        keys.note(f"{', '.join(rest)} has no counterpart here: --compile compiles each block as torch.compile does by default")
    return True if backend != "NO" else None


def _processes(keys: Keys) -> int | None:
    """Those of one machine; accelerate counts all, and leaves -1 where a scheduler knows."""
    total, machines = keys.number("num_processes", least=-1), keys.number("num_machines", least=1) or 1
    if machines > 1:
        keys.note(
            f"num_machines {machines}: hwal starts the processes of this machine; --engine-args '--nnodes {machines} "
            "--rdzv-endpoint HOST:PORT' joins the others"
        )
    if total is None or total < 1:
        return None
    if keys.for_xla:
        keys.note(f"num_processes {total}: one process drives all TPU chips of a host; -n {total} asks for a process a chip")
        return None
    if total % machines:
        raise UsageError(
            f"{total} processes are not equally many on {machines} machines",
            where=f"{keys.file}: num_processes, num_machines",
            why=f"{total} = {total // machines} × {machines} + {total % machines}",
        )
    return total // machines
