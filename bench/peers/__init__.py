"""The peers: each a way for two Python processes on one host to call one another."""

from bench.peers.base import Connection, Floats, Peer
from bench.peers.grpc_peer import GrpcPeer
from bench.peers.rrpc_peer import RrpcPeer
from bench.peers.sockets import SocketPeer
from bench.peers.zmq_peer import ZmqPeer

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        RrpcPeer("rrpc shm", scheme="shm", pool=False),
        RrpcPeer("rrpc shm pool", scheme="shm", pool=True),
        RrpcPeer("rrpc tcp", scheme="tcp", pool=False),
        RrpcPeer("rrpc tcp pool", scheme="tcp", pool=True),
        SocketPeer("unix socket", unix=True),
        SocketPeer("tcp socket", unix=False),
        ZmqPeer("zmq+msgpack"),
        GrpcPeer("grpcio"),
    )
}

__all__ = ["PEERS", "Connection", "Floats", "Peer"]
