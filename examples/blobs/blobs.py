"""The command: put, get, list and delete files on a blob store."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import rrpc
import transfer
from blob_store_client import BlobStoreClient
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

DEFAULT_SERVER = "rrpc://127.0.0.1:7472"
CONNECT_TIMEOUT_S = 10


def bar() -> Progress:
    """On stderr, and only where somebody looks."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def put(store: BlobStoreClient, arguments: argparse.Namespace) -> None:
    path: Path = arguments.file
    name = path.name if arguments.name is None else arguments.name
    with open(path, "rb", buffering=0) as source, bar() as progress:
        task = progress.add_task(name, total=path.stat().st_size)
        digest = transfer.put(store, source, name, lambda count: progress.advance(task, count))
    print(f"{digest}  {name}")


def get(store: BlobStoreClient, arguments: argparse.Namespace) -> None:
    name = arguments.name
    with bar() as progress:

        def start(size: int) -> Callable[[int], None]:
            task = progress.add_task(name, total=size)
            return lambda count: progress.advance(task, count)

        digest = transfer.get(store, name, arguments.output or Path(name), start)
    print(f"{digest}  {name}")


def list_names(store: BlobStoreClient, arguments: argparse.Namespace) -> None:
    for name, size in store.names():
        print(f"{size:>15,}  {name}")


def delete(store: BlobStoreClient, arguments: argparse.Namespace) -> None:
    store.delete(arguments.name)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="blobs", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--server", default=DEFAULT_SERVER, metavar="ADDRESS", help=f"default {DEFAULT_SERVER}"
    )
    commands = result.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("put", parents=[common], help="send a file")
    command.add_argument("file", type=Path)
    command.add_argument("--name", help="its name there; else the file's own")
    command.set_defaults(run=put)
    command = commands.add_parser("get", parents=[common], help="fetch a file")
    command.add_argument("name")
    command.add_argument("--output", type=Path, metavar="FILE", help="where to; else its name, here")
    command.set_defaults(run=get)
    command = commands.add_parser("list", parents=[common], help="names and sizes")
    command.set_defaults(run=list_names)
    command = commands.add_parser("delete", parents=[common], help="remove a file")
    command.add_argument("name")
    command.set_defaults(run=delete)
    return result


def main() -> int:
    arguments = parser().parse_args()
    try:
        with BlobStoreClient(arguments.server, connect_timeout=CONNECT_TIMEOUT_S) as store:
            arguments.run(store, arguments)
    except rrpc.RpcError as error:
        print(f"blobs: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"blobs: {error.filename or arguments.server}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("blobs: given up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
