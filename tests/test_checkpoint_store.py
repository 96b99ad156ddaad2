"""The checkpoint store: a checkpoint is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal import checkpoint
from hwal.checkpoint import MANIFEST, Checkpoints, FileSum, verify
from hwal.errors import CheckpointError, OutputError
from hwal.retention import Keep
from tests.stores import Told, manifest, names, write


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


# written, found, kept


def test_what_was_written_is_found_and_verified(store: Checkpoints) -> None:
    folder = write(store, 7)
    told = Told()
    found = store.newest(told)
    assert found is not None and found[0] == folder and told == []
    assert found[1].position.step == 7
    assert set(found[1].files) == {"weights", "deep/er"}
    assert found[1].files["weights"].bytes == len("weights of 7")
    assert names(store) == ["step-00000007"]


def test_nothing_there_is_no_checkpoint(store: Checkpoints) -> None:
    assert store.newest(Told()) is None
    store.folder.mkdir()
    (store.folder / "step-x").mkdir()
    (store.folder / "step-1").write_text("a file")
    assert store.newest(Told()) is None


def test_newest_is_by_number_even_past_eight_digits(store: Checkpoints) -> None:
    store.keep = Keep(None)
    for step in (99_999_999, 5, 100_000_000):
        write(store, step)
    assert [path.name for path in store.found()] == ["step-100000000", "step-99999999", "step-00000005"]


@given(keep=st.integers(1, 4), steps=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_retention(tmp_path_factory: pytest.TempPathFactory, keep: int, steps: list[int]) -> None:
    store = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints", f"last:{keep}")
    for step in steps:
        with store.writing(store.path(step), manifest(step)):  # type: ignore[arg-type]
            pass
        left = [int(path.name[5:]) for path in store.found()]
        assert step in left, "the one just written must stay"
        assert len(left) <= keep
    ordered = sorted(set(steps))
    if steps == ordered:
        assert left == ordered[::-1][:keep]


def test_keep_all_and_checkpoints_elsewhere(store: Checkpoints, tmp_path: Path) -> None:
    everything = Checkpoints(store.folder, "all")
    for step in range(1, 7):
        write(everything, step)
    assert len(everything.found()) == 6
    write(Checkpoints(store.folder, "last:1"), 9, target=tmp_path / "best")
    assert len(everything.found()) == 6, "a checkpoint at a path of the user's own removes none of the run's"
    write(Checkpoints(store.folder, "last:2"), 9, target=store.folder / "best")
    assert [path.name for path in everything.found()] == ["step-00000006", "step-00000005"]
    assert verify(store.folder / "best").position.step == 9


def test_one_that_cannot_be_removed_is_told_once(store: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Told()
    keeps = Checkpoints(store.folder, "last:1", said)
    write(keeps, 1)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, ignore_errors: None)  # a folder that gives up nothing
    for step in (2, 3):
        write(keeps, step)
    assert said == [
        f"{keeps.path(step)} cannot be removed, though --keep does not hold it: the disk may fill up" for step in (1, 2)
    ]


# failures while writing


@pytest.mark.parametrize("error", [ValueError("a defect"), KeyboardInterrupt(), SystemExit(75)])
def test_an_exception_leaves_nothing_and_the_old_one_whole(store: Checkpoints, error: BaseException) -> None:
    write(store, 1)
    with (
        pytest.raises(type(error)),
        store.writing(store.path(1), manifest(1)) as folder,  # type: ignore[arg-type]
    ):
        (folder / "weights").write_text("half")
        raise error
    assert names(store) == ["step-00000001"]
    assert (store.path(1) / "weights").read_text() == "weights of 1"
    assert verify(store.path(1))


def test_a_full_disk_is_an_output_error(store: Checkpoints) -> None:
    """The device that is always full stands in the checkpoint's folder: a real ENOSPC, from a real write."""
    write(store, 1)
    with (
        pytest.raises(OutputError, match="No space left on device") as caught,
        store.writing(store.path(2), manifest(2)) as folder,  # type: ignore[arg-type]
    ):
        (folder / "weights").symlink_to("/dev/full")
        (folder / "weights").write_text("x" * 100_000)
    assert caught.value.where == str(store.path(2))
    assert "--out" in (caught.value.hint or "")
    assert names(store) == ["step-00000001"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_disk_that_fails_late_is_an_output_error_too(store: Checkpoints, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delayed allocation reports a full disk at fsync, a dying one anywhere: simulated, for no file does so at will."""
    write(store, 1, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OutputError, match="No space left"):
            write(store, 1, "new")
    assert (store.path(1) / "weights").read_text() == "old"
    found = store.newest(Told())
    assert found is not None and found[0] == store.path(1)
    assert names(store) == ["step-00000001"]


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file stands where the folder should")
    with pytest.raises(OutputError, match="could not be written"):
        write(Checkpoints(tmp_path / "checkpoints"), 1)


def test_folders_that_cannot_be_flushed_are_no_failure(store: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert verify(write(store, 1))


# damage afterwards


@given(data=st.data())
def test_any_flipped_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """In whichever file, the manifest included; a flip that leaves its meaning (a space) leaves the checkpoint good."""
    store = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints")
    write(store, 1)
    folder = write(store, 2)
    before = verify(folder)
    path = folder / data.draw(st.sampled_from([MANIFEST, "weights", "deep/er"]))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    told = Told()
    found = store.newest(told)
    assert found is not None
    if found[0] == folder:
        assert path.name == MANIFEST and found[1] == before
    else:
        assert found[0] == store.path(1)
        assert len(told) == 1 and told[0].startswith(f"skipped {folder}: ")


def test_a_changed_number_in_the_manifest_is_noticed(store: Checkpoints) -> None:
    path = write(store, 1) / MANIFEST
    path.write_text(path.read_text().replace('"samples": 8', '"samples": 9'))
    with pytest.raises(CheckpointError, match="does not match its digest"):
        verify(store.path(1))


def damage_truncated(folder: Path) -> str:
    os.truncate(folder / "deep" / "er", 100)
    return "deep/er is not the file that was saved"


def damage_lost(folder: Path) -> str:
    (folder / "weights").unlink()
    return "weights cannot be read: No such file"


def damage_unfinished(folder: Path) -> str:
    (folder / MANIFEST).unlink()
    return "it has no manifest: it was never finished"


def damage_emptied(folder: Path) -> str:
    (folder / MANIFEST).write_bytes(b"")
    return "its manifest is damaged: not JSON"


def damage_binary(folder: Path) -> str:
    (folder / MANIFEST).write_bytes(b"\xff\xfe" * 40)
    return "its manifest is damaged"


def damage_future(folder: Path) -> str:
    path = folder / MANIFEST
    newer = f'"format": {checkpoint.FORMAT + 1}, "of a later version": {{}}'
    path.write_text(path.read_text().replace(f'"format": {checkpoint.FORMAT}', newer))
    return f"it is of format {checkpoint.FORMAT + 1}, and this version reads up to {checkpoint.FORMAT}"


DAMAGES = [damage_truncated, damage_lost, damage_unfinished, damage_emptied, damage_binary, damage_future]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_checkpoint_is_skipped_and_told(store: Checkpoints, damage: object) -> None:
    write(store, 1)
    said = damage(write(store, 2))  # type: ignore[operator]
    told = Told()
    found = store.newest(told)
    assert found is not None and found[0] == store.path(1)
    assert len(told) == 1 and said in told[0]


FORMAT_1 = """{"position": {"seed": 42, "epoch": 0, "feed": 0, "steps_in_feed": 1, "samples_in_feed": 8, "step": 1, \
"samples": 8, "world_size": 1}, "files": {}, "framework": "torch", "versions": {}, "about": {"note": [1.5, null]}, \
"format": 1, "digest": "%s"}"""


def test_a_manifest_of_format_1_is_read(store: Checkpoints) -> None:
    """Its digest was taken without the fields that later formats have."""
    store.path(1).mkdir(parents=True)
    digest = hashlib.sha256((FORMAT_1 % "").encode()).hexdigest()
    (store.path(1) / MANIFEST).write_text(FORMAT_1 % digest)
    manifest = verify(store.path(1))
    assert manifest.position.step == 1 and manifest.metrics == {}
    (store.path(1) / MANIFEST).write_text((FORMAT_1 % digest).replace('"samples": 8', '"samples": 9'))
    with pytest.raises(CheckpointError, match="does not match its digest"):
        verify(store.path(1))


def test_a_run_whose_newest_was_damaged_goes_on_saving(store: Checkpoints) -> None:
    """Gone on from step 1 because step 9 is damaged, the run must not lose its step 2 to the higher number."""
    store.keep = Keep(1)
    write(store, 9)
    damage_truncated(store.path(9))
    write(store, 2)
    found = store.newest(Told())
    assert found is not None and found[0] == store.path(2)


# a folder of the user's own


def test_a_folder_of_other_things_is_not_replaced(store: Checkpoints, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    write(store, 1, target=mine)  # an empty folder may become a checkpoint, and a checkpoint another one
    write(store, 2, target=mine)
    file, folder = tmp_path / "file", tmp_path / "folder"
    folder.mkdir()
    for path in (file, folder / "thesis.txt"):
        path.write_text("x")
    for target in (file, folder):
        with pytest.raises(OutputError, match="holds other things"):
            write(store, 3, target=target)
    assert file.read_text() == (folder / "thesis.txt").read_text() == "x"


# preempted.json


def test_mark_preempted(tmp_path: Path) -> None:
    assert Checkpoints.mark_preempted(tmp_path, "SIGTERM", 12) is None
    assert json.loads((tmp_path / checkpoint.PREEMPTED).read_text()) == {"signal": "SIGTERM", "step": 12}
    wrong = Checkpoints.mark_preempted(tmp_path / "missing", "SIGTERM", 12)
    assert wrong == "preempted.json could not be written: No such file or directory"


def test_the_sum_of_a_file_is_its_size_and_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert checkpoint.checksum(tmp_path / "abc") == FileSum(3, digest)
