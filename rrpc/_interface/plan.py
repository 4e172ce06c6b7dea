"""Plans, which prepare encoding, decoding and checks once per method so that calls only run them.

Both sides use the same plan: the caller encodes arguments and decodes the result, the server the other
way round, and both check values against the annotations.
"""

# Any thread may use a plan: it doesn't change, but for the two cached properties, which at worst are computed twice.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rrpc.codec import CompiledPlan, Message, Refused, decode, pack, prepare, refusal
from rrpc.errors import Internal, InvalidArgument, ProtocolError, RpcError

from .borrowed import borrower, freezer, holds_borrowed, lender
from .checks import compile_check
from .compiled import compiled
from .declared_errors import DeclaredErrors
from .dimensions import Dimensions, Sizes
from .interface import MISSING, Parameter
from .mismatch import Mismatch
from .out_arrays import OutSpec, Target
from .senders import sender
from .stream_annotations import item_of, kind_of
from .stream_items import Items

_Arrange = Callable[[list[Any]], dict[str, Any]]


class Plan:
    """The compiled form of one method."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        result: Any,
        errors: Sequence[type[RpcError]] = (),
    ) -> None:
        self.name = name
        self.errors = DeclaredErrors(errors)
        self.declared = tuple(parameters)
        """With the one that is a stream; the call's own arguments, ``parameters``, go without."""
        self.kind = kind_of(parameters, result)
        parameters = [parameter for parameter in parameters if not item_of(parameter.annotation)[1]]
        self.parameters = tuple(parameters)
        self.names = tuple(parameter.name for parameter in parameters)
        self.positional_count = sum(not parameter.keyword_only for parameter in parameters)
        self._checks = [compile_check(parameter.annotation) for parameter in parameters]
        self._senders = [sender(p.annotation, c) for p, c in zip(parameters, self._checks, strict=True)]
        annotations = {parameter.name: parameter.annotation for parameter in parameters}
        item, received = item_of(result)
        label = "an item of the result" if received else "the result"
        self._dimensions = Dimensions(name, annotations, item, compile_check, label) or None
        self.received = Items(name, "", item, self._dimensions) if received else None
        """The items of the result, if it's a stream."""
        self.sent = self._sent_items()
        """The items that the caller sends, if it does."""
        result = self._result = None if received else result
        self._check_result = compile_check(result)
        self._send_result = sender(result, self._check_result)
        self._borrowers = [borrower(annotation) for annotation in annotations.values()]
        self._borrows = any(map(holds_borrowed, annotations.values()))
        self._borrow_result = borrower(result) if holds_borrowed(result) else None
        self._freeze_result = freezer(result)
        self._lend_result = lender(result)

    @functools.cached_property
    def compiled(self) -> CompiledPlan | None:
        """The plan as the core has it; None where the codec in Python does it all.

        It is compiled at first use: a class may be defined after a method that names it.
        """
        return None if self.kind else compiled(self.parameters, self._result)

    @functools.cached_property
    def _codec(self) -> CompiledPlan | None:
        """The compiled plan for what is encoded and decoded here: no sizes of dimensions are to be known for it."""
        return None if self._dimensions is not None else self.compiled

    def sizes_of(self, arguments: Sequence[Any]) -> Sizes | None:
        """Returns the sizes of the named dimensions in the arguments; None where no dimension has a name."""
        return None if self._dimensions is None else self._dimensions.of_arguments(arguments)

    def _sent_items(self) -> Items | None:
        for parameter in self.declared:
            item, sent = item_of(parameter.annotation)
            if sent:
                label = f"an item of {parameter.name!r}"
                dimensions = Dimensions(self.name, {}, item, compile_check, label) or None
                return Items(self.name, parameter.name, item, dimensions)
        return None

    # The caller's side

    def encode_arguments(
        self, arguments: Sequence[Any], out: OutSpec | None = None, arrange: _Arrange | None = None
    ) -> tuple[bytes, Message]:
        """The request's payload and buffers; ``arguments`` stand in the order of the parameters.

        ``arrange`` makes a request of them for a server whose parameters are others.
        """
        # The core packs the short form of a request only.
        if out is None and arrange is None and self._codec is not None:
            packed = self._codec.pack_arguments(tuple(arguments))
            if packed is not None:
                return packed[0], Message(packed[1] or ())
        message = Message()
        try:
            values = [send(value, message) for send, value in zip(self._senders, arguments)]  # noqa: B905
            message.sizes = self.sizes_of(arguments)
            if out is None and arrange is None:
                return pack(values, message), message
            request = {"a": values} if arrange is None else arrange(values)
            if out is not None:
                request["o"] = out.packable()
            return pack(request, message), message
        except (Mismatch, Refused) as error:
            raise self._argument_fault(arguments, error) from None

    def decode_result(
        self, payload: bytes, blocks: list[Any] | None, out: Any = None, sizes: Sizes | None = None
    ) -> Any:
        """The result of a reply; ``out`` takes the place of the array that was written into it.

        ``sizes`` are those of the request's message, as in ``encode_result`` those of the arguments.
        """
        if out is None and self._codec is not None:
            read = self._codec.read_result(payload, blocks)
            if read is not None:
                return read[0]
        borrow = self._borrow_result
        value = decode(payload, blocks, out, borrow is not None)
        result = self._conforming(value if borrow is None else borrow(value, out), sizes)
        return out.in_place(result) if type(out) is Target else result

    def check_result(self, value: Any, arguments: Sequence[Any]) -> Any:
        """Checks a result that didn't come from the server, as ``decode_result`` does, and returns it."""
        return self._freeze_result(self._conforming(value, self.sizes_of(arguments)), None)

    def _conforming(self, value: Any, sizes: Sizes | None) -> Any:
        try:
            result = self._check_result(value)
        except Mismatch as mismatch:
            raise Internal(
                f"{self.name}(): the result{mismatch.path} isn't as declared: {mismatch}"
            ) from None
        if self._dimensions is not None and self.received is None:
            self._dimensions.check_result(result, sizes)
        return result

    # The server's side

    def decode_arguments(
        self, payload: bytes, blocks: list[Any] | None
    ) -> tuple[list[Any], OutSpec | None, Sizes | None]:
        """Decodes a request.

        Returns the arguments in the order of the parameters, what the caller wants in its own memory, and the sizes
        that the result must have, where dimensions have names.
        """
        if self._codec is not None:
            read = self._codec.read_arguments(payload, blocks)
            if read is not None:
                return read, None, None
        values, named, out = _request(decode(payload, blocks, None, self._borrows))
        if named or len(values) != len(self.names):
            values = self.bind(values, named)
        if self._borrows:
            values = [borrow(value, None) for borrow, value in zip(self._borrowers, values, strict=True)]
        try:
            checked = [check(value) for check, value in zip(self._checks, values)]  # noqa: B905
        except Mismatch as mismatch:
            raise self._argument_fault(values, mismatch) from None
        return checked, out, self.sizes_of(checked)

    def encode_result(
        self, value: Any, out: OutSpec | None = None, sizes: Sizes | None = None
    ) -> tuple[bytes, Message]:
        """The reply's payload and buffers (``out_index`` among them says which is for the caller's memory)."""
        if out is None and self._codec is not None:
            packed = self._codec.pack_result(value)
            if packed is not None:
                return packed[0], Message(packed[1] or ())
        message = Message()
        try:
            # Checked and made packable in one go, as nothing has to look at the checked value in between.
            if out is None and (self._dimensions is None or self.received is not None):
                return pack(self._send_result(value, message), message), message
            checked = self._check_result(value)
            if self._dimensions is not None:
                self._dimensions.check_result(checked, sizes)
            if out is not None:
                message.out = out.choose(checked)
            prepared = prepare(checked if self._lend_result is None else self._lend_result(checked), message)
            return pack(prepared, message), message
        except Mismatch as mismatch:
            text = f"{self.name}(): the result{mismatch.path} isn't as declared: {mismatch}"
            raise Internal(text) from None
        except Refused as refused:
            raise Internal(refusal(refused, f"{self.name}(): the result").message) from None

    def bind(self, positional: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """All arguments in the parameters' order, defaults filled in; TypeError-like as Python's own."""
        if len(positional) > self.positional_count:
            takes = f"takes {self.positional_count} positional argument{'s' * (self.positional_count != 1)}"
            raise InvalidArgument(f"{self.name}() {takes} but {len(positional)} were given")
        values = list(positional)
        given = set(self.names[: len(positional)])
        for name in named:
            if name not in self.names:
                raise InvalidArgument(f"{self.name}() got an unexpected keyword argument {name!r}")
            if name in given:
                raise InvalidArgument(f"{self.name}() got multiple values for argument {name!r}")
        for parameter in self.parameters[len(positional) :]:
            if parameter.name in named:
                values.append(named[parameter.name])
            elif parameter.default is not MISSING:
                values.append(parameter.default)
            else:
                raise InvalidArgument(f"{self.name}() missing a required argument: {parameter.name!r}")
        return values

    def _argument_fault(self, values: Sequence[Any], error: Mismatch | Refused) -> InvalidArgument:
        """The error that names the argument, found by trying each again."""
        for name, send, value in zip(self.names, self._senders, values, strict=True):
            what = f"{self.name}(): argument {name!r}"
            try:
                send(value, Message())
                pack(prepare(value, message := Message()), message)
            except Mismatch as mismatch:
                return InvalidArgument(f"{what}{mismatch.path}: {mismatch}")
            except Refused as refused:
                return refusal(refused, what)
        return InvalidArgument(f"{self.name}(): {error}")


def _request(decoded: Any) -> tuple[list[Any], dict[str, Any], OutSpec | None]:
    if type(decoded) is list:
        return decoded, {}, None
    if type(decoded) is not dict or not decoded.keys() <= {"a", "k", "o"}:
        raise ProtocolError("malformed request: neither a list nor a map of arguments")
    values, named, out = decoded.get("a", []), decoded.get("k", {}), decoded.get("o")
    if type(values) is not list or type(named) is not dict:
        raise ProtocolError("malformed request: arguments of the wrong kind")
    return values, named, None if out is None else OutSpec.parse(out)


def untyped_request(
    values: Sequence[Any], named: dict[str, Any], out: OutSpec | None, lend: bool = False
) -> tuple[bytes, Message]:
    """The request of a caller that knows nothing of the method's signature; with ``lend`` its arrays are lent."""
    message = Message()
    # Nothing is known of the method, so this holds for all arrays.
    message.lend = lend
    prepared = [_untyped(f"argument {i}", value, message) for i, value in enumerate(values)]
    request: Any = prepared
    if named or out is not None:
        request = {"a": prepared}
    if named:
        request["k"] = {name: _untyped(f"argument {name!r}", v, message) for name, v in named.items()}
    if out is not None:
        request["o"] = out.packable()
    try:
        return pack(request, message), message
    except Refused as refused:  # found only while packing: a lone surrogate, an endless int
        raise InvalidArgument(f"an argument can't be sent: {refused.reason}") from None


def _untyped(what: str, value: Any, message: Message) -> Any:
    try:
        return prepare(value, message)
    except Refused as refused:
        raise refusal(refused, what) from None
