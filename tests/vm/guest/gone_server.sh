# In the first of two guests: a server whose machine will be gone from one instruction to the next.
export PYTHONPATH="$PWD"
exec python tests/vm/lost_peer.py serve verbs://10.7.0.1:7471 verbs://10.7.1.1:7471
