"""Values as message bytes plus the large buffers that travel beside them.

A payload is MessagePack. What MessagePack has no type for goes as an extension (``wire.py`` lists the
codes). Buffers of ``BULK_BYTES`` and more are *bulk*: they stand in the payload as an index
into the message's buffer list, and the peer fetches their bytes by remote read.

Payload of a request
    ``[argument, ...]``: all arguments in the order of the method's parameters (trailing ones may be
    absent, the server then takes its defaults); or, where names or ``out=`` are needed,
    ``{"a": [argument, ...], "k": {name: argument}, "o": [dtype, [dimension, ...]]}`` (``k`` and ``o``
    only when used; dtype as in ``dtypes.py``).
Payload of a reply
    the result, one value.

A payload that holds tuples, sets or dataclasses starts with the byte 0xC1, which MessagePack never
uses: the rest is decoded with a hook for every list. Others do without that cost.
"""

# Any thread may call what is here, several at once too. The modules keep caches that change by single operations, a
# packer for each thread, counters with a lock, and what `set_device_tensors` was told.

from rrpc._core import HAS_COMPILED_PLANS, CompiledPlan, Lent, Unread

from .advice import instead_of
from .arrow import NAME as ARROW_TABLE
from .arrow import one_batch, pyarrow, table_in, table_of
from .buffer_lists import decode_frames, encode_frames
from .classes import fields_in, has_attrs, has_fields, is_model
from .copy_counters import count_unpack
from .copy_counters import snapshot as copies
from .decoder import Record, decode, decode_part
from .dtypes import describe as describe_dtype
from .dtypes import numpy_kind
from .dtypes import parse as parse_dtype
from .encoder import Message, encode, encode_part, pack, prepare
from .lent_memory import frozen, own
from .sent_as_text import SENT_AS_TEXT
from .tensors import array_in, is_tensor, ml_type, set_device_tensors
from .unsendable import Refused, refusal
from .wire import BULK_BYTES, MAX_DEPTH

__all__ = [
    "ARROW_TABLE",
    "BULK_BYTES",
    "HAS_COMPILED_PLANS",
    "MAX_DEPTH",
    "SENT_AS_TEXT",
    "CompiledPlan",
    "Lent",
    "Message",
    "Record",
    "Refused",
    "Unread",
    "array_in",
    "copies",
    "count_unpack",
    "decode",
    "decode_frames",
    "decode_part",
    "describe_dtype",
    "encode",
    "encode_frames",
    "encode_part",
    "fields_in",
    "frozen",
    "has_attrs",
    "has_fields",
    "instead_of",
    "is_model",
    "is_tensor",
    "ml_type",
    "numpy_kind",
    "one_batch",
    "own",
    "pack",
    "parse_dtype",
    "prepare",
    "pyarrow",
    "refusal",
    "set_device_tensors",
    "table_in",
    "table_of",
]
