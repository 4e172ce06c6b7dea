"""Run by an interpreter that has nothing but the wheel: the package is whole and a first call works.

usage: wheel_smoke.py with-verbs|without-verbs with-tls|without-tls, as the wheel was built.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

import rrpc

SERVICE = """
import rrpc

@rrpc.service
class Echo:
    @rrpc.method
    def echo(self, value: object) -> object:
        return value
"""


def main() -> None:
    here = Path(rrpc.__file__).parent
    assert here.parent.name == "site-packages", f"rrpc was imported from {here}, not from the wheel"
    assert (here / "py.typed").exists()
    assert rrpc.__version__ == importlib.metadata.version("rrpc-rdma")
    from rrpc import _core

    assert _core.HAS_COMPILED_PLANS, "it was built without msgpack-cxx's headers"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
        assert not enabled, "importing rrpc has switched the GIL on"
    check_verbs(here, built_with=sys.argv[1] == "with-verbs")
    check_tls(here, built_with=sys.argv[2] == "with-tls")
    check_language()
    scripts = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "echo.py").write_text(SERVICE)
        command = [str(scripts / "rrpc-gen"), "echo:Echo", "-o", "echo_client.py"]
        subprocess.run(command, cwd=folder, check=True, timeout=60)
        serve = [str(scripts / "rrpc-serve"), "echo:Echo", "--listen", "tcp://127.0.0.1:0"]
        with subprocess.Popen(
            serve, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as server:
            try:
                assert server.stdout is not None
                line = next(text for text in server.stdout if text.startswith("rrpc-serve: Echo on "))
                address = line.rsplit(" on ", 1)[1].strip()
                call(folder, address)
                command = [str(scripts / "rrpc-call"), address, "Echo.echo", "[1, 2]", "--json"]
                assert subprocess.check_output(command, text=True, timeout=60) == "[1, 2]\n"
            finally:
                server.terminate()
            assert server.wait(timeout=30) == 0


def check_tls(package: Path, built_with: bool) -> None:
    """Checks that TLS is in the wheel or that its absence is named: the certificate's file is missed only with TLS."""
    assert (package / "_tls.so").exists() == built_with, f"_tls.so: {not built_with}"
    why = ""
    try:
        rrpc.connect("tcps://127.0.0.1:1", tls_cert="none.pem", tls_key="none.pem")
    except rrpc.RpcError as error:
        why = str(error)
    assert ("none.pem" if built_with else "libssl-dev") in why, why


def check_language() -> None:
    """The grammar came along."""
    from rrpc.idl import parse, print_module

    text = "service Echo {\n  echo(value: any) -> any;\n}\n"
    assert print_module(parse(text)) == text


def check_verbs(package: Path, built_with: bool) -> None:
    """The verbs provider is there if it was built; rdma-core is the machine's own, loaded when asked for."""
    assert (package / "_verbs.so").exists() == built_with, f"_verbs.so: {not built_with}"
    libraries = [path.name for path in package.parent.rglob("lib*.so*")]
    bundled = [name for name in libraries if name.startswith(("libibverbs", "librdmacm"))]
    assert not bundled, f"the wheel brings {bundled}"
    assert "libibverbs" not in Path("/proc/self/maps").read_text(), "rrpc loads libibverbs unasked"


def call(folder: str, address: str) -> None:
    sys.path.insert(0, folder)
    from echo_client import EchoClient

    values = np.arange(100_000, dtype=np.float64)
    with EchoClient(address) as echo:
        assert echo.echo("hello", timeout=10.0) == "hello"
        assert np.array_equal(echo.echo(values, timeout=10.0), values)


if __name__ == "__main__":
    main()
