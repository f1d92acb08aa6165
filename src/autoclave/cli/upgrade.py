"""``autoclave upgrade check``: what would stand in the way of this release."""

import argparse
import contextlib

from oslo_config import cfg

from autoclave.cli.db import OnDatabase, opened
from autoclave.conf import new_config
from autoclave.exceptions import AutoclaveError
from autoclave.services.upgrade_checks import UpgradeChecks

_UNEXPECTED = 255


class UpgradeCheck(OnDatabase):
    """Look at database, agents, policy and Placement, and say what must be done. Changes nothing.

    Exit code 0: nothing. 1: something should be looked at. 2: something must be done first. 255: a check could not be
    carried out.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Show a table of the checks, with what to do about each that fails."""
        try:
            conf = new_config(parsed_args.config_files)
            with opened(conf, conf.database.timeout) as database, contextlib.redirect_stdout(self.app.stdout):
                return int(UpgradeChecks(conf, database).check())
        except (AutoclaveError, cfg.Error) as error:
            self.app.stderr.write(f"{error}\n")
            return _UNEXPECTED
