"""Reloads what can change while a server runs: the log level and the policy."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rrpc import Server
from rrpc._server.authorization import PolicyError
from rrpc.cli.common import BadInput

from .log_format import set_level
from .settings import Settings, settings


def reload(arguments: Sequence[str] | None, server: Server) -> None:
    """Reads the settings anew. A file with an error changes nothing, and the error is logged."""
    log = logging.getLogger("rrpc.serve")
    try:
        options = settings(arguments)
        changes = _authorize(server, options)
    except BadInput as error:
        log.error("reload: %s; all settings stay as they are", error)
        return
    except SystemExit:  # the parser of the flags has said why: the file names no service any more
        log.error("reload: the options can't be read; all settings stay as they are")
        return
    set_level(options.log_level)
    log.info("reloaded%s", changes)


def _authorize(server: Server, options: Settings) -> str:
    """Sets the policy that the file has now; returns text that says so."""
    if options.authorization is None:
        if server.authorization is not None:
            # An editor that is about to write the file must not open the server.
            raise BadInput(
                f"{options.config} has no table [authorization] any more; restart to serve without a policy"
            )
        return ""
    try:
        server.authorize(options.authorization)
    except PolicyError as error:
        raise policy_problem(options, error) from error
    return f", with {len(options.authorization.rules)} rules of authorization"


def policy_problem(options: Settings, error: PolicyError) -> BadInput:
    """Returns the error with the place of its rule in the file, if it is one of the file's."""
    if options.authorization is None or error.rule not in options.authorization.rules:
        return BadInput(str(error))
    return BadInput(f"{options.rule_where(error.rule)}: {error.why}")
