"""The peers: each a way for two Python processes on one host to call one another."""

from bench.peers.base import Connection, Floats, Peer
from bench.peers.grpc_peer import GrpcPeer
from bench.peers.iceoryx2_peer import Iceoryx2Peer
from bench.peers.monarch_peer import MonarchPeer
from bench.peers.rrpc_peer import RrpcPeer
from bench.peers.sockets import SocketPeer
from bench.peers.ucxx_peer import UcxxPeer
from bench.peers.zmq_peer import ZmqPeer

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        RrpcPeer("rrpc shm", transport="shm", pool=False),
        RrpcPeer("rrpc shm pool", transport="shm", pool=True),
        RrpcPeer("rrpc tcp", transport="tcp", pool=False),
        RrpcPeer("rrpc tcp pool", transport="tcp", pool=True),
        RrpcPeer("rrpc tls", transport="tcp", pool=False, tls=True),
        SocketPeer("unix socket", unix=True),
        SocketPeer("tcp socket", unix=False),
        ZmqPeer("zmq+msgpack"),
        GrpcPeer("grpcio"),
        GrpcPeer("grpcio tls", tls=True),
        UcxxPeer("ucxx"),
        Iceoryx2Peer("iceoryx2"),
        MonarchPeer("monarch"),
    )
}

__all__ = ["PEERS", "Connection", "Floats", "Peer"]
