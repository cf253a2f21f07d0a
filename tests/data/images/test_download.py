"""Downloads: checked, continued, limited, and with the files to fetch by hand in the error."""

import hashlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harmax.data.images import IMAGES, download, has_images, load_images
from harmax.data.images.download import BLOCK
from harmax.data.images.source import RemoteFile
from small_images import draw, small_mnist


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves one file, from any byte on: nothing under /none/, a part under /short/, without end under /endless/."""

    data = draw(5000).tobytes()
    asked: tuple[tuple[str, str | None], ...] = ()

    def do_GET(self) -> None:
        cls, wanted = type(self), self.headers.get("Range")
        cls.asked = (*cls.asked, (self.path, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if self.path.startswith("/none/"):
            self.send_error(404)
            return
        self.send_response(206 if wanted else 200)
        if "/endless/" in self.path:
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(self.data)
            return
        self.send_header("Content-Length", str(len(self.data) - start))
        self.end_headers()
        self.wfile.write(self.data[start : 2000 if "/short/" in self.path else None])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    Mirror.asked = ()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def offer(
    monkeypatch: pytest.MonkeyPatch, *mirrors: str, sha256: str = hashlib.sha256(Mirror.data).hexdigest()
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    file = RemoteFile("file.bin", len(Mirror.data), sha256)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=(file,), mirrors=mirrors))


def test_download_goes_on_where_it_was_cut_off_and_fetches_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    offer(monkeypatch, f"{mirror}/none/", f"{mirror}/short/", f"{mirror}/good/")
    calls = []
    own = download("mnist", tmp_path, progress=lambda name, there, total: calls.append((name, there, total)))
    assert (own / "file.bin").read_bytes() == Mirror.data
    assert [path.name for path in own.iterdir()] == ["file.bin"]
    assert calls[-1] == ("file.bin", 5000, 5000)
    assert Mirror.asked == (("/none/file.bin", None), ("/short/file.bin", None), ("/good/file.bin", "bytes=2000-"))
    download("mnist", tmp_path)
    assert len(Mirror.asked) == 3


def test_a_wrong_checksum_is_no_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    offer(monkeypatch, f"{mirror}/good/", sha256="0" * 64)
    with pytest.raises(
        ConnectionError, match=r"5,000 bytes with another checksum.*\n.*by hand:\n  file.bin +5,000 bytes"
    ):
        download("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_without_internet_the_files_wanted_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "http://127.0.0.1:9/")  # nobody listens there
    with pytest.raises(ConnectionError, match=r"Without internet, put these files into .*mnist by hand:\n  file.bin"):
        download("mnist", tmp_path)


def test_a_download_that_failed_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    system = small_mnist(tmp_path / "system", monkeypatch)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], elsewhere=(str(system),)))
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    for address in ("http://127.0.0.1:9/", f"{mirror}/none/", f"{mirror}/short/"):
        offer(monkeypatch, address)
        with pytest.raises(ConnectionError):
            download("mnist", tmp_path)
        assert (tmp_path / "mnist").exists() == address.endswith("/short/")  # it left what it had
        assert has_images("mnist")
        assert len(load_images("mnist", "train").labels) == 3
    assert not has_images("mnist", tmp_path)


def test_a_mirror_that_sends_too_much_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    offer(monkeypatch, f"{mirror}/endless/")
    seen = []
    with pytest.raises(ConnectionError, match=r"more than 5,000 bytes"):
        download("mnist", tmp_path, progress=lambda name, there, total: seen.append(there))
    assert max(seen) <= 5000 + BLOCK
    assert list((tmp_path / "mnist").iterdir()) == []


FULL = """
import resource, sys
from dataclasses import replace
from harmax.data.images import IMAGES, download
from harmax.data.images.download import BLOCK
from harmax.data.images.source import RemoteFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
IMAGES["mnist"] = replace(IMAGES["mnist"], files=(RemoteFile("file.bin", 5000, "0" * 64),), mirrors=(sys.argv[1],))
download("mnist", sys.argv[2])
"""


def test_a_full_disk_is_not_blamed_on_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    command = [sys.executable, "-c", FULL, f"{mirror}/good/", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"File too large: '{tmp_path / 'mnist' / '.file.bin.partial'}'" in done.stderr


def test_every_mirror_is_reached_over_https_and_every_file_has_a_checksum() -> None:
    sources = [source for source in IMAGES.values() if source.files]
    assert sources
    for source in sources:
        assert all(mirror.startswith("https://") for mirror in source.mirrors), source.title
        assert all(len(file.sha256) == 64 and file.size > 0 for file in source.files), source.title
