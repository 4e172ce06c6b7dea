# In the second of two guests: traces of calls to the first, whose clock is another one; and calls that fail in time when
# that machine is gone.
export PYTHONPATH="$PWD"
python tests/vm/traced_over_hosts.py trace verbs://10.7.0.1:7473 || exit
exec python tests/vm/lost_peer.py lose 'echo "vm: kill the server"' verbs://10.7.0.1:7471 verbs://10.7.1.1:7471
