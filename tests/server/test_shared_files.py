"""What servers share: whole files in a folder or at an address of fsspec's, and one line where that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.core.errors import ConfigError, NotKept
from millstream.server.sessions.shared_files import SharedFiles


@pytest.mark.parametrize("address", ["folder", "memory://states"])
def test_a_file_that_one_server_puts_there_another_fetches(tmp_path: Path, address: str) -> None:
    place = address if "://" in address else str(tmp_path / address)
    one = SharedFiles.at(place)
    other = SharedFiles.at(place).under("keys/alice")
    (tmp_path / "state").write_bytes(b"state")
    one.put(tmp_path / "state", "sessions/a.bin")
    assert one.fetch("sessions/a.bin", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"state"
    assert not other.fetch("sessions/a.bin", tmp_path / "fetched"), "what is another key's is not there"
    for number in (2, 1):
        one.write(f"controls/a/{number}.json", str(number).encode())
    assert one.read_all("controls/a") == {"1.json": b"1", "2.json": b"2"}, "in order"
    one.remove("controls/a")
    assert one.read_all("controls/a") == {}
    assert one.read_all("controls/never") == {}


def test_a_folder_shows_nothing_that_is_half_written(tmp_path: Path) -> None:
    shared = SharedFiles.at(str(tmp_path))

    def fill_the_disk() -> None:
        with shared._whole("controls/a/1.json") as draft:
            Path(draft).write_bytes(b"ha")
            raise OSError("the disk is full")

    with pytest.raises(NotKept, match="the disk is full"):
        fill_the_disk()
    assert shared.names("controls/a") == []


def test_storage_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for address in (str(tmp_path / "file" / "folder"), "nonsense://x"):
        with pytest.raises(ConfigError, match="can be written") as refused:
            SharedFiles.at(address)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("instead", ["nothing", "a file"])
def test_storage_that_has_gone_is_told_by_whoever_comes_and_is_found_where_it_comes_back(
    tmp_path: Path, instead: str
) -> None:
    shared = SharedFiles.at(str(tmp_path / "disk")).under("keys/alice")
    disk = tmp_path / "disk"
    shared.write("sessions/a.bin", b"state")
    disk.rename(tmp_path / "unplugged")
    if instead == "a file":
        disk.write_bytes(b"")
    with pytest.raises(NotKept, match="gone"):
        shared.write("controls/a/1.json", b"1")
    with pytest.raises(NotKept, match="gone"):
        shared.fetch("sessions/a.bin", tmp_path / "fetched")
    with pytest.raises(NotKept, match="gone"):
        shared.read_all("controls/a")
    disk.unlink(missing_ok=True)
    (tmp_path / "unplugged").rename(disk)
    assert shared.fetch("sessions/a.bin", tmp_path / "fetched")
