"""Run the checks of ``autoclave upgrade check``, before services of this release start."""

from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_upgradecheck import common_checks
from oslo_upgradecheck.upgradecheck import Code, Result, UpgradeCommands

from autoclave.api.policy import Policy
from autoclave.conf.clouds import is_external
from autoclave.db import agents, backfill, engine, handles, schema
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.exceptions import InvalidConfiguration, PlacementError, PlacementUnavailable
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.rpc.agent_api import CLEANUP
from autoclave.rpc.port import understands
from autoclave.rules import resource_names

PLACEMENT_RELEASE = "14.0.0"
"""Set the first release of Placement that can move the allocation of a reserved device between consumers."""
TRAITS = ("HW_NVME_BES", "HW_NVME_CES", "HW_NVME_WZS", "OWNER_CYBORG")
"""List the traits of drives' providers, as the NVMe specification names them."""


def _is_erased_there(device: DeviceRecord) -> bool:
    # all devices of a decommissioned host are missing
    return device.supports_cleaning and not device.missing


_SYNC = "run `autoclave db sync`"
_BACKFILL = "run `autoclave db online-data-migrations`, or start a conductor, which runs them"


class UpgradeChecks(UpgradeCommands):  # type: ignore[misc]  # oslo.upgradecheck comes without types
    """Run the checks; each has a remedy.

    :param database: that of ``[database] connection``.
    """

    def __init__(self, conf: cfg.ConfigOpts, database: Database) -> None:
        super().__init__()
        self._conf = conf
        self._database = database

    @property
    def _upgrade_checks(self) -> tuple[tuple[str, Callable[["UpgradeChecks"], Any]], ...]:
        return (
            ("Database schema", UpgradeChecks._schema),
            ("Device state backfill", UpgradeChecks._backfill),
            ("Attach handles", UpgradeChecks._handles),
            ("Agents' RPC version", UpgradeChecks._agents),
            ("RPC version caps", UpgradeChecks._caps),
            ("Policy file", UpgradeChecks._policy),
            ("Placement", UpgradeChecks._placement),
        )

    def _is_current(self) -> bool:
        return engine.current_revision(self._database) == schema.head()

    def _schema(self) -> Any:
        try:
            schema.require_current(self._database)
        except InvalidConfiguration as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS)

    def _backfill(self) -> Any:
        if not self._is_current():
            return Result(Code.FAILURE, f"Not checked, because the schema is not current: {_SYNC} first.")
        with self._database.read() as tx:
            devices = len(backfill.devices_without_state(tx))
            requests = len(backfill.devices_with_unlinked_requests(tx)) + len(backfill.requests_left_halfway(tx))
        if devices:
            return Result(
                Code.FAILURE, f"{devices} devices have no device_state and cannot be bound or cleaned: {_BACKFILL}."
            )
        if requests:
            return Result(
                Code.WARNING,
                f"{requests} accelerator requests have the format of the previous release: {_BACKFILL}.",
            )
        return Result(Code.SUCCESS)

    def _handles(self) -> Any:
        if not self._is_current():
            return Result(Code.WARNING, f"Not checked, because the schema is not current: {_SYNC} first.")
        with self._database.read() as tx:
            stored = handles.stored(tx)
        broken = [
            f"{place} ({fault})" for place, text in stored if (fault := resource_names.read(text).fault) is not None
        ]
        if not broken:
            return Result(Code.SUCCESS)
        return Result(
            Code.WARNING,
            f"attach_info of these devices cannot be read: {'; '.join(broken)}. No guest is started with them. "
            "Delete the instances that have them: the host's agent writes attach_info again when no request holds "
            "the device.",
        )

    def _agents(self) -> Any:
        if not self._is_current():
            return Result(Code.WARNING, f"Not checked, because the schema is not current: {_SYNC} first.")
        with self._database.read() as tx:
            said = {agent.hostname: agent.rpc_version for agent in agents.list_all(tx)}
            erased = {device.hostname for device in device_rows.list_all(tx) if _is_erased_there(device)}
        old = sorted(host for host, version in said.items() if not understands(version, CLEANUP))
        absent = sorted(erased - set(said))
        if not old and not absent:
            return Result(Code.SUCCESS)
        told = [f"The agents of {', '.join(old)} are older than RPC {CLEANUP}." if old else ""]
        told += [f"No agent of {', '.join(absent)} has announced an RPC version." if absent else ""]
        told += ["Drives that are unbound there go to error and are not offered again until these agents are upgraded."]
        return Result(Code.WARNING, " ".join(filter(None, told)))

    def _caps(self) -> Any:
        cap = self._conf.upgrade_levels.agent
        if cap is None or understands(cap, CLEANUP):
            return Result(Code.SUCCESS)
        return Result(
            Code.WARNING,
            f"[upgrade_levels] agent = {cap} prevents the cleaning of every drive. Remove it when the agents are "
            "upgraded, and restart the api and the conductors.",
        )

    def _policy(self) -> Any:
        try:
            Policy(self._conf)
        except InvalidConfiguration as error:
            return Result(Code.FAILURE, str(error))
        return common_checks.check_policy_json(self, self._conf)

    def _placement(self) -> Any:
        if not is_external(self._conf):
            return Result(Code.SUCCESS)
        try:
            # It creates missing custom traits only, and these are standard traits.
            PlacementClient(http_adapter(self._conf)).ensure_traits(TRAITS)
        except PlacementUnavailable as error:
            return Result(Code.WARNING, f"Not checked: {error}.")
        except (PlacementError, InvalidConfiguration) as error:
            return Result(
                Code.FAILURE, f"{error}. Autoclave needs openstack-placement {PLACEMENT_RELEASE} and os-traits 3.9.0."
            )
        return Result(Code.SUCCESS)
