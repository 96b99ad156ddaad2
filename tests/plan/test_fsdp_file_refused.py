"""FSDP config files that cannot be followed: each refused with a word."""

from __future__ import annotations

import builtins
import json
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hwal.env import STRATEGIES
from hwal.errors import HwalError, UsageError, VersionError
from hwal.plan.fsdp_file import read_fsdp
from hwal.plan.fsdp_keys import ELSEWHERE, IMPLIED, RUN_ELSEWHERE, RUN_TAKEN, TAKEN

ERRORS = [
    (
        {"sharding_strategy": "FULLSHARD"},
        """
        sharding_strategy is 'FULLSHARD'; it can be FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2
          where: f.json
          try:   did you mean FULL_SHARD?
        """,
    ),
    (
        {"fsdp_offload_params": "maybe"},
        """
        fsdp_offload_params is 'maybe'; it can be true, false
          where: f.json
        """,
    ),
    (
        {"cpu_offload": 7},
        """
        cpu_offload is 7; it can be true, false
          where: f.json
        """,
    ),
    (
        {"min_num_params": "many"},
        """
        min_num_params is 'many'; it can be a whole number, 0 or more
          where: f.json
        """,
    ),
    (
        {"transformer_layer_cls_to_wrap": [1]},
        """
        transformer_layer_cls_to_wrap is [1]; it can be names, in a list or with commas between them
          where: f.json
        """,
    ),
    (
        {"version": 2, "mixed_precision": "half"},
        """
        mixed_precision is 'half'; it can be no, fp16, bf16
          where: f.json
        """,
    ),
    (
        {"version": 2, "xla_fsdp_settings": {"compute_dtype": "bfloat"}},
        """
        compute_dtype is 'bfloat'; it can be float32, float16, bfloat16
          where: f.json
          try:   did you mean bfloat16?
        """,
    ),
    (
        {"version": 2, "xla_fsdp_settings": [1]},
        """
        xla_fsdp_settings is no mapping of keys to values
          where: --strategy f.json
        """,
    ),
    (
        {"fsdp_sharding_strategy": "FULL_SHARD", "reshard_after_forward": False},
        """
        sharding_strategy FULL_SHARD and reshard_after_forward false contradict each other
          where: f.json
          try:   leave one of them out
        """,
    ),
    (
        {"sharding_strategy": 1, "fsdp_config": {"fsdp_sharding_strategy": 2}},
        """
        sharding_strategy and fsdp_sharding_strategy contradict each other
          where: f.json
          try:   leave one of them out
        """,
    ),
    (
        {"sharding_strategy": 3, "offload_params": True},
        """
        parameters that are not sharded are not offloaded either
          where: f.json: NO_SHARD
        """,
    ),
    (
        {"version": 2, "num_processes": 5, "num_machines": 2},
        """
        5 processes are not equally many on 2 machines
          where: f.json: num_processes, num_machines
          why:   5 = 2 × 2 + 1
        """,
    ),
    (
        {"distributed_type": "DEEPSPEED", "fsdp_config": {}},
        """
        the file configures no FSDP
          where: --strategy f.json
          why:   its keys are distributed_type, fsdp_config
          try:   a file with fsdp_config, as accelerate config writes it; without FSDP, --strategy ddp
        """,
    ),
    (
        ["FULL_SHARD"],
        """
        the file is no mapping of keys to values
          where: --strategy f.json
        """,
    ),
]


@pytest.mark.parametrize(("document", "text"), ERRORS)
def test_errors_as_printed(document: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_fsdp(json.dumps(document), "f.json")
    assert str(caught.value) == dedent(text).strip()


def test_damage_is_told_with_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        read_fsdp("distributed_type: FSDP\nfsdp_config: {version: 2\nx: [\n", "f.yml")
    assert (caught.value.what[:10], caught.value.where) == ("not YAML: ", "f.yml, line 3, column 2")
    with pytest.raises(UsageError, match=r"not JSON: .* line 1 column 2"):
        read_fsdp("{", "f.json")


def test_yaml_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name="yaml")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(VersionError, match="PyYAML is not installed"):
        read_fsdp("version: 2", "f.yaml")
    assert read_fsdp('{"version": 2}', "f.json").strategy == "fsdp:full"


VALUES = st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=8) | st.lists(st.text(max_size=3), max_size=2)
KEYS = st.sampled_from(sorted({*TAKEN, *RUN_TAKEN, *IMPLIED, *ELSEWHERE, *RUN_ELSEWHERE})) | st.text(max_size=8)


@given(document=st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES, max_size=3), max_size=6))
def test_any_document_is_read_or_refused_with_a_word(document: dict[str, Any]) -> None:
    try:
        file = read_fsdp(json.dumps(document), "f.json")
    except HwalError as error:
        assert error.exit_code == 2 and error.where
    else:
        assert file.strategy.removesuffix("+offload") in STRATEGIES
        assert read_fsdp(yaml.safe_dump(document), "f.json.yaml").strategy == file.strategy


@given(text=st.text(max_size=40), name=st.sampled_from(["f.yaml", "f.json"]))
def test_any_text_is_read_or_refused_with_a_word(text: str, name: str) -> None:
    try:
        file = read_fsdp(text, name)
    except HwalError as error:
        assert error.exit_code == 2 and error.where
    else:
        assert file.strategy.removesuffix("+offload") in STRATEGIES
