"""What of a device waits for a human, in words."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from autoclave.db.device_views import DeviceView, Holder
from autoclave.db.devices import DeviceRecord
from autoclave.db.pci import ProviderRecord
from autoclave.db.tables import DeviceStatus
from autoclave.rules.audit.devices import SILENCE
from autoclave.rules.device_lifecycle import BEING_CLEANED, DeviceState


def silence(view: DeviceView, now: datetime) -> timedelta | None:
    """How long the agent that must do something for the device has been silent; None if it is alive, or not needed."""
    unheld = view.device.device_state is DeviceState.ALLOCATED and not view.holders
    needed = unheld or view.device.device_state in BEING_CLEANED
    if not needed or view.agent_last_seen is None or now - view.agent_last_seen <= timedelta(seconds=SILENCE):
        return None
    return now - view.agent_last_seen


def waiting_for(
    device: DeviceRecord,
    agent_silent: timedelta | None = None,
    host_disabled: str | None = None,
    holders: Sequence[Holder] = (),
) -> str | None:
    """What somebody must do before the device is offered again; None if the system goes on by itself.

    :param agent_silent: see :func:`silence`.
    :param host_disabled: why the compute service of its host is disabled; None if it is enabled.
    :param holders: the requests that hold it.
    """
    reasons = [
        *(_orphaned(device, each, holders) for each in holders),
        _unknown_state(device),
        f"It is excluded: {device.excluded_reason}." if device.excluded_reason else None,
        _silent(device, agent_silent),
        _missing(device),
        f"It cannot be looked at: {device.unreadable_reason}; see to the cause." if device.unreadable_reason else None,
        _error(device),
        _held(device),
        _maintained(device),
        _host_maintained(device),
        _host_disabled(host_disabled),
    ]
    return " ".join(reason for reason in reasons if reason) or None


def _orphaned(device: DeviceRecord, holder: Holder, holders: Sequence[Holder]) -> str | None:
    if holder.orphan_reason is None:
        return None
    alone = all(each.instance_uuid == holder.instance_uuid for each in holders)
    which = "" if alone else f" --server {holder.instance_uuid}"
    return (
        f"Its server {holder.instance_uuid} looks deleted, but the device is not given back by itself: "
        f"{holder.orphan_reason}. When the server is gone and no guest has the device: `autoclave device take-back "
        f"{device.hostname}/{device.pci_address}{which}`."
    )


def function_waits_for(provider: ProviderRecord) -> str | None:
    """Return what keeps a provider of PCI functions from being offered as the host and its configuration are now.

    :returns: None if nothing does.
    """
    unreadable = provider.unreadable_reason
    reasons = (f"It cannot be looked at: {unreadable}; see to the cause." if unreadable else None, provider.waiting_for)
    return " ".join(reason for reason in reasons if reason) or None


def _unknown_state(device: DeviceRecord) -> str | None:
    if device.device_state is not None:
        return None
    return "Its state is unknown: run the online data migrations."


def _silent(device: DeviceRecord, agent_silent: timedelta | None) -> str | None:
    if agent_silent is None:
        return None
    return f"The agent of {device.hostname} was last seen {agent_silent.total_seconds():.0f} s ago: start it."


def _missing(device: DeviceRecord) -> str | None:
    if not device.missing:
        return None
    return (
        f"No driver of {device.hostname} reports it any more: put it, or its entry in device_spec, back, or forget it."
    )


def _error(device: DeviceRecord) -> str | None:
    if device.device_state is not DeviceState.ERROR:
        return None
    if device.was_away:
        return "It was gone from the host for a while: clean it, or accept it if you know what was done to it."
    if device.was_replaced:
        return (
            f"Another drive (serial {device.found_serial}) is in the slot of the drive {device.serial}: accept it by "
            f"`autoclave device accept {device.hostname}/{device.pci_address}`, or put the known one back."
        )
    why = f" ({device.state_reason})" if device.state_reason else ""
    if device.found_layout is not None:
        return (
            f"It is not proved clean{why}: clean it again, which restores the layout on record, or accept the found "
            f"layout by `autoclave device accept {device.hostname}/{device.pci_address}` before."
        )
    if device.supports_cleaning:
        return f"It is not proved clean{why}: see to the cause, then clean it again."
    return f"It is not trusted{why}: see to the cause, then accept it."


def _maintained(device: DeviceRecord) -> str | None:
    if device.status is not DeviceStatus.MAINTAINING:
        return None
    return "It is in maintenance: `openstack accelerator device enable` ends that."


def _host_maintained(device: DeviceRecord) -> str | None:
    if not device.host_maintained:
        return None
    return f"Its host is in maintenance: `autoclave host resume {device.hostname}` ends that."


def _host_disabled(reason: str | None) -> str | None:
    if reason is None:
        return None
    why = f" ({reason})" if reason else ""
    return f"The compute service of its host is disabled{why}: `openstack compute service set --enable` ends that."


def _held(device: DeviceRecord) -> str | None:
    if not device.held:
        return None
    return f"It is held ({device.hold_reason or 'without a reason'}): release it when it may be offered."
