"""A service that keeps files in a directory: plain files, of any size, put and got in chunks.

An upload is written beside the others under a hidden name, its checksum is compared, and only then is it
renamed to its own: a reader sees the old file or the new one, never a part. The server remembers nothing
between calls, so a restart in the middle of a download does no harm.
"""

import hashlib
import os
import secrets
from pathlib import Path
from typing import BinaryIO

import numpy as np
import rrpc
from numpy.typing import NDArray

CHUNK_BYTES_MAX = 16 << 20
NAME_BYTES_MAX = 200
UPLOAD_PREFIX = ".upload-"
DIGEST_PREFIX = ".sha256-"


@rrpc.service
class BlobStore:
    """Files by name, with their SHA-256."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        for abandoned in self._directory.glob(UPLOAD_PREFIX + "*"):
            abandoned.unlink()

    @rrpc.method
    def begin(self, name: str) -> str:
        """Start an upload; the answer names it in the calls that follow."""
        self._path(name)
        upload = secrets.token_hex(8)
        os.close(os.open(self._upload_path(upload), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return upload

    @rrpc.method
    def write(self, upload: str, offset: int, chunk: NDArray[np.uint8]) -> None:
        """Put a chunk in its place; chunks may come in any order."""
        if offset < 0 or chunk.nbytes > CHUNK_BYTES_MAX:
            raise rrpc.InvalidArgument(f"a chunk is up to {CHUNK_BYTES_MAX} bytes at an offset from 0 on")
        with self._open_upload(upload) as file:
            write_all(file.fileno(), chunk.reshape(-1), offset)

    @rrpc.method
    def commit(self, upload: str, name: str, size: int, digest: str) -> None:
        """Check what was written, then give it its name; whatever bore the name before is gone."""
        path = self._path(name)
        with self._open_upload(upload) as file:
            found_size, found_digest = os.fstat(file.fileno()).st_size, sha256(file.fileno())
            if (found_size, found_digest) != (size, digest):
                self._upload_path(upload).unlink()
                raise rrpc.DataLoss(f"{name}: {found_size} of {size} bytes arrived, or with other contents")
            os.fsync(file.fileno())
            self._remember_digest(name, version_of(os.fstat(file.fileno())), digest)
        self._upload_path(upload).replace(path)

    @rrpc.method
    def abort(self, upload: str) -> None:
        """Give an upload up."""
        self._upload_path(upload).unlink(missing_ok=True)

    @rrpc.method
    def stat(self, name: str) -> tuple[int, str, str]:
        """Size, version and SHA-256; the version changes when the name is given to another file."""
        with self._open(name) as file:
            status = os.fstat(file.fileno())
            version = version_of(status)
            return status.st_size, version, self._digest(name, version) or sha256(file.fileno())

    @rrpc.method
    def read(self, name: str, version: str, offset: int, count: int) -> NDArray[np.uint8]:
        """A chunk of that version of a file; shorter only at the end of it."""
        if not 0 <= count <= CHUNK_BYTES_MAX or offset < 0:
            raise rrpc.InvalidArgument(f"a chunk is up to {CHUNK_BYTES_MAX} bytes at an offset from 0 on")
        with self._open(name) as file:
            status = os.fstat(file.fileno())
            if version_of(status) != version:
                raise rrpc.Aborted(f"{name} was replaced while it was being read")
            chunk = rrpc.empty(max(0, min(count, status.st_size - offset)), np.uint8)
            read_all(file.fileno(), chunk, offset)
            return chunk

    @rrpc.method
    def names(self) -> list[tuple[str, int]]:
        """Every file's name and size, by name."""
        with os.scandir(self._directory) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            return sorted((file.name, file.stat().st_size) for file in files if not file.name.startswith("."))

    @rrpc.method
    def delete(self, name: str) -> None:
        """Forget a file."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise rrpc.NotFound(f"no such file: {name}") from None
        self._digest_path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Where a file lives: its name is one visible component, so nothing outside can be named."""
        encoded = name.encode(errors="replace")
        if (
            not 0 < len(encoded) <= NAME_BYTES_MAX
            or name.startswith(".")
            or "/" in name
            or not name.isprintable()
        ):
            raise rrpc.InvalidArgument(
                f"not a file name: {name[:NAME_BYTES_MAX]!r} (1 to {NAME_BYTES_MAX} bytes, "
                "no slash, no control character, no dot in front)"
            )
        return self._directory / name

    def _upload_path(self, upload: str) -> Path:
        if len(upload) != 16 or not set(upload) <= set("0123456789abcdef"):
            raise rrpc.InvalidArgument("not an upload")
        return self._directory / (UPLOAD_PREFIX + upload)

    def _digest_path(self, name: str) -> Path:
        return self._directory / (DIGEST_PREFIX + name)

    def _open(self, name: str) -> BinaryIO:
        try:
            return open(self._path(name), "rb", buffering=0, opener=no_links)
        except OSError:
            raise rrpc.NotFound(f"no such file: {name}") from None

    def _open_upload(self, upload: str) -> BinaryIO:
        try:
            return open(self._upload_path(upload), "r+b", buffering=0, opener=no_links)
        except OSError:
            raise rrpc.NotFound("no such upload; it was given up, or the server was started anew") from None

    def _remember_digest(self, name: str, version: str, digest: str) -> None:
        path = self._digest_path(name)
        temporary = self._upload_path(secrets.token_hex(8))
        temporary.write_text(f"{version} {digest}")
        temporary.replace(path)

    def _digest(self, name: str, version: str) -> str | None:
        """What was remembered, if it is about this very version: files may also be put here by hand."""
        try:
            remembered, digest = self._digest_path(name).read_text().split()
        except (OSError, ValueError):
            return None
        return digest if remembered == version else None


def no_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def version_of(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def sha256(descriptor: int) -> str:
    digest, landing, offset = hashlib.sha256(), np.empty(1 << 20, np.uint8), 0
    while got := os.preadv(descriptor, [landing.data], offset):
        digest.update(landing.data[:got])
        offset += got
    return digest.hexdigest()


def write_all(descriptor: int, chunk: NDArray[np.uint8], offset: int) -> None:
    done = 0
    while done < chunk.size:
        done += os.pwritev(descriptor, [chunk.data[done:]], offset + done)


def read_all(descriptor: int, chunk: NDArray[np.uint8], offset: int) -> None:
    done = 0
    while done < chunk.size:
        got = os.preadv(descriptor, [chunk.data[done:]], offset + done)
        if not got:
            raise rrpc.Aborted("the file became shorter while it was being read")
        done += got
