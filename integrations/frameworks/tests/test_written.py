"""Tests clients, .rrpc files and fingerprints generated for such services, and which packages are imported."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import frameworks_service
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from processes import ROOT, run_python

import rrpc
from rrpc._interface import AnnotationError, compile_check
from rrpc._interface.decorators import interface_of
from rrpc.idl import Unit, emit, print_module
from rrpc.schema import module_of, service_of
from rrpc.schema.fingerprints import fingerprint
from rrpc.schema.model import Array, Opaque

INTERFACES = [interface_of(kind) for kind in (frameworks_service.Tensors, frameworks_service.Tables)]
TEXT = emit(Unit("a test", INTERFACES), "0.1.0")  # type: ignore[arg-type]
USE = """
import jax
import pandas as pd
import pyarrow as pa
import torch
from written import Layer, TablesClient, TensorsClient

def tensors(client: TensorsClient, x: torch.Tensor, y: jax.Array) -> None:
    a: torch.Tensor = client.same(x, out=x, timeout=1.0)
    b: jax.Array = client.squared(y)
    c: tuple[Layer, torch.Tensor | None] = client.layers([a], {"a": a}, Layer(a, None))
    client.same("text")
    client.squared(x)

def tables(client: TablesClient, table: pa.Table, frame: pd.DataFrame) -> None:
    a: pa.Table = client.same(table)
    b: pd.DataFrame = client.frame(frame)
    client.same(frame)
    client.frame(table)
"""
# Whole libraries take mypy minutes; these modules have the classes that are named.
MYPY = """[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,jax.*,jaxlib.*,pandas.*,pyarrow.*]
follow_imports = skip
[mypy-torch,torch._tensor,torch._C,torch.types,jax,jax._src.basearray,pandas,pandas.core.frame,pyarrow,pyarrow.lib]
follow_imports = silent
"""


def test_clients_are_typed(tmp_path: Path) -> None:
    (tmp_path / "written.py").write_text(TEXT)
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "mypy.ini").write_text(MYPY)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "written.py", "use.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(ROOT / "build/mypy-frameworks")}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    told = re.findall(
        r"^(\w+\.py:\d+): error: .* of \"(\w+)\" .*; expected \"(\w+)\"", ran.stdout, re.MULTILINE
    )
    assert told == [
        ("use.py:12", "_TensorsSame", "Tensor"),
        ("use.py:13", "_TensorsSquared", "Array"),
        ("use.py:18", "_TablesSame", "Table"),
        ("use.py:19", "_TablesFrame", "DataFrame"),
    ], ran.stdout
    assert "Found 4 errors" in ran.stdout


def test_clients_import_what_they_name_and_no_more() -> None:
    imports = [line for line in TEXT.splitlines() if line.startswith("import ")]
    assert imports == [
        *("import abc", "import jax", "import numpy as np", "import pandas as pd", "import pyarrow as pa"),
        *("import rrpc", "import torch"),
    ]
    assert 'Annotated[torch.Tensor, np.float32, rrpc.Shape("n", "d")]' in TEXT
    assert "Annotated[jax.Array, np.float32, rrpc.Shape(None)]" in TEXT


def declared(x: Any, result: Any) -> Any:
    def find(self: Any, x: Any, n: int = 3) -> Any: ...

    find.__annotations__ = {"x": x, "n": int, "return": result}
    return rrpc.service(name="lab.Finder")(type("Finder", (), {"find": rrpc.method(find)}))


SHAPE = rrpc.Shape("n", 3)


@pytest.mark.parametrize(
    ("here", "numpy"),
    [
        (torch.Tensor, NDArray[Any]),
        (jax.Array, np.ndarray),
        (Annotated[torch.Tensor, torch.float32], NDArray[np.float32]),
        (Annotated[torch.Tensor, np.int64, SHAPE], Annotated[NDArray[np.int64], SHAPE]),
        (Annotated[jax.Array, SHAPE, jnp.bfloat16], Annotated[NDArray[jnp.bfloat16.dtype.type], SHAPE]),  # type: ignore[name-defined]
        (Annotated[torch.Tensor, torch.bfloat16] | None, NDArray[jnp.bfloat16.dtype.type] | None),  # type: ignore[name-defined]
        (list[torch.Tensor], list[NDArray[Any]]),
    ],
)
def test_the_interface_is_that_of_arrays(here: Any, numpy: Any) -> None:
    assert fingerprint(service_of(declared(here, here))) == fingerprint(service_of(declared(numpy, numpy)))
    ours = print_module(module_of([declared(here, here)]))
    assert ours == print_module(module_of([declared(numpy, numpy)]))
    assert "array<" in ours


def test_tables_of_all_libraries_are_one_interface() -> None:
    prints = {
        fingerprint(service_of(declared(kind, kind))) for kind in (pa.Table, pa.RecordBatch, pd.DataFrame)
    }
    assert len(prints) == 1
    assert service_of(declared(pa.Table, pd.DataFrame)).methods[0].result == Opaque("pyarrow.Table")
    assert service_of(declared(torch.Tensor, pa.Table)).methods[0].parameters[0].type == Array("any")


def test_tables_have_no_word_in_files() -> None:
    with pytest.raises(
        AnnotationError, match=r"pyarrow\.Table has no word in the language: .*module:Service.*new_stream"
    ):
        print_module(module_of([frameworks_service.Tables]))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (set[torch.Tensor], "can't be a dict's key or in a set"),
        (dict[jax.Array, int], "can't be a dict's key or in a set"),
        (torch.nn.Parameter, r"declare torch.Tensor, and send \.detach\(\)"),
        (pa.Array, "declare pyarrow.Table and send it as a column"),
        (pd.Series, r"declare pandas.DataFrame and send \.to_frame\(\)"),
        (Annotated[torch.Tensor, np.object_], "has no items of object_"),
        (Annotated[torch.Tensor, np.floating], "has no items of floating"),
        (Annotated[torch.Tensor, torch.qint8], "tensors of torch.qint8 can't be sent"),
        (Annotated[pa.Table, rrpc.Shape(3)], "rrpc.Shape is for arrays, not for Table"),
    ],
)
def test_what_is_not_supported_names_the_way(annotation: Any, text: str) -> None:
    with pytest.raises(AnnotationError, match=text):
        compile_check(annotation)


NUMPY_ONLY = """
import sys
import numpy as np
import rrpc
from numpy.typing import NDArray

@rrpc.service
class Plain:
    @rrpc.method
    def double(self, a: NDArray[np.float32], b: dict[str, int] | None = None) -> NDArray[np.float32]:
        return a * 2

with rrpc.serve(Plain(), listen="tcp://127.0.0.1:0") as server, rrpc.connect(server.addresses[0]) as client:
    assert client.call("Plain.double", np.ones(100_000, np.float32)).sum() == 200_000
    from rrpc.idl import Unit, emit
    from rrpc._interface import interface_of
    emit(Unit("a test", [interface_of(Plain)]), "0.1.0")
print([name for name in ("torch", "jax", "jaxlib", "pyarrow", "pandas", "polars", "ml_dtypes") if name in sys.modules])
"""


def test_nothing_is_imported_unless_used() -> None:
    assert run_python(NUMPY_ONLY).stdout == "[]\n"


def test_data_frames_need_pyarrow() -> None:
    code = (
        "import sys\nsys.modules['pyarrow'] = None\nimport pandas, rrpc\nfrom rrpc._interface import compile_check\n"
        "try:\n    compile_check(pandas.DataFrame)\nexcept rrpc.AnnotationError as error:\n    print(error)\n"
        "from rrpc.codec import Message, Refused, encode\n"
        "try:\n    encode(pandas.DataFrame(), Message())\nexcept Refused as error:\n    print(error)\n"
    )
    told = run_python(code).stdout.splitlines()
    assert told[0] == "pandas.DataFrame: tables travel as Arrow: pip install rrpc-rdma[arrow]"
    assert told[1].endswith("tables travel as Arrow: pip install rrpc-rdma[arrow]")
