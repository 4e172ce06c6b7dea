"""Metadata as a value: what may be sent, how it travels, what arrives."""

import pickle
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rrpc
from rrpc.metadata import Metadata, merged, pack, unpack

_NAMES = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,20}", fullmatch=True)
_VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.binary(max_size=30)


@given(st.dictionaries(_NAMES, st.lists(_VALUES, min_size=1, max_size=3), max_size=5))
def test_what_is_sent_arrives(sent: dict[str, list[str | bytes]]) -> None:
    arrived = unpack(pack(sent))
    assert {name: arrived.get_all(name) for name in arrived} == sent
    assert {name: arrived[name] for name in arrived} == {name: values[0] for name, values in sent.items()}
    assert unpack(pack(arrived)) == arrived
    assert hash(unpack(pack(arrived))) == hash(arrived)
    assert pickle.loads(pickle.dumps(arrived)) == arrived


def test_what_arrived_is_a_mapping_that_stays_as_it_is() -> None:
    metadata = unpack(pack({"trace-id": "7", "key": b"\0\xff", "tag": ["a", b"b"], "x-bin": b"c"}))
    assert isinstance(metadata, Mapping)
    assert dict(metadata) == {"trace-id": "7", "key": b"\0\xff", "tag": "a", "x-bin": b"c"}
    assert metadata == {"trace-id": "7", "key": b"\0\xff", "tag": ["a", b"b"], "x-bin": b"c"}
    assert metadata.get("none") is None
    assert metadata.get_all("none") == []
    assert "Trace-Id" not in metadata
    metadata.get_all("tag").append("c")
    assert metadata.get_all("tag") == ["a", b"b"]
    with pytest.raises(TypeError):
        metadata["key"] = "other"  # type: ignore[index]


def test_none_takes_no_bytes() -> None:
    assert pack({}) == b""
    assert unpack(b"") == {}


def test_merging() -> None:
    assert merged({"a": "1", "b": ["2", "3"]}, {"b": "4", "c": "5"}) == {"a": "1", "b": "4", "c": "5"}


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"Trace-Id": "7"}, "'Trace-Id' can't be a name: use lower-case ASCII"),
        ({"": "7"}, "'' can't be a name"),
        ({"clé": "7"}, "'clé' can't be a name"),
        ({"a b": "7"}, "'a b' can't be a name"),
        ({"a\n": "7"}, "can't be a name"),
        ({b"a": "7"}, "a name must be a str, not bytes b'a'"),
        ({"a": 7}, "the value of 'a' must be str or bytes, not int 7"),
        ({"a": None}, "the value of 'a' must be str or bytes, not NoneType None"),
        ({"a": []}, "'a' has an empty list of values"),
        ({"a": ["x", 7]}, "the value of 'a' must be str or bytes, not int 7"),
        ({"a": "\ud800"}, "a value can't be sent as UTF-8"),
        ([("a", "7")], "metadata must be a dict of names to str or bytes, not list"),
    ],
)
def test_what_can_t_be_sent(metadata: Any, why: str) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=why):
        pack(metadata)


@pytest.mark.parametrize(
    "packed",
    [
        b"\xc1",
        b"\x01",
        b"\x81\xa1",
        *map(msgpack.packb, (["a"], {"A": "b"}, {"a": 7}, {"a": []}, {"a": [7]})),
    ],
)
def test_malformed(packed: bytes) -> None:
    with pytest.raises(rrpc.ProtocolError, match="malformed metadata"):
        unpack(packed)


def test_it_can_be_made_and_compared() -> None:
    assert Metadata({"a": "b"}) == {"a": "b"}
    assert Metadata({"a": "b"}) != {"a": "c"}
    assert Metadata({"a": "b"}) != 7
    assert repr(Metadata({"a": ["b", b"c"]})) == "Metadata({'a': ['b', b'c']})"
