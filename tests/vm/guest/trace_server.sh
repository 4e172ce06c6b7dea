# In the first of two guests: a server whose calls are traced from the second.
export PYTHONPATH="$PWD"
exec python tests/vm/traced_over_hosts.py serve verbs://10.7.0.1:7471
