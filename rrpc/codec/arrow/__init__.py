"""Tables of Arrow as values of rrpc, and back.

A table travels as a ``Record`` called ``ArrowTable`` with the fields

``schema``
    the bytes of Arrow's IPC message of the schema,
``rows``
    their number,
``columns``
    for each column a list of its chunks, each a node.

A node is a list ``[length, null count, [buffer, ...], [node, ...]]``: one of Arrow's arrays with an offset of 0. It
has the buffers in the order of Arrow's columnar format (bytes; None where there is no validity bitmap), and its
children, or the dictionary of a dictionary-encoded array. The node of an extension type is that of its storage. Large
buffers are bulk like any other memoryview.

pyarrow is imported when a table is first sent or received.
"""

from .layout import NAME, is_tabular, pyarrow, table_in
from .parts import parts_of
from .tables import one_batch, table_of

__all__ = ["NAME", "is_tabular", "one_batch", "parts_of", "pyarrow", "table_in", "table_of"]
