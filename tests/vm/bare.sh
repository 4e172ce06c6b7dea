# In the guest, as it comes: no adapter, and no module that would make one. What users are told then.
export PYTHONPATH="$PWD:$PWD/tests/helpers"
status=0
expect() {  # expect PATTERN COMMAND...: one line of output, with this in it
  local words="$1" said
  shift
  said="$("$@" 2>&1)"
  echo "$said"
  [[ "$said" == *$words* && "$said" != *$'\n'* ]] || { echo "bare: not one line with: $words"; status=1; }
}
connect='import sys, rrpc
said = []
for address in sys.argv[1:]:
    try:
        rrpc.connect(address, connect_timeout=20.0)
    except rrpc.Unavailable as error:
        said.append(str(error))
print(*said, sep=" AND ")'
expect "rdma link add*AND*rdma link add" python -c "$connect" verbs://10.9.0.1:7471 verbs+tcp://10.9.0.1:7471
expect "rdma link add" python -m rrpc.cli.serve lab_service:Lab --listen verbs://10.9.0.1:7471 --insecure
exit "$status"
