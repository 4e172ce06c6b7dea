# In the first of two guests: a server whose calls are traced from the second, and one whose connections are lost when its
# machine is gone from one instruction to the next.
export PYTHONPATH="$PWD"
exec python tests/vm/two_hosts.py serve
