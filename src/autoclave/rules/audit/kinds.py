"""List every kind of finding: its severity, its usual cause, and the safe remedy."""

from enum import Enum, StrEnum, unique
from typing import NamedTuple


class Severity(StrEnum):
    """List how severe a finding is."""

    RISK = "promise at risk"
    """A client may get, or has, a device that is not proved clean."""
    LESS = "offered too little"
    """A usable device is not offered, or a request waits in vain."""
    UNTIDY = "untidy"
    """A record is wrong, but harmless while the other records are right."""
    UNSEEN = "not seen"
    """A source could not be read. Nothing is concluded from that."""
    INFO = "information"
    """The state is intended or unavoidable. It does not count."""


class Fix(StrEnum):
    """List the actions of ``--fix``. Each of them makes a device less available, none makes it more available."""

    RAISE = "reserved=total"
    """Write to Placement what the row requires."""
    DISTRUST = "to error"
    """Move the device out of ``available``: it has another user, or another user has written to it."""
    ALLOCATE = "allocation"
    """Restore an instance's allocation in Placement from its rows."""


class _Text(NamedTuple):
    severity: Severity
    cause: str
    remedy: str
    fix: Fix | None = None


_RISK, _LESS, _UNTIDY, _UNSEEN, _INFO = Severity
_AGENT_DOES_IT = "The agent of {host} puts it right in its next period: start it if it does not run."
_CLEAN = (
    "`autoclave audit --fix` puts it into error, as its agent does; then see to the cause and `autoclave device clean "
    "{slot}`."
)


@unique  # two members with the same text would be aliases
class Kind(Enum):
    """Define one kind of finding. Names in braces in the remedy are replaced by values of the finding."""

    # The database by itself
    SCHEMA_BEHIND = _Text(
        _UNSEEN,
        "The software was upgraded and the schema was not, or the database is a newer version's.",
        "`autoclave db sync` with the version that the services run; then audit again.",
    )
    STATE_UNKNOWN = _Text(
        _LESS,
        "The row comes from a release that kept no state, and the online data migrations have not been run.",
        "`autoclave db online-data-migrations`, or start a conductor, which does it.",
    )
    ALLOCATED_WITHOUT_REQUEST = _Text(
        _LESS,
        "The message of an unbind was lost, or the agent was away when it came.",
        "The agent of {host} cleans it, or offers it if its type is not cleaned, in its next period: start it if it "
        "does not run.",
    )
    REQUEST_WITHOUT_DEVICE = _Text(
        _RISK,
        "The row was changed by hand, or a backup was restored: a guest may have a device that is free to others.",
        "`autoclave audit --fix` puts a device that is still available into error. Delete the instance; if there is no "
        "such instance and no guest has the device: `autoclave device take-back {slot}`, which deletes the request. "
        "Then `autoclave device clean {slot}`.",
        Fix.DISTRUST,
    )
    LEASE_EXPIRED = _Text(
        _UNTIDY,
        "The conductor that worked on the request died, and none has swept since.",
        "Start a conductor: its sweep takes an unfinished bind back, and ends an unfinished unbind.",
    )
    KNOWN_DIRTY = _Text(
        _RISK,
        "The drive left another slot, or this one, without having been erased; or the row was changed by hand.",
        _CLEAN,
        Fix.DISTRUST,
    )
    DRIVE_IN_TWO_ROWS = _Text(
        _UNTIDY,
        "The drive was moved while the agent of its old slot did not run, or its host has another name now. It is "
        "offered by one of the slots at most.",
        "Clean the drive in the slot that has it (`autoclave device clean`); then forget the other (`autoclave device "
        "forget`), once an agent has missed it there. If each slot has a drive of this serial number, add "
        "identify_by_slot with the addresses to [nvme], and clean the drives.",
    )
    AGENT_SILENT = _Text(
        _LESS,
        "It does not run, or does not reach the database.",
        "Start the agent of {host}, and look into its log. A host that will never come back: see the documentation.",
    )
    DEVICE_MISSING = _Text(
        _INFO,
        "No driver of the host reports it now.",
        "Put it, or its entry in device_spec, back, or `autoclave device forget {slot}`.",
    )
    DEVICE_EXCLUDED = _Text(
        _INFO, "The policy of its device_spec entry cannot be met by it.", "See `autoclave plan show` on {host}."
    )
    DEVICE_UNREADABLE = _Text(
        _INFO,
        "It is available, and its host cannot tell which device is in the slot.",
        "See to the cause on {host}; it is offered again when the agent has read it.",
    )
    DEVICE_HELD = _Text(_INFO, "An operator holds it.", "`autoclave device release {slot}` when it may be offered.")
    DEVICE_IN_MAINTENANCE = _Text(
        _INFO,
        "An operator disabled it, or its host is in maintenance.",
        "Enable it, or run `autoclave host resume`, when that is over.",
    )
    DEVICE_IN_ERROR = _Text(
        _INFO,
        "It is not proved clean, or not trusted.",
        "See to the cause; `autoclave device show {slot}` says what it waits for.",
    )
    IN_MOTION = _Text(_INFO, "It was changing while it was looked at, so it was not judged.", "Audit again.")

    # The database and Placement
    PLACEMENT_UNREADABLE = _Text(
        _UNSEEN, "Placement did not answer, or not as Placement does.", "See to it that it answers; then audit again."
    )
    ROOT_MISSING = _Text(
        _LESS,
        "nova-compute has not made the host's provider, or it was renamed or deleted.",
        "Start nova-compute on {host}, or correct [agent] resource_provider_name, or set [placement] "
        "create_root_provider.",
    )
    PROVIDER_MISSING = _Text(_LESS, "Somebody deleted it, or it was never made.", _AGENT_DOES_IT)
    PROVIDER_OF_ANOTHER = _Text(
        _LESS,
        "Placement was restored or the database was made anew; or Nova has the device, too.",
        "If nothing is allocated from it: `openstack resource provider delete {about}`; the agent of {host} then makes "
        "ours. Let only one of Autoclave and Nova's [pci] device_spec match the device.",
    )
    PROVIDER_NOT_OURS = _Text(_UNTIDY, "Somebody took the trait OWNER_CYBORG away.", _AGENT_DOES_IT)
    PROVIDER_REWRITTEN = _Text(
        _RISK,
        "Nova's [pci] device_spec matches the device, too: nova-compute writes its provider at each start, and may "
        "have given the device to a guest past Autoclave.",
        "Let Nova's [pci] device_spec on {host} not match the device, and restart nova-compute there. When no guest "
        "has it: `autoclave device release {slot}` if it is held, then `autoclave device clean {slot}`, or `autoclave "
        "device accept {slot}` if its type is not erased.",
        Fix.DISTRUST,
    )
    PROVIDER_RENAMED = _Text(
        _UNTIDY, "Somebody renamed it.", "`openstack resource provider set --name {name} {provider}`."
    )
    PROVIDER_MOVED = _Text(
        _LESS,
        "The host's root provider was renamed or made anew.",
        "If the provider above it is this host's former root, renamed by hand: delete the new one, which must be "
        "empty, and give the former its name back (`openstack resource provider set --name {host} {about}`).",
    )
    PROVIDER_WITHOUT_DEVICE = _Text(
        _RISK,
        "An older backup of the database was restored, a forget was cut short, or another Autoclave made it.",
        "If the device is on its host, its agent takes the provider over, into error if it was reserved or in use; if "
        "nobody has it: `openstack resource provider delete {about}`.",
    )
    INVENTORY_MISSING = _Text(
        _LESS, "Somebody deleted it, or Placement did not answer when it was made.", _AGENT_DOES_IT
    )
    INVENTORY_DIFFERS = _Text(
        _RISK,
        "Somebody wrote it by hand: more than there is may be offered, or nothing.",
        _AGENT_DOES_IT,
    )
    FOREIGN_INVENTORY = _Text(
        _RISK,
        "Somebody added it by hand, or the drive in the slot is another: the device is offered by two names.",
        "`openstack resource provider inventory delete {provider} --resource-class {about}`.",
    )
    TRAITS_DIFFER = _Text(
        _LESS, "Somebody changed them by hand: requests that need the device do not find it.", _AGENT_DOES_IT
    )
    RESERVED_TOO_LOW = _Text(
        _RISK,
        "It was lowered by hand; or a bind, a claim, a clean or an operator's command has not reached Placement: it "
        "is on its way to a slow Placement, or was cut short.",
        "`autoclave audit --fix` raises it; so does the agent of {host} in its next period.",
        Fix.RAISE,
    )
    RESERVED_BY_HAND = _Text(
        _LESS,
        "Somebody raised it in Placement, which is taken for an operator's hold; or a restored backup is older than "
        "the bind that raised it, and then the device may be dirty.",
        "After a restore: `autoclave audit --quarantine`. Else `autoclave device release {slot}`; if it is to stay "
        "reserved, `autoclave device hold {slot}`, which is kept in the device's history.",
    )
    DEBT_UNPAID = _Text(
        _LESS,
        "The device may be offered, but Placement did not answer when it was to be told.",
        "Start a conductor or the agent of {host}: each of them tries again, again and again.",
    )
    ALLOCATION_WITHOUT_REQUEST = _Text(
        _LESS,
        "An instance was deleted or evacuated and left its allocation behind; or a build has just begun.",
        "Audit again in a minute. If it stays and there is no such instance: `openstack resource provider allocation "
        "delete {about}`.",
    )
    REQUEST_WITHOUT_ALLOCATION = _Text(
        _UNTIDY,
        "The allocation was deleted by hand, or the request was bound without one.",
        "Nothing while the instance lives: reserved=total protects the device. If there is no such instance and no "
        "guest has the device: `autoclave device take-back {slot}`.",
    )
    OVERUSED = _Text(
        _RISK,
        "The inventory was made smaller by hand, or two instances were given the device.",
        "Find the instances, and delete or move all that have no accelerator request for the device.",
    )

    # PCI functions for flavors
    FUNCTION_HELD = _Text(
        _INFO,
        "Somebody raised it in Placement: a hold. Or a restored backup of the database is older than the instance that "
        "burned it, and then it may be dirty.",
        "When it is clean and may be offered: `openstack resource provider inventory set --amend --resource "
        "{resource_class}:reserved=0 {provider}`.",
    )
    FUNCTION_UNREADABLE = _Text(
        _INFO,
        "Its agent cannot look at it, and so does not offer it. What instances have of it stays with them.",
        "See to the cause on {host}; when its agent has read it again, what is not burned is offered again.",
    )
    RELEASE_UNFINISHED = _Text(
        _INFO, "An operator has released it a moment ago, or its agent can read it again.", _AGENT_DOES_IT
    )
    RETURNS_UNCLEANED = _Text(
        _INFO,
        "[pci] device_spec gives them to instances, and they are neither erased nor of one time use: the next guest "
        "gets them as the last one leaves them.",
        "If that is not meant: set one_time_use in [pci] device_spec on {host}, or let [nvme] device_spec offer those "
        "that are drives.",
    )

    # Instances
    INSTANCE_WITHOUT_ALLOCATION = _Text(
        _RISK,
        "The allocation was deleted or changed by hand, or Placement's database was lost: what the instance has is "
        "offered to others.",
        "`autoclave audit --fix` writes it again. What Placement has no room for any more was given to others: delete "
        "one of them, and repeat it; or delete the instance {about}.",
        Fix.ALLOCATE,
    )
    FUNCTION_WITHOUT_ALLOCATION = _Text(
        _UNTIDY,
        "The allocation was deleted or changed by hand, or Placement's database was lost.",
        "Nothing while the instance {about} lives: the function is burned, and reserved=total protects it; for as "
        "long, it cannot be allocated again.",
    )
    ALLOCATION_WITHOUT_FUNCTION = _Text(
        _LESS,
        "The allocation was changed by hand, or the rows of the instance's functions were.",
        "See what its guest has: `virsh dumpxml {about}` on {host}. If it has none of {address}: `openstack resource "
        "provider allocation unset --provider {provider} --resource-class {resource_class} {about}`. Else delete the "
        "instance.",
    )
    FUNCTION_WITHOUT_INSTANCE = _Text(
        _LESS,
        "The row of the instance was deleted or changed by hand.",
        "Clean it: unless it is of one time use, it is offered as its last guest left it. Then, on {host}: `autoclave "
        "function take-back {functions}`, which sees to it that no guest has it.",
    )
    ALLOCATION_ELSEWHERE = _Text(
        _LESS,
        "The allocation was changed by hand, or the host of the instance was.",
        "If no guest of {host} has that uuid (`virsh list --all --uuid`): `openstack resource provider allocation "
        "unset {providers} {about}`.",
    )
    ALLOCATION_WITHOUT_INSTANCE = _Text(
        _LESS,
        "A builder that was taken for dead claimed it late, or the row of an instance was deleted by hand, or a backup "
        "of the database was restored that does not know the instance.",
        "If no guest of {host} has that uuid (`virsh list --all --uuid`), and nobody has used the devices since they "
        "were cleaned: `{command}`.",
    )
    ALLOCATION_OF_ANOTHER = _Text(
        _INFO,
        "Another service than Autoclave wrote it, such as the Nova that had this host before, or an operator did, to "
        "keep something free.",
        "Whoever wrote it takes it back; `openstack resource provider allocation show {about}` says whose it is.",
    )

    # The database and the host
    HOST_UNREADABLE = _Text(_UNSEEN, "See what was seen.", "See to it; then audit again on {host}.")
    SLOT_EMPTY = _Text(
        _LESS,
        "It was pulled, has no power, or fell off the bus.",
        "The agent of {host} notes it as missing in its next period: start it if it does not run.",
    )
    OTHER_DRIVE = _Text(
        _RISK,
        "The drive was changed while the agent did not run.",
        "`autoclave audit --fix` puts it into error, as its agent does; then put the known drive back, or `autoclave "
        "device accept {slot}`.",
        Fix.DISTRUST,
    )
    DRIVER_DIFFERS = _Text(
        _RISK,
        "Another program or a guest was given the drive, past Autoclave.",
        "See who has it. " + _CLEAN,
        Fix.DISTRUST,
    )
    NO_DRIVER = _Text(
        _UNTIDY,
        "The nvme driver gave it up, or somebody unbound it.",
        "Look into the kernel's log; bind it again: `echo {address} > /sys/bus/pci/drivers/nvme/bind`.",
    )
    USED_BY_HOST = _Text(_RISK, "A program of the host uses it.", "End that use. " + _CLEAN, Fix.DISTRUST)
    SECOND_PATH = _Text(
        _RISK,
        "Another controller or a virtual function reaches the same drive.",
        "Unbind or detach it. " + _CLEAN,
        Fix.DISTRUST,
    )
    GUEST_NOT_RUNNING = _Text(
        _INFO, "The host's driver has it: the guest is off, or was not started yet.", "Nothing is to be done."
    )
    LIBVIRT_NOT_LOOKED_AT = _Text(
        _INFO,
        "There is no virsh on this host.",
        "Install libvirt-clients to have it looked at.",
    )
    LIBVIRT_UNREADABLE = _Text(_UNSEEN, "libvirt did not answer.", "See to it; then audit again on {host}.")
    GUEST_WITHOUT_REQUEST = _Text(
        _RISK,
        "The guest was given the device by hand, or outlived its accelerator request.",
        "See whose guest it is and end it, or take the device away from it. If the device was available, "
        "`autoclave audit --fix` puts it into error; clean it afterwards.",
        Fix.DISTRUST,
    )

    GUEST_WITHOUT_CLAIM = _Text(
        _RISK,
        "The guest was given the function by hand or outlived its instance; or the rows were changed by hand, or an "
        "older backup of the database was restored.",
        "See whose guest it is: `virsh dumpxml {about}` on {host}. Until it is ended, or the function was taken away "
        "from it and cleaned, let nobody else get it: `openstack resource provider inventory set --amend --resource "
        "{resource_class}:reserved={total} {provider}`.",
    )

    @property
    def label(self) -> str:
        """Return its stable name."""
        return self.name.lower().replace("_", "-")

    @property
    def severity(self) -> Severity:
        """Return its severity."""
        return self.value.severity

    @property
    def cause(self) -> str:
        """Return its usual cause."""
        return self.value.cause

    @property
    def remedy(self) -> str:
        """Return the safe remedy, with names in braces."""
        return self.value.remedy

    @property
    def fix(self) -> Fix | None:
        """Return the action of ``--fix`` for it."""
        return self.value.fix
