"""The C++ core as Python sees it. Private: users import from ``rrpc``.

Every call that may wait releases the GIL. Timeouts are seconds; ``None`` means no deadline. Failures
raise what the factory given to ``set_error_factory`` makes of (code, message, protocol_error,
details, metadata, not_executed), where ``details`` and ``metadata`` are the opaque bytes that a server passed to
``Server.reply_error``, and ``not_executed`` says that the call was never sent, or refused before any handler saw it.

``metadata`` is bytes that go with a request or a reply, at most ``metadata_bytes_max`` of them. A client packs a plain dict
of names and values itself, and gives whatever else isn't bytes to the function of ``set_metadata_packer``.

A *buffer* is any object whose ``PyBUF_SIMPLE`` export is contiguous; it is held until the peer has
read it. A ``Block`` is pool memory that returns to the pool when its last reference goes.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_Metadata = bytes | Mapping[str, Any]

class Block:
    """Writable pool memory with the buffer protocol (1-D, unsigned bytes, at least 64-byte aligned)."""
    @property
    def nbytes(self) -> int: ...

class Call:
    """One call in flight, made by ``Client.start``."""
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool:
        """Drive the connection until the call is done (True) or the timeout has passed (False)."""
    def result(self, timeout: float | None = None) -> tuple[bytes, list[Block | None] | None]:
        """Wait, then give the reply; raises the call's error, or TimeoutError if it isn't done in time."""
    def cancel(self) -> bool:
        """True if the call had not ended; it then ends with CANCELLED."""
    def cancelled(self) -> bool: ...
    def metadata(self) -> bytes:
        """Of the reply; empty until the call is done. An error's is in the error."""
    def stamps(self) -> tuple[int, int, int, int, int, int] | None:
        """Of a traced call that is done, in ns by time.monotonic_ns(): when it was started, its arguments were exposed,
        it was sent (there was a credit), its reply was here, its results were (it had ended), they were taken (this
        thread had the GIL again). 0 for what never came about. Clocks are read for traced calls only."""
    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back once, on whatever thread, soon after the call ends (at once if it has ended)."""

class LoopQueue:
    """What an event loop is told of; one for each loop, for its thread alone."""
    def fileno(self) -> int:
        """Readable when ``poll`` should be called again after it gave None."""
    def poll(self) -> list[tuple[Any, Any, Any]] | None:
        """Poll for what the loop awaits, without blocking, and give what has come: (target, first, second), as
        whatever was awaited says. None: nothing to poll for; the loop may rest until ``fileno()`` is readable or
        something new is begun."""
    def close(self) -> None:
        """Drop what comes from now on."""

class Client:
    def __init__(
        self, address: str, options: dict[str, Any], timeout: float | None, serve: Server | None = None
    ) -> None:
        """Connect; ``options`` as in ``default_options``. ``serve`` takes the calls that the server makes to this
        client (``Server.peer``), with its own workers; it need not listen. The connection ends with it."""
    def call(
        self,
        method: bytes,
        payload: bytes,
        buffers: Sequence[Any] | None,
        out: Any | None,
        timeout: float | None,
        metadata: _Metadata = b"",
    ) -> tuple[bytes, list[Block | None] | None]:
        """A unary call. ``out`` is a writable buffer offered for one result buffer; in the reply's list
        that buffer stands as None. The reply's metadata is dropped: ``start`` keeps it."""
    def start(
        self,
        method: bytes,
        payload: bytes,
        buffers: Sequence[Any] | None,
        out: Any | None,
        timeout: float | None,
        metadata: _Metadata = b"",
        traced: bool = False,
    ) -> Call: ...
    def start_in_loop(
        self,
        queue: LoopQueue,
        target: Any,
        method: bytes,
        payload: bytes,
        buffers: Sequence[Any] | None,
        out: Any | None,
        timeout: float | None,
        metadata: _Metadata = b"",
        traced: bool = False,
    ) -> Call:
        """As ``start``, in the queue's thread; how it ended comes out of the queue's ``poll`` as
        (target, payload, blocks) or (target, None, error)."""
    def open(
        self,
        method: bytes,
        payload: bytes,
        buffers: Sequence[Any] | None,
        timeout: float | None,
        metadata: _Metadata,
        kind: int,
    ) -> Stream:
        """A call with streams: ``kind`` 2 where this end sends items, 4 where the server does, 6 both. ``timeout`` is the
        call's as a whole."""
    def close(self, timeout: float | None = None) -> None: ...
    def usable(self) -> bool:
        """New calls can be begun: neither closed, nor failed, nor told that the server takes no more (GOAWAY). Cheap."""
    def on_unusable(self, callback: Callable[[], None]) -> None:
        """Call back once, on whatever thread, soon after ``usable`` has become false (at once if it is). Held until
        then, so it must not refer to this client."""
    def calls_in_flight(self) -> int:
        """Begun and not over at both ends. Cheap."""
    def peer_hello(self) -> dict[bytes, bytes]:
        """What the server said of itself when the connection was made."""
    def info(self) -> dict[str, Any]:
        """address, transport, bulk_method, exposure, peer, adapter (verbs), state, sent_on_to (another process's
        address), why_not (reasons by transport)."""
    def stats(self) -> dict[str, int]: ...

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
    """0 for a unary call, else the sum of 2 (the client streams), 4 (the server does), and 8 where a call that was parked
    may go on, which then has neither payload nor metadata again."""

class Awaited(enum.Enum):
    ROOM = ...
    ITEMS = ...
    DELIVERY = ...
    END = ...

class Stream:
    """The items of one call, at either end: (payload, buffers) each. Any thread may use it.

    An item for which the peer's window has no room isn't taken; one that is may still be on its way when the method
    returns, and its buffers are held until the peer has read them. What fails because the call has ended raises the
    call's error. A client's stream that goes before its call has ended cancels the call.
    """
    def send(
        self, payload: bytes, buffers: Sequence[Any] | None = None, timeout: float | None = None
    ) -> None:
        """Wait for room, then send. TimeoutError if none comes in time."""
    def try_send(self, payload: bytes, buffers: Sequence[Any] | None = None) -> bool:
        """False: there is no room now."""
    def finish(self) -> None:
        """No more items of this end. A server need not: its reply says so."""
    def receive(self, count: int = 1, timeout: float | None = None) -> list[tuple[bytes, list[Block] | None]]:
        """Wait for an item, and give up to ``count`` that are here; [] once the peer's items have ended. TimeoutError if
        none comes in time. At a client that includes the items before a reply that is an error, which is raised after."""
    def try_receive(self, count: int = 1) -> list[tuple[bytes, list[Block] | None]] | None:
        """``receive``, or None where it would wait."""
    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Have buffers of items whose fetch hasn't begun land in what ``allocate(nbytes)`` gives, which is called by whoever
        receives. A memoryview of that then stands in a block's place."""
    def send_initial_metadata(self, metadata: bytes) -> None:
        """Of a server's, before its first item."""
    def initial_metadata(self) -> bytes | None:
        """Of a client's: None as long as none has come. It is here when the first item is."""
    def result(self, timeout: float | None = None) -> tuple[bytes, list[Block | None] | None]:
        """Of a client's: wait for the reply, which comes after the items (those not taken are kept, and a server that
        waits for room doesn't reply); raises the call's error, or TimeoutError if it isn't there in time."""
    def metadata(self) -> bytes:
        """Of a client's: that of the reply, or of the error; empty before the call is done."""
    def done(self) -> bool:
        """The call has ended for this end; at a client there may be items left to take."""
    def cancel(self) -> None:
        """Of a client's: give the call up, unless it has ended."""
    def ask_delivered(self) -> int:
        """Asks the peer to say when it has all items sent so far; returns their number for ``delivered``."""
    def delivered(self, sequence: int) -> bool:
        """Whether the peer has the items before this number and has fetched their buffers, or the call ended well.
        Raises the call's error."""
    def wait_delivered(self, timeout: float | None = None) -> None:
        """Waits until all items sent so far are delivered. TimeoutError if they aren't in time."""
    def peer_finished(self) -> bool:
        """Whether the last item of the peer has come; items may be left to take."""
    def addresses(self) -> tuple[str, str]:
        """This end's address and the peer's."""
    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls back once the call has ended for this end, at once if it has, on a thread of rrpc's own or one that waits."""
    def park(self) -> None:
        """Of a server's: the worker lets go of the call, and ``Server.next`` gives its handle again, with 8 in the
        kind, once there is room for what a try_send() was False for, or the call has ended; at once where there was
        none. Meanwhile another call may be handled in its place."""
    def notify(self, queue: LoopQueue, target: object, what: Awaited) -> None:
        """In the loop's thread: (target, None, None) comes out of the queue once, when that may have come (room for what
        a try_send() was False for, items where a try_receive() was None), or the call has ended."""

class Server:
    def __init__(self, options: dict[str, Any]) -> None: ...
    def listen(self, address: str, for_others: bool = False) -> str:
        """The address really bound. ``for_others``: its clients are sent on to where ``redirect`` says."""
    def redirect(self, bound: str, targets: Sequence[str]) -> None:
        """Where clients of the bound address go, in turn: ports of the same host, or of shm:// what follows the
        socket's path and a dot."""
    def add_to_hello(self, fields: dict[str, bytes]) -> None:
        """More for HELLO to say to whoever connects from now on, where the slots have room for it."""
    def serve_apart(self, methods: Sequence[bytes]) -> None:
        """Before ``listen``: calls of these methods, the built-in services', wait for no others, but
        for who asks for them with ``next(builtin=True)``; no more than one runs at a time."""
    def next(self, timeout: float | None = None, builtin: bool = False) -> Request | None:
        """Returns the next call to handle; None on timeout or once drained or stopped."""
    def serve_in_loop(
        self, queue: LoopQueue, target: Any, methods: Sequence[bytes], max_concurrency: int, all: bool
    ) -> None:
        """Before ``listen``: calls of these methods go to an event loop, so many at a time, which
        polls for calls from now on. (target, None, None) out of its queue says that there are some. ``all``: there are
        no workers, so it gets what names no method, too, and any number of those that are served apart."""
    def next_in_loop(self) -> list[Request]:
        """In the loop's thread: the calls to handle now, as ``next`` gives them."""
    def notify_given_up(self, handle: int) -> None:
        """Of a call in a loop: (target, handle, None) out of its queue says that nobody waits for the reply any more."""
    def reply(
        self,
        handle: int,
        payload: bytes,
        buffers: Sequence[Any] | None = None,
        out_index: int = -1,
        metadata: bytes = b"",
    ) -> tuple[int, str] | None:
        """Returns code and message of the error that the client gets instead, or None.

        ``out_index`` names the buffer to be written into the caller's ``out`` memory.
        """
    def reply_next(
        self,
        handle: int,
        payload: bytes,
        buffers: Sequence[Any] | None = None,
        out_index: int = -1,
        metadata: bytes = b"",
    ) -> Request | None:
        """``reply``, then ``next`` without a timeout, in one crossing."""
    def reply_error(
        self,
        handle: int,
        code: int,
        message: str,
        details: bytes = b"",
        metadata: bytes = b"",
        not_seen: bool = False,
    ) -> tuple[int, str] | None:
        """Returns as ``reply``. ``not_seen``: by any handler, so that the client may make the call again."""
    def stream(self, handle: int) -> Stream:
        """The streams of a call that is being handled, where its kind has some."""
    def peer(self, handle: int) -> Client:
        """For calls to the client that made this call, over the same connection, also after the reply; FailedPrecondition
        where it takes none. Its ``Client.close`` leaves the connection open. A handler that waits for such a call
        holds its worker; where that one calls again, another worker is needed."""
    def set_aside(self, handle: int) -> None:
        """A worker lets go of a call: another may be handled in its place, until ``next`` gives it again, with 8
        in the kind, after ``bring_back``."""
    def bring_back(self, handle: int) -> None:
        """From any thread; nothing where the call is answered."""
    def lend(self, handle: int) -> None:
        """The handler of a call is about to wait: another may run in its place. Its thread stays where it is."""
    def take_up(self, handle: int) -> None:
        """Ends ``lend``: waits until fewer than ``max_concurrency`` handlers run, or the server is stopped."""
    def out_bytes(self, handle: int) -> int:
        """The size of the caller's ``out`` memory, 0 when there is none."""
    def call_info(self, handle: int) -> tuple[str, int, int] | None:
        """The peer, and the nanoseconds in which the arguments were fetched and the call waited for a worker;
        None once it is answered."""
    def stamps(self, handle: int) -> tuple[int, int, int] | None:
        """In ns by time.monotonic_ns(): when the request arrived, its arguments were here, a worker took it. These are
        the readings that every call has, at most some microseconds old when a busy poller found the message."""
    def is_cancelled(self, handle: int) -> bool:
        """The client gave the call up, its connection is gone, its deadline has passed, or it is answered."""
    def on_cancel(self, handle: int, callback: Callable[[], None]) -> bool:
        """Call back once, on whatever thread, soon after ``is_cancelled`` has become true (at once if it is).
        Forgotten with the reply; False if the call is answered already."""
    def stop_listening(self) -> None:
        """No new clients: connecting fails from now on. Those that are connected go on."""
    def send_away(self, count: int, reason: str) -> int:
        """Tell so many clients, those connected longest, to connect again. Gives how many were told; clients that were
        told before don't count."""
    def drain(self, timeout: float | None) -> tuple[int, int]:
        """Refuse new calls, let running ones finish and their results be fetched. Gives what isn't over in the
        end: (calls, results that weren't fetched). Then ``stop`` it."""
    def stop(self) -> None:
        """Close everything at once; every next() returns None."""
    def stopped(self) -> bool:
        """True once drained or stopped: next() will give no more."""
    def stats(self) -> dict[str, int]: ...

def default_options() -> dict[str, Any]:
    """slots, slot_bytes, calls_in_flight_max, message_bytes_max, metadata_bytes_max, buffers_max,
    landing_bytes_max, exposed_bytes_max, queued_bytes_max (None: what fits the machine), fetch_timeout (seconds),
    stream_window_items, stream_window_bytes, poll ("adaptive", "busy" or "event"), spin_us,
    keepalive_interval, keepalive_timeout, lease_timeout (seconds), any_user, connections_max,
    max_connection_age, max_connection_age_grace (seconds; None: no limit),
    max_concurrency, max_queue, rate_limit (calls a second), rate_burst (None: no limit),
    stream_handlers_max, handshakes_max, pollers, shared_receive_slots, transports (those that rrpc:// may use, best first:
    a sequence or "shm,verbs,tcp"; None: the environment's RRPC_TRANSPORTS, else all)."""

KEYS_UNCHECKED: int
"""Dicts and sets of so few keys need no ``keys_collide``."""

OBJECTS_ALWAYS: int
"""A payload of so many bytes can't have too many objects."""

def scan_payload(payload: bytes | memoryview) -> bool:
    """Whether a map of more than ``KEYS_UNCHECKED`` entries has a key that is neither str nor bin. Raises ValueError
    where no decoder should begin: nested too deep, more objects than the bytes are worth, a timestamp."""

def keys_collide(keys: list[Any]) -> bool:
    """Whether a dict or set of these keys would take far more than the usual time, by their hashes."""

def allocate(nbytes: int) -> Block: ...
def stats() -> dict[str, int]: ...
def set_pool_limit(nbytes: int) -> None: ...
def set_pool_idle_timeout(seconds: float | None) -> None: ...
def prefault_pool(nbytes: int) -> None: ...
def trim() -> int: ...
def watch_buffers(begin: Callable[[int], Callable[[], None]] | None) -> None:
    """``begin(nbytes)`` is called with each buffer that is sent, and what it gives if the bytes are changed meanwhile."""

def set_processes(count: int) -> None: ...
def set_error_factory(factory: Callable[[int, str, bool, bytes, bytes, bool], BaseException]) -> None: ...
def set_metadata_packer(packer: Callable[[Any], bytes]) -> None: ...
def transports() -> dict[str, str]:
    """Scheme -> "" where usable, else the reason why not."""

def adapters() -> list[dict[str, str]]:
    """Each port of each adapter that rdma-core knows; Device::describe() names the fields."""
