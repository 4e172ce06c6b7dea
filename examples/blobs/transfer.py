"""Files to and from a blob store: chunks in registered memory, a few of them in flight at a time."""

import contextlib
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import rrpc
from blob_store_client import BlobStoreClient
from numpy.typing import NDArray

CHUNK_BYTES = 8 << 20
IN_FLIGHT_MAX = 4

Chunk = NDArray[np.uint8]
Progress = Callable[[int], None]


def put(store: BlobStoreClient, source: BinaryIO, name: str, progress: Progress) -> str:
    """Send a file; gives its SHA-256, which the server has found to be that of what it wrote."""
    upload = store.begin(name)
    try:
        size, digest = send(store, upload, source, progress)
        store.commit(upload, name, size, digest)
    except BaseException:
        give_up(store, upload)
        raise
    return digest


def give_up(store: BlobStoreClient, upload: str) -> None:
    """The error that brought us here says more than one from here; the server clears up when it starts."""
    with contextlib.suppress(rrpc.RpcError):
        store.abort(upload, timeout=5)


def send(store: BlobStoreClient, upload: str, source: BinaryIO, progress: Progress) -> tuple[int, str]:
    """Every chunk in its place. A chunk's memory is used again once the server has answered for it."""
    digest, offset = hashlib.sha256(), 0
    in_flight: deque[tuple[Any, Chunk, int]] = deque()
    spare = [rrpc.empty(CHUNK_BYTES, np.uint8) for _ in range(IN_FLIGHT_MAX)]

    def finish_oldest() -> None:
        future, memory, count = in_flight.popleft()
        future.result()
        progress(count)
        spare.append(memory)

    while True:
        if not spare:
            finish_oldest()
        memory = spare.pop()
        chunk = memory[: read_into(source, memory)]
        if not chunk.size:
            break
        in_flight.append((store.write.start(upload, offset, chunk), memory, chunk.size))
        digest.update(chunk.data)
        offset += chunk.size
    while in_flight:
        finish_oldest()
    return offset, digest.hexdigest()


def read_into(source: BinaryIO, memory: Chunk) -> int:
    """Fill the memory as far as the file goes."""
    done = 0
    while got := source.readinto(memory.data[done:]):  # type: ignore[attr-defined]
        done += got
    return done


def get(store: BlobStoreClient, name: str, target: Path, start: Callable[[int], Progress]) -> str:
    """Fetch a file; the target appears whole, with the server's SHA-256, or not at all."""
    size, version, expected = store.stat(name)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(partial, "xb", buffering=0) as file:
            digest = receive(store, name, version, size, file, start(size))
            os.fsync(file.fileno())
        if digest != expected:
            raise rrpc.DataLoss(f"{name}: what arrived is not what the server has")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return digest


def receive(
    store: BlobStoreClient, name: str, version: str, size: int, file: BinaryIO, progress: Progress
) -> str:
    digest = hashlib.sha256()
    for chunk in chunks(store, name, version, size):
        view = chunk.data
        while view:
            view = view[file.write(view) :]
        digest.update(chunk.data)
        progress(chunk.size)
    return digest.hexdigest()


def chunks(store: BlobStoreClient, name: str, version: str, size: int) -> Iterator[Chunk]:
    """The file's chunks in order, the next ones under way while one is dealt with."""
    in_flight: deque[Any] = deque()
    for offset in range(0, size, CHUNK_BYTES):
        if len(in_flight) == IN_FLIGHT_MAX:
            yield in_flight.popleft().result()
        in_flight.append(store.read.start(name, version, offset, CHUNK_BYTES))
    while in_flight:
        yield in_flight.popleft().result()
