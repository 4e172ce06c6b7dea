"""Calls a Station with the client of this folder: python demo.py HOST PORT."""

import array
import sys

from wire import Array, CallError, Wire


def main(host: str, port: str) -> None:
    wire = Wire(host, int(port))
    print(wire.start("Station.summary", [18.5, 21.0, 19.5], timeout=10).result())

    readings = Array("<f8", (1000, 1000), array.array("d", range(1_000_000)))  # by descriptor: 8 MB
    fahrenheit = wire.start("Station.scaled", readings, 1.8).result()
    print(fahrenheit.shape, memoryview(fahrenheit.data).cast("d")[999_999])

    print([len(day.data) for day in wire.start("Station.days", 3, 50_000, streams=4)])

    recording = wire.start("Station.record", streams=2)
    for _ in range(100):
        recording.send(Array("<f8", (4,), array.array("d", [1.0, 2.0, 3.0, 4.0])))
    recording.finish()
    print(recording.result())

    watching = wire.start("Station.watch", streams=4)
    for item in watching:
        print("watched", item)
        watching.cancel()
        break
    try:
        wire.start("Station.summary", "warm").result()
    except CallError as error:
        print(error.code, error.text)
    wire.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
