"""FSDP config files: accelerate's and the Trainer's, in hwal's terms."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hwal.env import STRATEGIES, Settings
from hwal.plan.fsdp_file import FsdpFile, read_fsdp, with_file
from hwal.plan.fsdp_keys import ELSEWHERE, IMPLIED, RUN_ELSEWHERE, RUN_IMPLIED, RUN_TAKEN, TAKEN
from hwal.plan.strategy import is_file_name
from hwal.values import Wrap

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: true
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: BertLayer,BertEmbeddings
  fsdp_use_orig_params: true
  fsdp_version: 1
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
TRAINER = {
    "transformer_layer_cls_to_wrap": ["GPT2Block"],
    "xla": True,
    "xla_fsdp_settings": {"compute_dtype": "bfloat16"},
    "xla_fsdp_grad_ckpt": True,
}


def read(document: Any = None, name: str = "f.json", **keys: Any) -> FsdpFile:
    return read_fsdp(json.dumps(keys if document is None else document), name)


def test_what_accelerate_writes() -> None:
    assert read_fsdp(ACCELERATE, "f.yaml") == FsdpFile(
        strategy="fsdp:full+offload",
        wrap=Wrap(("BertLayer", "BertEmbeddings")),
        grad_checkpoint=True,
        precision="bf16",
        processes=2,
    )


def test_what_the_trainer_takes() -> None:
    assert read(TRAINER) == FsdpFile(
        strategy="fsdp:full",
        wrap=Wrap(("GPT2Block",)),
        grad_checkpoint=True,
        precision="bf16",
    )
    with_more = {
        **TRAINER,
        "mixed_precision": "bf16",
        "xla_fsdp_settings": {"compute_dtype": "float32", "reshard_after_forward": False},
    }
    assert (read(with_more).precision, read(with_more).strategy) == ("bf16", "fsdp:grad-op")


@pytest.mark.parametrize("document", [{"distributed_type": "XLA", "fsdp_config": {"fsdp_version": 2}}, TRAINER])
def test_processes_are_not_chips(document: dict[str, Any]) -> None:
    """accelerate counts chips, of which one process drives all."""
    file = read({**document, "num_processes": 8})
    assert file.processes is None
    assert file.notes == (
        "f.json: num_processes 8: one process drives all TPU chips of a host; -n 8 asks for a process a chip",
    )


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"buffer_dtype": "bfloat16"}, "buffer_dtype has no counterpart here: buffers stay as the model has them"),
        ({"flaten_parameters": True}, "unknown key flaten_parameters; did you mean flatten_parameters?"),
        ({"flatten_parameters": True, "pin_layout_in_collective_ops": False, "sharding_groups": None}, None),
    ],
)
def test_what_xla_is_told_and_has_no_counterpart(settings: dict[str, Any], note: str | None) -> None:
    expected = () if note is None else (f"f.json: xla_fsdp_settings: {note}",)
    assert read({**TRAINER, "xla_fsdp_settings": settings}).notes == expected


@pytest.mark.parametrize("prefix", ["", "fsdp_"])
@pytest.mark.parametrize(
    ("keys", "strategy"),
    [
        ({"sharding_strategy": "FULL_SHARD"}, "fsdp:full"),
        ({"sharding_strategy": "shard_grad_op"}, "fsdp:grad-op"),
        ({"sharding_strategy": "NO_SHARD"}, "ddp"),
        ({"sharding_strategy": "_HYBRID_SHARD_ZERO2"}, "fsdp:hybrid-grad-op"),
        ({"sharding_strategy": 1}, "fsdp:full"),
        ({"sharding_strategy": "4"}, "fsdp:hybrid"),
        ({"sharding_strategy": 5}, "fsdp:hybrid-grad-op"),
        ({"reshard_after_forward": "HYBRID_SHARD"}, "fsdp:hybrid"),
        ({"reshard_after_forward": 2}, "fsdp:grad-op"),
        ({"reshard_after_forward": True, "version": 2}, "fsdp:full"),
        ({"reshard_after_forward": "false", "version": 2}, "fsdp:grad-op"),
        ({"reshard_after_forward": True, "sharding_strategy": "HYBRID_SHARD"}, "fsdp:hybrid"),
        ({"reshard_after_forward": False, "sharding_strategy": "SHARD_GRAD_OP"}, "fsdp:grad-op"),
        ({"reshard_after_forward": True, "sharding_strategy": "NO_SHARD"}, "ddp"),
        ({"reshard_after_forward": "FULL_SHARD", "sharding_strategy": 1}, "fsdp:full"),
        ({"version": 2}, "fsdp:full"),
        ({"cpu_offload": True, "reshard_after_forward": False}, "fsdp:grad-op+offload"),
        ({"offload_params": "true"}, "fsdp:full+offload"),
    ],
)
def test_strategies(prefix: str, keys: dict[str, Any], strategy: str) -> None:
    keys = {prefix + key: value for key, value in keys.items()}
    assert read(keys) == FsdpFile(strategy)
    assert read({"distributed_type": "FSDP", "fsdp_config": keys}) == FsdpFile(strategy)


@pytest.mark.parametrize(
    ("keys", "wrap"),
    [
        ({"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, None),
        ({"auto_wrap_policy": "transformer_based_wrap", "transformer_layer_cls_to_wrap": " A , B,"}, Wrap(("A", "B"))),
        ({"transformer_cls_names_to_wrap": ["A"]}, Wrap(("A",))),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 2000}, Wrap(min_params=2000)),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": "1e6"}, Wrap(min_params=1_000_000)),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP"}, Wrap(min_params=100_000_000)),
        ({"min_num_params": 1e8}, Wrap(min_params=100_000_000)),
        ({"min_num_params": 0}, None),
        ({"auto_wrap_policy": "NO_WRAP"}, Wrap()),
        ({"auto_wrap_policy": 3}, Wrap()),
    ],
)
def test_what_is_wrapped(keys: dict[str, Any], wrap: Wrap | None) -> None:
    assert read(keys) == FsdpFile("fsdp:full", wrap)


def test_what_does_not_go_with_the_policy_is_told() -> None:
    assert read(auto_wrap_policy="NO_WRAP", fsdp_transformer_layer_cls_to_wrap="A", min_num_params=9).notes == (
        "f.json: transformer_layer_cls_to_wrap does not go with NO_WRAP, and is left out",
        "f.json: min_num_params does not go with NO_WRAP, and is left out",
    )


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        ({"mixed_precision": "no"}, {"precision": "fp32"}),
        ({"mixed_precision": False}, {"precision": "fp32"}),
        ({"mixed_precision": "fp16"}, {"precision": "fp16"}),
        ({"num_processes": 8}, {"processes": 8}),
        ({"num_processes": -1}, {}),
        ({"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}}, {"compile": True}),
        ({"dynamo_config": {}, "dynamo_backend": "NO"}, {}),
        ({"fsdp_activation_checkpointing": False}, {}),
    ],
)
def test_what_else_is_taken_over(keys: dict[str, Any], changed: dict[str, Any]) -> None:
    assert read({"distributed_type": "FSDP", **keys}) == FsdpFile("fsdp:full", **changed)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        (
            {"mixed_precision": "fp8"},
            "mixed_precision fp8 has no counterpart here: --precision knows bf16, fp16, tf32 and fp32",
        ),
        (
            {"fsdp_forward_prefetch": True},
            "fsdp_forward_prefetch has no counterpart here: FSDP2 gathers the next block by itself",
        ),
        (
            {"backward_prefetch": "NO_PREFETCH"},
            "backward_prefetch NO_PREFETCH has no counterpart here: FSDP2 gathers a block before its gradients are due",
        ),
        (
            {"dynamo_config": {"dynamo_backend": "EAGER", "dynamo_use_fullgraph": True}},
            "dynamo_use_fullgraph True, dynamo_backend EAGER has no counterpart here: "
            "--compile compiles each block as torch.compile does by default",
        ),
        ({"gpu_ids": "0,1"}, "gpu_ids has no counterpart here: --device NAME:0,1 says which devices"),
        ({"fsdp_shardng_strategy": "FULL_SHARD"}, "unknown key fsdp_shardng_strategy; did you mean sharding_strategy?"),
        ({"zzz": 1}, "unknown key zzz"),
        (
            {"num_machines": 2, "num_processes": 4},
            "num_machines 2: hwal starts the processes of this machine; --engine-args '--nnodes 2 --rdzv-endpoint HOST:PORT' "
            "joins the others",
        ),
    ],
)
def test_what_has_no_counterpart_is_named(keys: dict[str, Any], note: str) -> None:
    assert read({"distributed_type": "FSDP", **keys}).notes == (f"f.json: {note}",)


@pytest.mark.parametrize("key", sorted({*IMPLIED, *ELSEWHERE, *RUN_IMPLIED, *RUN_ELSEWHERE}))
def test_keys_that_ask_for_nothing_are_silent(key: str) -> None:
    for value in (None, False, "no"):
        assert read({"version": 2, **({key: value} if key != "version" else {})}).notes == ()


def test_every_key_of_the_sources_is_known() -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    known = {*TAKEN, *RUN_TAKEN, *IMPLIED, *RUN_IMPLIED, *ELSEWHERE, *RUN_ELSEWHERE}
    own = {"param_init_fn", "state_dict_config", "optim_state_dict_config"}  # functions and objects: no file can hold them
    assert {field.name for field in fields(ClusterConfig)} - known == set()
    assert {"xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"} <= known
    plugin = {field.name.removeprefix("fsdp_") for field in fields(FullyShardedDataParallelPlugin)}
    assert plugin - known - own == set()


def test_flags_and_variables_win_aloud() -> None:
    file = read_fsdp(ACCELERATE, "f.yaml")
    settings, notes = with_file(Settings(strategy="f.yaml"), file, {"strategy"}, "f.yaml")
    assert settings == Settings(strategy="fsdp:full+offload", precision="bf16", grad_checkpoint=True)
    assert notes == ()
    settings, notes = with_file(Settings(strategy="f.yaml", precision="fp32"), file, {"strategy", "precision"}, "f.yaml")
    assert settings.precision == "fp32"
    assert notes == ("--precision fp32 overrides f.yaml, which says bf16",)


def test_names_of_files() -> None:
    assert not any(map(is_file_name, [*STRATEGIES, "fsdp:full+offload", "dpp"]))
    assert all(map(is_file_name, ["a.yaml", "A.YML", "b.json", "./config", "C:\\f"]))


def test_the_examples_are_read_as_accelerate_reads_them(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    path = tmp_path / "f.yaml"
    path.write_text(ACCELERATE)
    assert load_config_from_file(str(path)).fsdp_config["fsdp_sharding_strategy"] == "FULL_SHARD"


@pytest.mark.parametrize(
    ("fsdp", "strategy"),
    [
        ("full_shard auto_wrap offload", "fsdp:full+offload"),
        ("shard_grad_op", "fsdp:grad-op"),
        (["hybrid_shard", "auto_wrap"], "fsdp:hybrid"),
        ("no_shard", "ddp"),
    ],
)
def test_the_trainers_own_argument(fsdp: Any, strategy: str) -> None:
    file = read({"fsdp": fsdp, "bf16": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Block"]}})
    assert (file.strategy, file.precision, file.wrap) == (strategy, "bf16", Wrap(("Block",)))


def test_a_mistyped_key_that_is_the_only_one() -> None:
    file = read({"fsdp_config": {"fsdp_shardng_strategy": "SHARD_GRAD_OP"}})
    assert any("did you mean" in note and "sharding_strategy" in note for note in file.notes)
