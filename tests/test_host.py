"""Host: files, programs and installed distributions of this machine; RecordedHost, and the recording of one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import hwal_cpu
import hwal_null
from hwal.backend import Backend
from hwal.errors import HwalError, OutputError, UsageError
from hwal.host import EntryPoint, Host, Output, RecordedHost, Recording
from hwal.testing.hosts import RecordingHost, load_all, record
from hwal.testing.probes import garble
from hwal.values import Caps, Probe, Target

GROUP = "hwal.backends"
PYTHON = sys.executable


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions, alone on sys.path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def install(site: Path, folder: str, entry_points: str | None = None) -> None:
    (site / folder).mkdir()
    if entry_points is not None:
        (site / folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")


# files and folders


def test_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("größe 1\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\x00ok\x80")
    host = Host()
    assert host.read(str(tmp_path / "text")) == "größe 1\n"
    assert host.read(str(tmp_path / "binary")) == "\ufffd\x00ok\ufffd"
    for absent in (tmp_path / "none", tmp_path, tmp_path / "text" / "below", "no\0name", tmp_path / ("x" * 5000)):
        assert host.read(str(absent)) is None


def test_names(tmp_path: Path) -> None:
    for name in ("node1", "node0", "online"):
        (tmp_path / name).touch()
    assert Host().names(str(tmp_path)) == ("node0", "node1", "online")
    assert Host().names(str(tmp_path / "none")) == Host().names(str(tmp_path / "online")) == ()


def test_facts_of_this_machine() -> None:
    host = Host()
    assert host.system == sys.platform
    assert host.machine and host.name
    assert host.cpu_count == os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert set(host.affinity() or ()) == os.sched_getaffinity(0)


def test_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_NULL_DEVICES", "3")
    monkeypatch.delenv("HWAL_TOPOLOGY", raising=False)
    assert (Host().env("HWAL_NULL_DEVICES"), Host().env("HWAL_TOPOLOGY")) == ("3", None)


# programs


def test_run_gives_what_was_printed_and_the_exit_code() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert Host().run(PYTHON, "-c", code) == Output("out\n", "err\n", 3)


def test_run_of_what_is_not_installed_is_none(tmp_path: Path) -> None:
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    assert Host().run("no-such-program-here", "-L") is None
    assert Host().run(str(tmp_path / "not-executable")) is None


def test_run_past_its_time_has_no_exit_code() -> None:
    output = Host().run(PYTHON, "-c", "import time; time.sleep(60)", timeout=0.3)
    assert output == Output("", "no answer within 0.3 s", None)


def test_run_replaces_bytes_that_are_no_text() -> None:
    output = Host().run(PYTHON, "-c", r"import sys; sys.stdout.buffer.write(b'\xffx')")
    assert output == Output("\ufffdx", "", 0)


def test_run_uses_no_shell() -> None:
    output = Host().run(PYTHON, "-c", "import sys; print(sys.argv[1:])", "$HOME; `id`", "*")
    assert output is not None and output.stdout == "['$HOME; `id`', '*']\n"


# installed distributions


def test_entry_points(site: Path) -> None:
    install(
        site,
        "mine-1.0.dist-info",
        "[console_scripts]\nmine = mine:main\n\n"
        "[hwal.backends]\n# a comment = not.one:x\n npu = hwal_npu:backend \ndsp=hwal_dsp:it\nno value here\n\n"
        "[other]\nz = other:z\n",
    )
    install(site, "hwal_second-2.egg-info", "[hwal.backends]\r\nnpu = second:backend\r\n")
    install(site, "no_entry_points-1.dist-info")
    install(site, "mine", "[hwal.backends]\nnot_a_dist_info = x:y\n")
    assert Host().entry_points(GROUP) == (
        EntryPoint("dsp", "hwal_dsp:it", "mine-1.0"),
        EntryPoint("npu", "second:backend", "hwal_second-2"),
        EntryPoint("npu", "hwal_npu:backend", "mine-1.0"),
    )
    assert Host().entry_points("console_scripts") == (EntryPoint("mine", "mine:main", "mine-1.0"),)
    assert Host().entry_points("hwal") == ()


def test_the_groups_name_inside_other_text_is_no_group(site: Path) -> None:
    install(
        site,
        "a-1.dist-info",
        "[console_scripts]\n# see [hwal.backends]\nx = the.module:f[hwal.backends]\n[hwal.backends.old]\ny = old:y\n",
    )
    install(site, "b-1.dist-info", "[hwal.backends]\n[console_scripts]\nz = mod:z\n")
    assert Host().entry_points(GROUP) == ()


def test_entry_points_survive_odd_paths(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.path holds zip files, folders that are gone, and "" for the current one; a folder listed twice counts once."""
    install(site, "mine-1.0.dist-info", "[hwal.backends]\nnpu = m:b\n")
    (site / "code.zip").write_bytes(b"PK")
    (site / "binary-1.dist-info").mkdir()
    (site / "binary-1.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[hwal.backends\x00]\n=\n")
    monkeypatch.chdir(site)
    monkeypatch.setattr(sys, "path", ["", str(site / "code.zip"), str(site / "gone"), ""])
    assert Host().entry_points(GROUP) == (EntryPoint("npu", "m:b", "mine-1.0"),)


@pytest.mark.parametrize("folder", ["hwal_npu-1.2.dist-info", "hwal-npu-1.2.dist-info", "HWAL.Npu-1.2.dist-info"])
@pytest.mark.parametrize("asked", ["hwal-npu", "hwal_npu", "Hwal.NPU"])
def test_version(site: Path, folder: str, asked: str) -> None:
    install(site, "hwal_npu_extras-9.dist-info")
    install(site, "hwal-7.dist-info")
    install(site, folder)
    assert Host().version(asked) == "1.2"


def test_version_of_what_is_not_installed(site: Path) -> None:
    install(site, "torch_xla-2.8.1.dist-info")
    assert Host().version("torch") is None


def test_versions_agree_with_the_standard_library() -> None:
    from importlib.metadata import version

    for name in ("pytest", "hypothesis"):
        assert Host().version(name) == version(name)


def test_requirements_are_those_of_the_wheel_and_not_of_its_description(site: Path) -> None:
    install(site, "torch_xla-2.8.1.dist-info")
    text = 'Name: torch_xla\nRequires-Dist: numpy\nRequires-Dist: libtpu==0.0.17; extra == "tpu"\n\nRequires-Dist: luck\n'
    (site / "torch_xla-2.8.1.dist-info" / "METADATA").write_text(text, encoding="utf-8")
    assert Host().requires("torch-xla") == ("numpy", 'libtpu==0.0.17; extra == "tpu"')
    assert Host().requires("torch") == ()


def test_links_and_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node").touch()
    (tmp_path / "link").symlink_to("node")
    host = Host()
    assert host.link(str(tmp_path / "link")) == "node"
    assert host.link(str(tmp_path / "node")) is host.link(str(tmp_path / "none")) is None
    assert host.may_open(str(tmp_path / "node")) is True
    assert host.may_open(str(tmp_path / "none")) is None
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK | os.W_OK)  # root may do all
    assert host.may_open(str(tmp_path / "node")) is False


# recorded hosts


def test_a_recorded_host_answers_from_its_recording() -> None:
    recording = Recording(
        name="box",
        system="linux",
        machine="riscv64",
        cpu_count=4,
        affinity=(0, 2),
        env={"A": "1"},
        files={"/sys/a/b/c": "text", "/sys/a/b2": "", "/sys/ab": "no"},
        commands={"tool -L --all": Output("out", "err", 2)},
        versions={"torch": "2.13"},
        entry_points=(EntryPoint("npu", "m:b", "d-1"),),
        links={"/run/7/fd/3": "/dev/accel0"},
        denied=("/sys/a/b2",),
        requires={"torch": ("numpy",)},
    )
    host = RecordedHost(Recording.from_json(recording.to_json()))
    assert (host.name, host.system, host.machine, host.cpu_count) == ("box", "linux", "riscv64", 4)
    assert (host.affinity(), host.env("A"), host.env("B")) == ((0, 2), "1", None)
    assert (host.read("/sys/a/b/c"), host.read("/sys/a/b2"), host.read("/sys/a")) == ("text", "", None)
    assert host.names("/sys/a") == host.names("/sys/a/") == ("b", "b2")
    assert host.names("/sys/a/b/c") == host.names("/proc") == ()
    assert host.run("tool", "-L", "--all") == Output("out", "err", 2)
    assert host.run("tool", "-L") is None
    assert (host.version("torch"), host.version("jax")) == ("2.13", None)
    assert host.entry_points(GROUP) == recording.entry_points
    assert (host.link("/run/7/fd/3"), host.link("/sys/a/b2"), host.names("/run/7/fd")) == ("/dev/accel0", None, ("3",))
    assert (host.may_open("/sys/a/b/c"), host.may_open("/sys/a/b2"), host.may_open("/dev/none")) == (True, False, None)
    assert (host.requires("torch"), host.requires("jax")) == (("numpy",), ())


@pytest.mark.parametrize(
    ("text", "says"), [(None, "no recorded host"), ("{", "not JSON"), ('{"fils": {}}', "did you mean 'files'")]
)
def test_a_folder_that_holds_no_recording_is_an_error(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "host.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        RecordedHost.load(tmp_path)
    assert says in str(caught.value) and str(tmp_path) in str(caught.value)


def test_record_writes_what_was_asked_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_NULL_DEVICES", "2")
    monkeypatch.setenv("SOME_TOKEN", "hush")
    backends = (hwal_cpu.backend, hwal_null.backend)
    recorded = record(Host(), backends, tmp_path / "new" / "box", about="a test")
    written = json.loads((tmp_path / "new" / "box" / "host.json").read_text())
    assert written["env"] == {"HWAL_NULL_DEVICES": "2"}
    assert written["name"] is None
    assert written["about"] == "a test"
    assert [backend.probe(recorded) for backend in backends] == [backend.probe(Host()) for backend in backends]
    assert list(load_all(tmp_path / "new")) == ["box"]
    assert load_all(tmp_path / "new")["box"].recording == recorded.recording


def test_recording_keeps_folders_of_which_nothing_was_read(tmp_path: Path) -> None:
    for name in ("accel0", "accel1"):
        (tmp_path / name).mkdir()
    (tmp_path / "accel1" / "model").write_text("v5e")
    (tmp_path / "accel1" / "serial").write_text("private")
    listener = RecordingHost(Host())
    assert listener.names(f"{tmp_path}/") == ("accel0", "accel1")
    assert listener.read(f"{tmp_path}/accel1/model") == "v5e"
    assert listener.read(f"{tmp_path}/accel1/none") is None
    replayed = RecordedHost(listener.recording())
    assert replayed.names(str(tmp_path)) == ("accel0", "accel1")
    assert replayed.names(f"{tmp_path}/accel1") == ("model",)
    assert "private" not in listener.recording().to_json()


def test_recording_keeps_programs_versions_and_plug_ins(site: Path) -> None:
    install(site, "mine-1.0.dist-info", "[hwal.backends]\nnpu = m:b\n[console_scripts]\nx = m:x\n")
    (site / "mine-1.0.dist-info" / "METADATA").write_text("Requires-Dist: numpy\n", encoding="utf-8")
    listener = RecordingHost(Host())
    live = (listener.run(PYTHON, "-c", "print(1)"), listener.version("mine"), listener.entry_points(GROUP))
    listener.entry_points("console_scripts")
    assert listener.run("no-such-program-here") is None
    replayed = RecordedHost(Recording.from_json(listener.recording().to_json()))
    assert (replayed.run(PYTHON, "-c", "print(1)"), replayed.version("mine"), replayed.entry_points(GROUP)) == live
    assert len(replayed.recording.commands) == 1
    assert listener.requires("mine") == ("numpy",)
    assert RecordedHost(listener.recording()).requires("mine") == ("numpy",)
    (site / "mine").mkdir()
    (site / "mine" / "version.py").write_text("cuda = None\n", encoding="utf-8")
    asked = (("mine", "mine/version.py"), ("mine", "no/such"), ("other", "mine/version.py"))
    assert [listener.packaged(*each) for each in asked] == ["cuda = None\n", None, None]
    replayed = RecordedHost(listener.recording())
    assert [replayed.packaged(*each) for each in asked] == ["cuda = None\n", None, None]


def test_recording_keeps_links_and_what_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("accel0", "accel1"):
        (tmp_path / name).touch()
    (tmp_path / "group").symlink_to("../7")
    monkeypatch.setattr(os, "access", lambda path, mode: path.endswith("0"))
    listener = RecordingHost(Host())
    asked = [listener.may_open(f"{tmp_path}/{name}") for name in ("accel0", "accel1", "accel2")]
    assert (asked, listener.link(f"{tmp_path}/group"), listener.link(f"{tmp_path}/none")) == ([True, False, None], "../7", None)
    replayed = RecordedHost(Recording.from_json(listener.recording().to_json()))
    assert [replayed.may_open(f"{tmp_path}/{name}") for name in ("accel0", "accel1", "accel2")] == asked
    assert replayed.link(f"{tmp_path}/group") == "../7"


class Sly(Backend):
    """Looks past its Host."""

    name = "sly"
    priority = None
    extra = "torch"
    caps = Caps()
    runtimes = hwal_null.backend.runtimes

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        return Probe("sly", "absent", f"seen by {type(host).__name__}")


def test_record_finds_a_probe_that_looks_past_its_host(tmp_path: Path) -> None:
    with pytest.raises(HwalError, match="sly answers differently on its own recording"):
        record(Host(), [Sly()], tmp_path)


def test_record_into_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write the recording"):
        record(Host(), [hwal_null.backend], tmp_path / "file" / "below")


def test_garbling_breaks_every_file() -> None:
    host = RecordedHost(Recording(files={"/a/cpu0/x": "1", "/a/cpu1/x": "2", "/b": "3"}, env={"E": "4"}))
    seen = {path: {h.read(path) for h in garble(host)} for path in host.recording.files}
    for path, texts in seen.items():
        assert {"", "-1", "max", None, host.read(path)} <= texts
