#!/usr/bin/env bash
# tools/integration.sh NAME: the tests of integrations/NAME, in a virtual environment of its own, with the rrpc of this checkout.
source "$(dirname "$0")/lib.sh"
package="integrations/$1"
[ -d "$package" ] || { echo "there is no $package" >&2; exit 1; }
environment="$PWD/build/integrations/$1"
python="$environment/bin/python"
[ -x "$python" ] || step "$1: virtual environment" .venv/bin/python -m venv "$environment"
step "$1: packages" "$python" -m pip install -q -r "$package/tests/requirements.txt"
if grep -q '^\[project\]' "$package/pyproject.toml"; then  # others are tests alone
  step "$1: install" "$python" -m pip install -q --no-deps -e "$package"
fi
export PYTHONPATH="$PWD"
exec "$python" -m pytest -q -c "$package/pyproject.toml" "$package/tests" "${@:2}"
