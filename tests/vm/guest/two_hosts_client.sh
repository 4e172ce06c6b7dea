# In the second of two guests: traces of calls to the first, whose clock is another one; and calls that fail in time when
# that machine is gone.
export PYTHONPATH="$PWD"
exec python tests/vm/two_hosts.py call
