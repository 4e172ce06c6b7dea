"""Every option of rrpc-serve, once: the flags, the configuration file and --print-config are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .kinds import (
    CPUS,
    HOST_PORT,
    NUMA_NODE,
    NUMBER,
    POSITIVE,
    RATE,
    SECONDS,
    SIZE,
    SWITCH,
    TEXT,
    Kind,
    one_of,
)


@dataclass(frozen=True)
class Option:
    """An option of rrpc-serve, on the command line and in its file."""

    name: str
    """The flag without its dashes, and the key in the file."""
    kind: Kind
    help: str
    metavar: str = ""
    """What stands for a value in the help, where the kind's own word isn't enough."""
    default: Any = None
    example: Any = None
    """For --print-config, where there is no default."""
    many: bool = False
    """A flag that may be repeated, a list in the file."""
    core: bool = False
    """Goes to rrpc.Server by its attribute's name, or that of ``core_name``, where it is given."""
    core_name: str = ""
    """The name that ``rrpc.Server`` has for it, where that differs."""

    @property
    def attribute(self) -> str:
        """Returns the name of the option's attribute in the settings."""
        return self.name.replace("-", "_")


_SERVING = (
    Option(
        "listen",
        TEXT,
        "where to listen; may be repeated",
        "ADDRESS",
        default=("rrpc://127.0.0.1:7471",),
        many=True,
    ),
    Option("workers", POSITIVE, "handlers that run at a time, in each process", default=4),
    Option(
        "processes",
        POSITIVE,
        "processes behind each address; clients are spread over them, and one that dies is started again",
        default=1,
    ),
    Option(
        "process-ports",
        POSITIVE,
        "the first of the ports at which the processes listen, one after the other; without it any free ones",
        "PORT",
        example=7500,
    ),
    Option("grace", SECONDS, "how long running calls may take to end after a signal", default=30.0),
    Option(
        "drain-delay",
        SECONDS,
        "how long after a signal calls are still taken while /readyz says no, for load balancers to notice",
        default=0.0,
    ),
    Option(
        "reload",
        SWITCH,
        "for development: start anew when a file that the services are made of changes",
        default=False,
    ),
    Option("tracebacks", SWITCH, "send tracebacks of handlers' exceptions to callers", default=False),
    Option(
        "interceptor",
        TEXT,
        "stands around every call: a rrpc.ServerInterceptor, or a class or function without arguments that makes one; "
        "may be repeated, the first is the outermost",
        "module:NAME",
        example=("rrpc.interceptors:ServerLogging",),
        many=True,
    ),
    Option(
        "builtin",
        SWITCH,
        "serve rrpc.Health, rrpc.Reflection and rrpc.Stats too, for rrpc-call",
        default=True,
    ),
)

_TRANSPORTS = (
    Option(
        "transports",
        TEXT,
        "what clients of rrpc:// addresses may use, best first",
        "LIST",
        example="shm,verbs,tcp",
        core=True,
    ),
    Option(
        "any-user",
        SWITCH,
        "let other users of this host connect over shared memory",
        default=False,
        core=True,
    ),
    Option(
        "allow-client",
        TEXT,
        "let only these callers connect, a principal such as user:alice, group:ml or dns:*.example.org; other users "
        "of this host whom it names connect over shared memory, too; may be repeated",
        "PRINCIPAL",
        example=("group:ml",),
        many=True,
        core=True,
        core_name="allow_clients",
    ),
    Option(
        "pollers",
        POSITIVE,
        "threads that poll the clients' connections, a share each, so that workers only handle calls; for machines "
        "with many cores and clients; with 1 the workers poll",
        example=4,
        core=True,
    ),
    Option(
        "shared-receive-slots",
        POSITIVE,
        "receive slots that all connections over verbs share, for servers with hundreds of clients; "
        "without it a ring for each connection",
        example=4096,
        core=True,
    ),
)

_LIMITS = (
    Option(
        "max-concurrency",
        POSITIVE,
        "most handlers at work at a time, where it is fewer than the workers",
        example=4,
        core=True,
    ),
    Option(
        "max-queue",
        NUMBER,
        "most calls that wait for a worker; beyond that those of the client with most of them are refused with "
        "ResourceExhausted; without it no limit",
        example=100,
        core=True,
    ),
    Option(
        "rate-limit",
        RATE,
        "most calls that are taken in a second, from all clients and by all processes; others are refused with "
        "ResourceExhausted; without it no limit",
        example=1000,
        core=True,
    ),
    Option(
        "rate-burst",
        POSITIVE,
        "most of these that may come at once; without it as many as --rate-limit takes in a second",
        example=100,
        core=True,
    ),
    Option(
        "calls-in-flight-max",
        POSITIVE,
        "most calls of one client at a time, waiting ones and results not fetched included",
        default=16384,
        core=True,
    ),
    Option(
        "message-bytes-max",
        SIZE,
        "most bytes of a request, a reply or an item without its arrays",
        default=64 << 20,
        core=True,
    ),
    Option(
        "buffers-max",
        POSITIVE,
        "most large arrays and bytes objects of a request, a reply or an item",
        default=16384,
        core=True,
    ),
    Option(
        "landing-bytes-max",
        SIZE,
        "most bytes of arguments and items that are fetched from one client at a time, until their calls are answered; "
        "without it half of the pool limit",
        example="4G",
        core=True,
    ),
    Option(
        "exposed-bytes-max",
        SIZE,
        "most bytes of results open to one client at a time, such as 4G; "
        "without it half of what others leave of half of the memory",
        example="4G",
        core=True,
    ),
    Option(
        "lent-bytes-max",
        SIZE,
        "most bytes of results that one client may read in place at a time, such as 4G; more is copied; "
        "without it half of the pool limit for all clients",
        example="4G",
        core=True,
    ),
    Option(
        "queued-bytes-max",
        SIZE,
        "most bytes of one client's messages that wait for a worker, for memory or for its credits; "
        "without it half of what others leave of a sixteenth of the memory",
        example="64M",
        core=True,
    ),
    Option(
        "fetch-timeout",
        SECONDS,
        "how long nothing may come of a fetch before the client's connection is closed",
        default=10.0,
        core=True,
    ),
    Option("connections-max", POSITIVE, "most clients connected at a time", default=100_000, core=True),
    Option(
        "max-connection-age",
        SECONDS,
        "how long a client stays connected before it is told to connect again, give or take a tenth; "
        "without it no limit",
        example=3600.0,
        core=True,
    ),
    Option(
        "max-connection-age-grace",
        SECONDS,
        "how long from there until the connection is closed, with the calls that are still under way; "
        "without it no limit",
        example=60.0,
        core=True,
    ),
    Option(
        "handshakes-max",
        POSITIVE,
        "most clients at a time that have connected and not said what they are; "
        "beyond that the oldest of them makes place for the next",
        default=1024,
        core=True,
    ),
    Option(
        "stream-handlers-max",
        POSITIVE,
        "most handlers at a time that take a stream, waiting ones included; a quarter of them for one client",
        default=256,
        core=True,
    ),
    Option(
        "lease-timeout",
        SECONDS,
        "how long a result waits for its client to fetch it",
        default=60.0,
        core=True,
    ),
    Option(
        "keepalive-interval",
        SECONDS,
        "how long a client may be silent before it is probed",
        default=10.0,
        core=True,
    ),
    Option(
        "keepalive-timeout", SECONDS, "and how long from there until it is given up", default=10.0, core=True
    ),
    Option(
        "pool-limit",
        SIZE,
        "most registered memory of each process, such as 512M or 4G; without it half of the memory, shared by all",
        example="4G",
    ),
    Option(
        "pool-prefault",
        SIZE,
        "memory for received arrays to bring in before serving, and to keep, such as 512M",
        example="512M",
    ),
    Option(
        "pool-idle-timeout",
        SECONDS,
        "how long free memory of the pool rests before the system gets it back",
        default=10.0,
    ),
)

_PLACEMENT = (
    Option("cpus", CPUS, "processors to run on, such as 0-3,8", example="0-3,8"),
    Option(
        "numa-node",
        NUMA_NODE,
        "run on this node's processors and prefer its memory: best the node of the adapter, which auto finds",
        example=0,
    ),
)

_LOGS = (
    Option(
        "log-level",
        one_of("debug", "info", "warning", "error", "critical"),
        "what to log on stderr: debug, info, warning, error or critical",
        "LEVEL",
        default="warning",
    ),
    Option(
        "log-format", one_of("text", "json"), "lines of text or of JSON objects", "FORMAT", default="text"
    ),
    Option(
        "access-log",
        TEXT,
        "where to write a line for each call: a file, or - for stdout; SIGHUP opens it anew",
        "FILE",
        example="/var/log/rrpc/access.log",
    ),
)

_MONITORING = (
    Option(
        "ready-file",
        TEXT,
        "a file to write the addresses to, one in a line, once they are listened on; it goes when draining begins",
        "FILE",
        example="/run/rrpc/ready",
    ),
    Option(
        "metrics",
        HOST_PORT,
        "serve /metrics for Prometheus, /healthz and /readyz over HTTP (needs prometheus-client)",
        example="127.0.0.1:9471",
    ),
)

_SECURITY = (
    Option(
        "tls-cert",
        TEXT,
        "the server's certificate in PEM form with the chain behind it: rrpc://, tcp:// and verbs:// then mean TLS; "
        "read again when it changes, as the other files are",
        "FILE.pem",
        example="/etc/rrpc/server.pem",
        core=True,
    ),
    Option("tls-key", TEXT, "the key of tls-cert", "FILE.pem", example="/etc/rrpc/server.key", core=True),
    Option(
        "tls-client-ca",
        TEXT,
        "authorities of which one must have signed each client's certificate; without it clients need none",
        "FILE.pem",
        example="/etc/rrpc/clients-ca.pem",
        core=True,
        core_name="tls_ca",
    ),
    Option(
        "tls-crl",
        TEXT,
        "revocation lists of those authorities",
        "FILE.pem",
        example="/etc/rrpc/clients.crl",
        core=True,
    ),
    Option(
        "rdma-security",
        one_of("none", "identity", "sign", "encrypt"),
        "what protects RDMA behind TLS at least; with none rrpc:// doesn't offer it, and verbs:// is refused",
        example="identity",
        core=True,
    ),
    Option("insecure", SWITCH, "listen in clear where other machines reach the server, too", default=False),
)

GROUPS: dict[str, tuple[Option, ...]] = {
    "serving": _SERVING,
    "transports": _TRANSPORTS,
    "security": _SECURITY,
    "limits": _LIMITS,
    "placement": _PLACEMENT,
    "logs": _LOGS,
    "monitoring": _MONITORING,
}
OPTIONS: tuple[Option, ...] = tuple(option for group in GROUPS.values() for option in group)
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
