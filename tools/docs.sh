#!/usr/bin/env bash
# tools/docs.sh [serve]: builds the documentation site into build/site, in an environment of its own. Any warning, such as a
# broken link, is a failure. `serve` shows it at http://127.0.0.1:8000 and follows changes.
source "$(dirname "$0")/lib.sh"
environment="$PWD/build/docs"
[ -x "$environment/bin/python" ] || step "docs: virtual environment" .venv/bin/python -m venv "$environment"
step "docs: packages" "$environment/bin/python" -m pip install -q -r docs/requirements.txt
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then exec "$environment/bin/mkdocs" serve; fi
step "docs: site" "$environment/bin/mkdocs" build --strict
