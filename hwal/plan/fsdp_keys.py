"""The keys of FSDP config files: which are taken over, which mean nothing here and why, and how they are read.

Sources: accelerate 1.15 (ClusterConfig, FullyShardedDataParallelPlugin), transformers 5.24 (TrainingArguments.fsdp_config).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwal.errors import UsageError, nearest

PREFIX = "fsdp_"
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

TAKEN = (
    *("sharding_strategy", "reshard_after_forward", "offload_params", "cpu_offload", "auto_wrap_policy", "min_num_params"),
    *("transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap", "activation_checkpointing", "xla_fsdp_grad_ckpt"),
    *("backward_prefetch", "xla_fsdp_settings"),
)
RUN_TAKEN = ("mixed_precision", "num_processes", "num_machines", "dynamo_config", "dynamo_backend", "fsdp_config")
"""What fsdp_file.py takes over: of FSDP's keys, and of accelerate's keys of a run."""

IMPLIED: Mapping[str, str] = {
    "version": "1 and 2 are both run by FSDP2",
    "use_orig_params": "FSDP2 always keeps the original parameters",
    "sync_module_states": "rt.scope() builds equal weights on every rank",
    "cpu_ram_efficient_loading": "how weights are loaded is the script's",
    "limit_all_gathers": "FSDP2 always limits them",
    "state_dict_type": "there is one kind of checkpoint, which every strategy and number of processes resumes",
    "xla": "--device says where it trains; on a TPU that is always by XLA",
    "xla_fsdp_v2": "on a TPU one process a host is FSDPv2, and -n, a process a chip, FSDP v1",
}
"""FSDP's keys -> why nothing needs to be done about them, whatever they say."""

ELSEWHERE: Mapping[str, str] = {
    "forward_prefetch": "FSDP2 gathers the next block by itself",
    "activation_checkpointing_offload": "what is recomputed keeps its inputs on the device",
    "ignored_modules": "all parameters are sharded",
    "mixed_precision_policy": "parameters stay in fp32, and --precision says what is computed in",
}
"""FSDP's keys -> what to know or do instead, said where they ask for something."""

XLA_TAKEN = ("compute_dtype", "reshard_after_forward")
XLA_IMPLIED: Mapping[str, str] = {
    "fp32_reduce_scatter": "gradients of fp32 weights are fp32",
    "disable_reshard_on_root": "the compiler sees when the outermost parameters are needed again",
    **dict.fromkeys(
        ("flatten_parameters", "shard_param_on_dim_0"), "each parameter is cut by itself, and its optimizer group kept"
    ),
    **dict.fromkeys(("optimization_barrier_in_forward", "optimization_barrier_in_backward"), "set where they save memory"),
    **dict.fromkeys(("execute_sharding_on_init", "sync_on_finalization"), "what is recorded runs when a step is done"),
    "pin_layout_in_collective_ops": "layouts are the compiler's",
}
XLA_ELSEWHERE: Mapping[str, str] = {
    "buffer_dtype": "buffers stay as the model has them",
    **dict.fromkeys(
        ("auto_wrap_policy", "auto_wrapper_callable"), "fsdp_config names the classes, xla_fsdp_grad_ckpt recomputes"
    ),
    **dict.fromkeys(("sharding_groups", "sharding_rank", "sharding_world_size"), "parameters are cut over all devices"),
    "param_init_fn": "rt.scope() builds the weights",
}
"""The keys in xla_fsdp_settings (arguments of XlaFullyShardedDataParallel, torch_xla 2.8.1), as TAKEN, IMPLIED, ELSEWHERE."""

RUN_IMPLIED: Mapping[str, str] = {
    "compute_environment": "hwal runs where it is started",
    "distributed_type": "the file is read for its FSDP configuration",
    "main_training_function": "the script runs as it stands",
    "enable_cpu_affinity": "every process has cores of its own",
    "same_network": "the engine finds the machines",
    "rdzv_backend": "the engine finds the machines",
}
"""accelerate's keys of a run, as IMPLIED."""

RUN_ELSEWHERE: Mapping[str, str] = {
    "machine_rank": "--engine-args '--node-rank N'",
    "main_process_ip": "--engine-args '--rdzv-endpoint HOST:PORT'",
    "main_process_port": "--engine-args '--rdzv-endpoint HOST:PORT'",
    "gpu_ids": "--device NAME:0,1 says which devices",
    "use_cpu": "--device cpu",
    "debug": "that all ranks are there is proven when they start",
    "fp8_config": "--precision knows bf16, fp16, tf32 and fp32",
    "deepspeed_config": "the strategies are FSDP's",
    "megatron_lm_config": "the strategies are FSDP's",
    "parallelism_config": "tensor and context parallelism come with a later version",
    "mpirun_config": "mpirun hwal train … joins the world that mpirun starts",
    "downcast_bf16": "--precision bf16 computes in bf16 and keeps the weights in fp32",
    **dict.fromkeys(
        ("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env"),
        "hwal trains on the TPU VM where it is started; gcloud compute tpus tpu-vm ssh --worker=all starts it on each host",
    ),
    **dict.fromkeys(("commands", "command_file"), "hwal starts one script"),
}
"""accelerate's keys of a run, as ELSEWHERE."""

OFF: tuple[Any, ...] = (None, False, "", "no", "NO", "No", "false", "False", "all", 0, [], {})
"""Values that ask for nothing."""


class Keys:
    """The file's keys, each taken once, with and without `fsdp_` before it, and what is to be said of them."""

    def __init__(self, document: Any, file: str) -> None:
        self.file = file
        self._values: dict[str, Any] = {}
        self._spelled: dict[str, str] = {}  # key without its prefix -> as the file has it
        self._notes: list[str] = []
        outer = _trainers(self._object(document, "the file"), file)
        inner = self._object(outer.get("fsdp_config") or {}, "fsdp_config")
        for key, value in (*((key, value) for key, value in outer.items() if key != "fsdp_config"), *inner.items()):
            known = str(key).removeprefix(PREFIX)
            if known in self._spelled:
                raise self.contradiction(self._spelled[known], str(key))
            self._values[known], self._spelled[known] = value, str(key)
        kind = str(outer.get("distributed_type")).upper()
        self.for_xla = kind in ("XLA", "TPU") or any(self._values.get(key) is True for key in ("xla", "xla_fsdp_v2"))
        says = kind == "FSDP" or bool(inner)
        if not says and not {*TAKEN, *IMPLIED, *ELSEWHERE} & set(self._values):
            raise UsageError(
                "the file configures no FSDP",
                where=f"--strategy {file}",
                why=f"its keys are {', '.join(map(str, outer))}" if outer else "it is empty",
                hint="a file with fsdp_config, as accelerate config writes it; without FSDP, --strategy ddp",
            )

    def take(self, *names: str) -> tuple[str, Any]:
        """The first of these keys that is there, as the file spells it, and its value; None without one."""
        values = {name: self._values.pop(name, None) for name in names}
        name = next((name for name, value in values.items() if value is not None), names[0])
        return self._spelled.get(name, name), values[name]

    def flag(self, *names: str) -> bool | None:
        name, value = self.take(*names)
        return None if value is None else self.as_flag(name, value)

    def as_flag(self, name: str, value: Any) -> bool:
        if str(value).lower() not in FLAGS:
            raise self.wrong(name, value, "true, false")
        return FLAGS[str(value).lower()]

    def says(self, *names: str) -> bool:
        """Whether one of these keys, not taken yet, has a value."""
        return any(self._values.get(name) is not None for name in names)

    def is_flag(self, name: str) -> bool:
        """Whether a value is true or false, and not a name or number."""
        return str(self._values.get(name)).lower() in ("true", "false")

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """One of the names, in any case, or its number from 1."""
        name, value = self.take(name)
        if value is None:
            return None
        text = str(value).upper().removeprefix("_")  # torch writes _HYBRID_SHARD_ZERO2
        if text.isdecimal() and 0 < int(text) <= len(allowed):
            return allowed[int(text) - 1]
        if text not in allowed:
            near = nearest(text.lower(), map(str.lower, allowed))
            raise self.wrong(name, value, ", ".join(allowed), near and near.upper())
        return text

    def number(self, name: str, least: int = 0) -> int | None:
        """A whole number; 1e8 is one."""
        name, value = self.take(name)
        if value is None:
            return None
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not (number >= least and number.is_integer()):
            raise self.wrong(name, value, f"a whole number, {least} or more")
        return int(number)

    def names(self, *keys: str) -> tuple[str, ...]:
        """Names in a list, or in one text with commas between them."""
        name, value = self.take(*keys)
        items = value.split(",") if isinstance(value, str) else value or []
        if not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
            raise self.wrong(name, value, "names, in a list or with commas between them")
        return tuple(item.strip() for item in items if item.strip())

    def mapping(self, name: str) -> Mapping[str, Any]:
        name, value = self.take(name)
        return self._object(value or {}, name)

    def note(self, text: str) -> None:
        self._notes.append(f"{self.file}: {text}")

    def rest(self) -> tuple[str, ...]:
        """All notes: those made, and one for each key left that asks for something else, or that nobody knows."""
        elsewhere = {**ELSEWHERE, **RUN_ELSEWHERE}
        for known, value in self._values.items():
            if known in elsewhere:
                if value not in OFF:
                    self.note(f"{self._spelled[known]} has no counterpart here: {elsewhere[known]}")
            elif known not in IMPLIED and known not in RUN_IMPLIED:
                near = nearest(known, (*TAKEN, *RUN_TAKEN, *IMPLIED, *RUN_IMPLIED, *elsewhere))
                self.note(f"unknown key {self._spelled[known]}" + (f"; did you mean {near}?" if near else ""))
        return tuple(self._notes)

    def wrong(self, name: str, value: Any, allowed: str, near: str | None = None) -> UsageError:
        hint = f"did you mean {near}?" if near else None
        return UsageError(f"{name} is {value!r}; it can be {allowed}", where=self.file, hint=hint)

    def contradiction(self, one: str, other: str) -> UsageError:
        return UsageError(f"{one} and {other} contradict each other", where=self.file, hint="leave one of them out")

    def _object(self, value: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise UsageError(f"{what} is no mapping of keys to values", where=f"--strategy {self.file}")
        return value


WORDS: Mapping[str, tuple[str, Any]] = {
    **{name: ("sharding_strategy", name.upper()) for name in ("full_shard", "shard_grad_op", "no_shard")},
    **{name: ("sharding_strategy", name.upper()) for name in ("hybrid_shard", "hybrid_shard_zero2")},
    "offload": ("offload_params", True),
    "auto_wrap": ("auto_wrap_policy", None),  # by class or size, as fsdp_config says: so it is anyway
}
"""Word of the Trainer's argument --fsdp -> the key that says the same, and its value."""


def _trainers(outer: Mapping[str, Any], file: str) -> dict[str, Any]:
    """A file of the Trainer's arguments with `fsdp`, `bf16` and `fp16` under the names that accelerate has for them."""
    keys = dict(outer)
    said = keys.pop("fsdp", None)
    if said is None:
        return keys
    for word in said if isinstance(said, list) else str(said).split():
        if word not in WORDS:
            near = nearest(str(word), WORDS)
            raise UsageError(
                f"fsdp says {word!r}; it may say {', '.join(WORDS)}",
                where=f"{file}: fsdp",
                hint=f"did you mean {near}?" if near else None,
            )
        key, value = WORDS[word]
        if value is not None:
            keys[key] = value
    for precision in ("bf16", "fp16"):
        if keys.pop(precision, False):
            keys["mixed_precision"] = precision
    return keys
