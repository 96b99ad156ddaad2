"""A temporary folder in which a loader's workers could not make their sockets is told before the first batch."""

from __future__ import annotations

import multiprocessing.util
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_long_folder_is_told_where_there_are_workers(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils.data import DataLoader

    from hwal.errors import UsageError
    from hwal_torch.reading import Reading, rebuilt
    from hwal_torch.units import Cut

    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(multiprocessing.util, "get_temp_dir", lambda: str(long))
    loader = DataLoader(torch.ones(8, 2), batch_size=4, num_workers=workers)  # type: ignore[arg-type]
    reading = Reading(Cut(0, 1, None, None, False), 0, True)
    if not workers:
        assert len(list(rebuilt(loader, reading, dataset=loader.dataset, batch_size=4))) == 2
        return
    with pytest.raises(UsageError) as told:
        rebuilt(loader, reading, dataset=loader.dataset, batch_size=4)
    assert "workers could not hand over what they read" in told.value.what
    assert (
        told.value.where == f"TMPDIR={tempfile.gettempdir()}"
        and "path too long" in str(told.value.why)
        and told.value.hint is not None
    )


def test_a_short_folder_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwal_torch.sockets import check_sockets

    with tempfile.TemporaryDirectory(prefix="h", dir="/tmp") as folder:
        monkeypatch.setattr(multiprocessing.util, "get_temp_dir", lambda: folder)
        check_sockets()
        assert [path for path in Path(folder).rglob("*") if not path.is_dir()] == []
