# In the second of two guests: its calls to the first fail in time when that machine is gone.
export PYTHONPATH="$PWD"
exec python tests/vm/lost_peer.py lose 'echo "vm: kill the server"' verbs://10.7.0.1:7471 verbs://10.7.1.1:7471
