# In the first of two guests: a server whose calls are traced from the second, and one whose machine will be gone from one
# instruction to the next.
export PYTHONPATH="$PWD"
python tests/vm/traced_over_hosts.py serve verbs://10.7.0.1:7473 &
exec python tests/vm/lost_peer.py serve verbs://10.7.0.1:7471 verbs://10.7.1.1:7471
