import os
import threading
from pathlib import Path

from specd.models.folders import write_whole


def test_a_file_is_there_whole_and_alone(tmp_path: Path) -> None:
    write_whole(tmp_path / "deep" / "file.json", "old")
    write_whole(tmp_path / "deep" / "file.json", "new")
    assert [(each.name, each.read_text()) for each in (tmp_path / "deep").iterdir()] == [("file.json", "new")]


def test_a_link_stays_one(tmp_path: Path) -> None:
    """Such as a models.toml that is kept elsewhere with other settings."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As in --json >(jq .)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join()
    assert said == ["text"]
    assert pipe.is_fifo()
