# In the second of two guests: traces of calls to the first, whose clock is another one.
export PYTHONPATH="$PWD"
exec python tests/vm/traced_over_hosts.py trace verbs://10.7.0.1:7471
