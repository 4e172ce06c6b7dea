"""The C++ core as Python sees it. Private: users import from ``rrpc``.

Every call that may wait releases the GIL. Timeouts are seconds; ``None`` means no deadline. Failures
raise what the factory given to ``set_error_factory`` makes of (code, message, protocol_error,
details, metadata, not_executed), where ``details`` and ``metadata`` are the opaque bytes that a server passed to
``Server.reply_error``, and ``not_executed`` says that the call was never sent, or refused before any handler saw it.

``metadata`` is bytes that go with a request or a reply, at most ``metadata_bytes_max`` of them. A client packs a dict
of names and values itself, and gives whatever else isn't bytes to the function of ``set_metadata_packer``.

A *buffer* is any object whose ``PyBUF_SIMPLE`` export is contiguous; it is held until the peer has
read it. A ``Block`` is pool memory that returns to the pool when its last reference goes.
"""

import enum
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_Metadata = bytes | Mapping[str, Any]
_Buffers = Sequence[Any] | None
_Timeout = float | None
_Principals = Sequence[tuple[str, str | int]]
_Process = tuple[int, int, int]  # pid, uid, gid
_Certificate = tuple[str, tuple[str, ...], tuple[str, ...]]  # subject, DNS names, URIs

class Block:
    """Memory of the pool, or, read-only, memory lent by a peer, as a buffer (1-D, unsigned bytes, 64-byte aligned)."""
    @property
    def nbytes(self) -> int: ...

class Lent:
    """A buffer that the peer may read in place; stands for the buffer wherever buffers are sent."""
    def __init__(self, buffer: Any) -> None: ...
    @property
    def buffer(self) -> Any: ...

class Call:
    """One call in flight, made by ``Client.start``."""
    def done(self) -> bool: ...
    def wait(self, timeout: _Timeout = None) -> bool:
        """Drives the connection until the call is done (True) or the timeout has passed (False)."""
    def result(self, timeout: _Timeout = None) -> tuple[bytes, list[Block | None] | None]:
        """Waits, then returns the reply. Raises the call's error, or TimeoutError if it isn't done in time."""
    def cancel(self) -> bool:
        """Ends the call with CANCELLED and returns True; returns False if it had ended already."""
    def cancelled(self) -> bool: ...
    def metadata(self) -> bytes:
        """Returns the reply's metadata, or the error's if the call failed; empty until the call is done."""
    def stamps(self) -> tuple[int, int, int, int, int, int] | None:
        """Returns when a traced call came to each of its steps, in ns by time.monotonic_ns().

        The steps are: it was started, its arguments were exposed, it was sent (there was a credit), its reply was here,
        its results were (it had ended), they were taken (this thread had the GIL again). A step that never came about
        is 0. None if the call isn't traced, for which no clock is read, or isn't done.
        """
    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once, on whatever thread, soon after the call ends (at once if it has ended)."""

class LoopDriver:
    """Polls in one event loop for what that awaits, in callbacks of the loop; for its thread alone."""
    def __init__(self, loop: AbstractEventLoop) -> None: ...
    @property
    def loop(self) -> AbstractEventLoop: ...
    def fileno(self) -> int:
        """Returns a descriptor, readable when ``poll_soon`` should be called though nothing was begun."""
    def poll_soon(self) -> None:
        """Has the loop poll from its next round on; called after anything new was begun there."""
    def close(self) -> None:
        """Drops what comes from now on."""

class Client:
    def __init__(
        self, address: str, options: dict[str, Any], timeout: _Timeout, serve: Server | None = None
    ) -> None:
        """Connects; ``options`` as in ``default_options``.

        ``serve`` takes the calls that the server makes to this client (``Server.peer``), with its own workers; it need
        not listen. The connection ends with it.
        """
    def call(
        self,
        method: bytes,
        payload: bytes,
        buffers: _Buffers,
        out: Any,
        timeout: _Timeout,
        metadata: _Metadata = b"",
    ) -> tuple[bytes, list[Block | None] | None]:
        """Makes a unary call, waits for it and returns the reply.

        ``out`` is a writable buffer offered for one result buffer; in the reply's list that buffer stands as None. The
        reply's metadata is dropped: ``start`` keeps it.
        """
    def start(
        self,
        method: bytes,
        payload: bytes,
        buffers: _Buffers,
        out: Any,
        timeout: _Timeout,
        metadata: _Metadata = b"",
        traced: bool = False,
    ) -> Call: ...
    def start_in_loop(
        self,
        driver: LoopDriver,
        target: Any,
        method: bytes,
        payload: bytes,
        buffers: _Buffers,
        out: Any,
        timeout: _Timeout,
        metadata: _Metadata = b"",
        traced: bool = False,
    ) -> Call:
        """Begins a call; the loop calls target.arrived(payload, blocks), or (None, error), at its end."""
    def open(
        self,
        method: bytes,
        payload: bytes,
        buffers: _Buffers,
        timeout: _Timeout,
        metadata: _Metadata,
        kind: int,
    ) -> Stream:
        """Begins a call with streams: ``kind`` is 2 where this end sends items, 4 where the server does, 6 both."""
    def close(self, timeout: _Timeout = None) -> None: ...
    def usable(self) -> bool:
        """Returns whether new calls can be begun: it isn't closed, failed or told to go (GOAWAY). Cheap."""
    def on_unusable(self, callback: Callable[[], None]) -> None:
        """Calls back once, on any thread, when ``usable`` is false; the callback must not refer to this client."""
    def calls_in_flight(self) -> int:
        """Returns the number of calls that are begun and not over at both ends. Cheap."""
    def peer_hello(self) -> dict[bytes, bytes]:
        """Returns the fields that the server gave of itself when the connection was made."""
    def info(self) -> dict[str, Any]:
        """Returns facts by name: address, transport, bulk_method, exposure, peer, adapter, state, sent_on_to, rails, why_not."""
    def stats(self) -> dict[str, int]: ...

class Policy:
    def __init__(
        self,
        methods: Mapping[str, _Principals],
        rules: Sequence[tuple[str, _Principals]] | None,
        tokens: bool,
    ) -> None: ...
    def permits(
        self, method: str, process: _Process | None, certificate: _Certificate | None, token: str
    ) -> bool: ...

class Request(NamedTuple):
    """A call that a server is to handle."""

    handle: int
    """Names the call until it is answered."""
    method: bytes
    payload: bytes
    """The arguments, packed."""
    buffers: list[Block] | None
    """The blocks of the large arguments."""
    ns_left: int
    """Nanoseconds until the deadline, or -1."""
    metadata: bytes
    traced: bool
    """Whether the metadata has ``rrpc.metadata.TRACE``."""
    kind: int
    """0 for a unary call, else the sum of 2 (the client streams), 4 (the server does), and 8 where a call that was
    parked may go on, which then has neither payload nor metadata again."""

class Awaited(enum.Enum):
    ROOM = ...
    ITEMS = ...
    DELIVERY = ...
    END = ...

class Unread:
    # An item that its plan leaves to Python, or whose class raised the error.
    payload: bytes
    buffers: list[Any] | None
    error: BaseException | None

class Stream:
    """The items of one call, at either end: (payload, buffers) each. Any thread may use it.

    An item for which the peer's window has no room isn't taken; one that is may still be on its way when the method
    returns, and its buffers are held until the peer has read them. What fails because the call has ended raises the
    call's error. A client's stream that goes before its call has ended cancels the call.
    """
    def send(self, payload: bytes, buffers: _Buffers = None, timeout: _Timeout = None) -> None:
        """Waits for room, then sends an item. Raises TimeoutError if no room comes in time."""
    def try_send(self, payload: bytes, buffers: _Buffers = None) -> bool:
        """Sends an item and returns True, or returns False if there is no room now."""
    def finish(self) -> None:
        """Ends the items of this end. A server need not call it: its reply says so."""
    def receive(self, count: int = 1, timeout: _Timeout = None) -> list[tuple[bytes, list[Block] | None]]:
        """Waits for an item; returns up to ``count`` that are here, [] at the end. Raises TimeoutError, or the reply's error."""
    def send_each(
        self, source: Iterator[Any], plan: CompiledPlan, slice_s: _Timeout = None
    ) -> tuple[Any, ...] | None:
        """Sends an iterator's items by their plan: for ``slice_s`` seconds, or with None to the end, waiting for room.

        Returns None at the iterator's end, (item,) if the plan leaves one to Python, (payload, buffers) of one without
        room, or () at the slice's end. Raises what the iterator does.
        """
    def receive_values(
        self, plan: CompiledPlan, count: int = 1, timeout: _Timeout = None
    ) -> tuple[list[Any], bool, bool]:
        """Receives decoded items. Also returns whether some are ``Unread``, and whether some had buffers."""
    def try_receive(self, count: int = 1) -> list[tuple[bytes, list[Block] | None]] | None:
        """Returns the same as ``receive``, or None where that would wait."""
    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has buffers of items land in what ``allocate(nbytes)`` returns; memoryviews of it stand in blocks' places."""
    def send_initial_metadata(self, metadata: bytes) -> None:
        """Sends a server's initial metadata, before its first item."""
    def initial_metadata(self) -> bytes | None:
        """Returns the initial metadata that a client got, which comes before the first item; None until then."""
    def result(self, timeout: _Timeout = None) -> tuple[bytes, list[Block | None] | None]:
        """Waits for the reply of a client's call, then returns it.

        The reply comes after the items: those not taken are kept, and a server that waits for room doesn't reply.
        Raises the call's error, or TimeoutError if the reply isn't there in time.
        """
    def metadata(self) -> bytes:
        """Returns the metadata of the reply or the error, at a client; empty before the call is done."""
    def done(self) -> bool:
        """Returns whether the call has ended for this end; at a client there may be items left to take."""
    def cancel(self) -> None:
        """Gives a client's call up, unless it has ended."""
    def ask_delivered(self) -> int:
        """Asks the peer to say when it has all items sent so far; returns their number for ``delivered``."""
    def delivered(self, sequence: int) -> bool:
        """Returns whether the peer has all of the items before this number, or the call ended well. Raises its error."""
    def wait_delivered(self, timeout: _Timeout = None) -> None:
        """Waits until all items sent so far are delivered. Raises TimeoutError if they aren't in time."""
    def peer_finished(self) -> bool:
        """Returns whether the last item of the peer has come; items may be left to take."""
    def answered(self) -> bool:
        """Returns whether the reply is here, at a client, which sends no more; the last items may still be fetched."""
    def addresses(self) -> tuple[str, str]:
        """Returns this end's address and the peer's."""
    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls back once the call has ended for this end, at once if it has; on rrpc's own thread or one that waits."""
    def park(self) -> None:
        """Lets the worker go of a server's call until there is something to do for it.

        ``Server.next`` gives its handle again, with 8 in the kind, once there is room for what a try_send() was False
        for, or the call has ended; at once where there was none. Meanwhile another call may be handled in its place.
        """
    def notify(self, driver: LoopDriver, target: object, what: Awaited) -> None:
        """Has the loop call target.arrived(None, None) once ``what`` may be there, or the call has ended."""

HAS_COMPILED_PLANS: bool

class CompiledPlan:
    """Packs and reads a method's values, as (payload, buffers); None where the codec in Python is to do it."""
    def __init__(self, arguments: Sequence[Any], result: tuple[Any, ...], names: list[str] = ...) -> None: ...
    def pack_arguments(self, values: tuple[Any, ...]) -> tuple[bytes, list[Any] | None] | None: ...
    def read_arguments(self, payload: bytes, blocks: list[Block | None] | None) -> list[Any] | None: ...
    def pack_result(self, value: Any) -> tuple[bytes, list[Any] | None] | None: ...
    def read_result(self, payload: bytes, blocks: list[Block | None] | None) -> tuple[Any] | None:
        """Returns the result in a tuple."""

class MethodBinding:
    """Holds what the calls of one method of one client need; made by the method's stub."""
    def __init__(self, *parts: Any) -> None: ...
    def bind(self, connection: Any, client: Client, name: bytes) -> None:
        """Has calls take this connection, as long as it is the channel's ``ready`` one."""

class DirectMethod:
    """A client's method that needs no Python for plain calls. It leaves others to the stub, and has its attributes."""
    def __init__(self, stub: Any, binding: MethodBinding, in_loop: bool) -> None: ...

class DirectFuture:
    """The base of ``rrpc.Future``: calls that a ``DirectMethod`` starts are waited for without Python."""
    def _give(self) -> Any: ...

def set_future_class(future_class: type) -> None: ...
def set_loop_drivers(drivers: dict[AbstractEventLoop, LoopDriver], cancelled_error: type) -> None: ...

class CurrentCall:
    """The call that ``DirectCalls`` runs a handler for; it stands in the context variable."""
    @property
    def ended(self) -> bool: ...
    def context(self) -> Any:
        """Returns the call's ``rrpc.Context``, which is made when it is first asked for."""

def set_context(variable: Any, context_class: Any) -> None:
    """Sets the context variable, and the class that ``CurrentCall.context`` makes."""

class DirectCalls:
    """Carries out, for one worker, the calls whose methods are compiled, until one comes that isn't plain."""
    def __init__(self, core: Server, handlers: Mapping[bytes, tuple[Any, ...]]) -> None: ...
    def next(self, worker: Any, idle_s: float | None = None, builtin: bool = False) -> Request | None:
        """Returns the next call that Python is to handle; None on timeout or once drained or stopped."""
    def reply_next(self, worker: Any, handle: int, payload: bytes, builtin: bool = False) -> Request | None:
        """Replies with a result, then does what ``next`` does without a timeout, in one crossing."""
    def running(self) -> bytes | None: ...

class LoopCalls:
    """The same as ``DirectCalls`` for async handlers, in an event loop and in the task of one runner after the other."""
    def __init__(self, core: Server, handlers: Mapping[bytes, Any], driver: LoopDriver) -> None: ...
    def take(self) -> None: ...  # the calls that have come
    def __len__(self) -> int: ...  # of those that no runner has yet
    def next(self, runner: Any, task: Any, clean: Any) -> Any: ...  # loop_calls.h says what it returns
    def running(self) -> bytes | None: ...

def is_clean(task: Any, clean: Any) -> bool: ...  # whether handlers left nothing behind

class Server:
    def __init__(self, options: dict[str, Any]) -> None: ...
    def listen(self, address: str, for_others: bool = False) -> str:
        """Listens, and returns the address really bound. ``for_others``: clients go on to where ``redirect`` says."""
    def redirect(self, bound: str, targets: Sequence[str]) -> None:
        """Sets where clients of the bound address go, in turn: ports of this host, or endings of a shm:// path."""
    def add_to_hello(self, fields: dict[str, bytes]) -> None:
        """Adds fields to the HELLO for clients that connect from now on, where the slots have room."""
    def serve_apart(self, methods: Sequence[bytes]) -> None:
        """Has calls of these methods go to ``next(builtin=True)``, one at a time. Called before ``listen``."""
    def next(self, timeout: _Timeout = None, builtin: bool = False) -> Request | None:
        """Returns the next call to handle; None on timeout or once drained or stopped."""
    def serve_in_loop(
        self, driver: LoopDriver, target: Any, methods: Sequence[bytes], max_concurrency: int, all: bool
    ) -> None:
        """Has calls of these methods go to an event loop, so many at a time. Called before ``listen``.

        The loop polls for calls from now on. target.arrived(None, None) says that there are some. ``all``:
        there are no workers, so it gets what names no method, too, and any number of those that are served apart.
        """
    def next_in_loop(self) -> list[Request]:
        """Returns the calls to handle now, as ``next`` gives them. Called in the loop's thread."""
    def notify_given_up(self, handle: int) -> None:
        """Has the loop call target.arrived(handle, None) once nobody waits for the reply to a call in it."""
    def reply(
        self,
        handle: int,
        payload: bytes,
        buffers: _Buffers = None,
        out_index: int = -1,
        metadata: bytes = b"",
    ) -> tuple[int, str] | None:
        """Returns what the client gets instead, (code, message), or None. ``out_index``: the buffer for ``out``."""
    def reply_error(
        self,
        handle: int,
        code: int,
        message: str,
        details: bytes = b"",
        metadata: bytes = b"",
        not_executed: bool = False,
    ) -> tuple[int, str] | None:
        """Replies with an error, like ``reply``. ``not_executed``: no handler saw the call, so it may be made again."""
    def stream(self, handle: int) -> Stream:
        """Returns the streams of a call that is being handled, where its kind has some."""
    def peer(self, handle: int) -> Client:
        """Returns a client for calls to the client that made this call, over the same connection.

        It works after the reply, too. Raises FailedPrecondition where that client takes no calls. Its ``Client.close``
        leaves the connection open. A handler that waits for such a call holds its worker; where that one calls again,
        another worker is needed.
        """
    def set_aside(self, handle: int) -> None:
        """Frees a call's worker for another one; ``next`` gives it again after ``bring_back``, with 8 in the kind."""
    def bring_back(self, handle: int) -> None:
        """Ends ``set_aside``, from any thread; does nothing where the call is answered."""
    def lend(self, handle: int) -> None:
        """Lets another handler run in the place of one that is about to wait, and that keeps its thread."""
    def take_up(self, handle: int) -> None:
        """Ends ``lend``: waits until fewer than ``max_concurrency`` handlers run, or the server is stopped."""
    def out_bytes(self, handle: int) -> int:
        """Returns the size of the caller's ``out`` memory in bytes, 0 when there is none."""
    def call_info(
        self, handle: int
    ) -> tuple[str, int, int, tuple[_Process | None, _Certificate | None]] | None:
        """Returns peer, ns of fetching arguments and of waiting for a worker, identity; None if it is answered."""
    def why_denied(self, handle: int, token_subject: str) -> str:
        """Returns why the policy refuses a call with this token, "" if it doesn't or the call is answered."""
    def set_policy(self, policy: Policy | None) -> None:
        """Sets who may call what, from the next call on. Refused calls end before they come to Python."""
    def on_denials(self, callback: Callable[[], None]) -> None:
        """Calls back once, on any thread, soon after ``take_denials`` has something: lines for a log."""
    def take_denials(self) -> list[str]: ...
    def tls_state(self) -> tuple[str, int, str]: ...
    def stamps(self, handle: int) -> tuple[int, int, int] | None:
        """Returns when the request arrived, its arguments were here and a worker took it, by time.monotonic_ns().

        Busy pollers' readings may be some microseconds old. None once the call is answered.
        """
    def is_cancelled(self, handle: int) -> bool:
        """Returns whether nobody waits for a reply: given up, disconnected, past the deadline, or answered."""
    def is_late(self, handle: int) -> bool:
        """Returns whether it was given up because its deadline has passed (or does within a second), or answered."""
    def on_cancel(self, handle: int, callback: Callable[[], None]) -> bool:
        """Calls back once, on any thread, soon after ``is_cancelled`` is true; returns False if it is answered."""
    def stop_listening(self) -> None:
        """Refuses new clients: connecting fails from now on. Clients that are connected go on."""
    def send_away(self, count: int, reason: str) -> int:
        """Tells so many clients, those connected longest, to connect again; returns how many were told now."""
    def drain(self, timeout: _Timeout) -> tuple[int, int]:
        """Refuses new calls, and lets running ones finish and their results be fetched.

        Returns what isn't over in the end: (calls, results that weren't fetched). ``stop`` the server afterwards.
        """
    def stop(self) -> None:
        """Closes everything at once; every next() returns None."""
    def stopped(self) -> bool:
        """Returns whether the server is drained or stopped: next() will give no more."""
    def stats(self) -> dict[str, int]: ...

def default_options() -> dict[str, Any]:
    """Returns the options by name, with their defaults.

    They are slots, slot_bytes, calls_in_flight_max, message_bytes_max, metadata_bytes_max, buffers_max,
    landing_bytes_max, exposed_bytes_max, queued_bytes_max, lent_bytes_max (None: what fits the machine), fetch_timeout
    (seconds), stream_window_items, stream_window_bytes, poll ("adaptive", "busy" or "event"), spin_us,
    keepalive_interval, keepalive_timeout, lease_timeout (seconds), any_user, allow_clients (compiled), connections_max,
    max_connection_age, max_connection_age_grace (seconds; None: no limit), max_concurrency, max_queue, rate_limit (calls
    a second), rate_burst (None: no limit), stream_handlers_max, handshakes_max, pollers, numa_node ((number, processors) or
    None), shared_receive_slots, transports (a sequence or "shm,verbs,tcp", best first; None: RRPC_TRANSPORTS, else all).
    """

KEYS_UNCHECKED: int  # dicts and sets of so few keys need no keys_collide()
OBJECTS_ALWAYS: int  # a payload of so many bytes can't have too many objects

def scan_payload(payload: bytes | memoryview) -> bool:
    """Returns whether a map of more than ``KEYS_UNCHECKED`` entries has a key that is neither str nor bin.

    Raises ValueError where no decoder should begin: nested too deep, too many objects for its bytes, a timestamp.
    """

def keys_collide(keys: list[Any]) -> bool: ...  # True: they make a dict take far more time than usual
def user_name(uid: int) -> str: ...
def allocate(nbytes: int, private: bool = False) -> Block: ...
def share_references(array: object) -> None: ...  # any thread may free it, without a GIL too
def stats() -> dict[str, int]: ...
def set_pool_limit(nbytes: int) -> None: ...
def set_pool_idle_timeout(seconds: float | None) -> None: ...
def prefault_pool(nbytes: int) -> None: ...
def trim() -> int: ...
def watch_buffers(begin: Callable[[int], Callable[[], None]] | None) -> None:
    """Has ``begin(nbytes)`` called for each buffer that is sent, and what it returns if the bytes change meanwhile."""

def set_processes(count: int) -> None: ...
def set_error_factory(factory: Callable[[int, str, bool, bytes, bytes, bool], BaseException]) -> None: ...
def set_metadata_packer(packer: Callable[[Any], bytes]) -> None: ...
def transports() -> dict[str, str]:
    """Returns a dict from each scheme to "" where it is usable, otherwise to the reason why not."""

def adapters() -> list[dict[str, str]]:
    """Returns each port of each adapter that rdma-core knows; Device::describe() names the fields."""
