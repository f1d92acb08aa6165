"""Select the erase for a controller by the policy matrix of the NVMe specification.

The three rows of ``clear_action=format`` are additions: many drives support Format NVM but not Sanitize. The rows of
the specification, including those of ``auto``, never select a format.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class ClearAction(StrEnum):
    """List the values of the operator's ``clear_action``: the operations that may be used."""

    AUTO = "auto"
    SANITIZE = "sanitize"
    ZERO = "zero"
    FORMAT = "format"


class ClearStrategy(StrEnum):
    """List the values of the operator's ``clear_strategy``: the mechanisms that the operation may use."""

    AUTO = "auto"
    CRYPTO = "crypto"
    BLOCK = "block"


class CleanupAction(StrEnum):
    """List the erases, strongest first. Discovery locks one into ``std_board_info``."""

    SANITIZE_CRYPTO = "sanitize_crypto"
    """Sanitize, Crypto Erase: the controller destroys its media encryption keys."""
    SANITIZE_BLOCK = "sanitize_block"
    """Sanitize, Block Erase: the controller erases all its media."""
    FORMAT_CRYPTO = "format_crypto"
    """Format NVM, Cryptographic Erase (SES 2): the controller deletes the encryption keys of its namespaces."""
    FORMAT_BLOCK = "format_block"
    """Format NVM, User Data Erase (SES 1): the controller erases the user data of its namespaces."""
    WRITE_ZEROES = "write_zeroes"
    """The controller zeroes every block of its namespaces (NVMe Write Zeroes)."""
    SHRED = "shred"
    """The host overwrites every block with zeroes, which every drive supports."""


@dataclass(frozen=True)
class Capabilities:
    """Hold the capabilities from Identify Controller that concern erasing.

    :param crypto_erase: Crypto Erase Sanitize, SANICAP bit 0.
    :param block_erase: Block Erase Sanitize, SANICAP bit 1.
    :param write_zeroes: the Write Zeroes command, ONCS bit 3.
    :param namespace_management: Namespace Management, OACS bit 3. It affects how a drive is zeroed, but selects no
        action and has no trait.
    :param format_nvm: the Format NVM command, OACS bit 1.
    :param format_crypto: Format NVM with cryptographic erase, OACS bit 1 and FNA bit 2.
    """

    crypto_erase: bool
    block_erase: bool
    write_zeroes: bool
    namespace_management: bool
    format_nvm: bool = False
    format_crypto: bool = False

    @property
    def traits(self) -> tuple[str, ...]:
        """Return the os-traits names of the drive's capabilities, independent of the policy."""
        shown = {
            "HW_NVME_CES": self.crypto_erase,
            "HW_NVME_BES": self.block_erase,
            "HW_NVME_WZS": self.write_zeroes,
        }
        return tuple(trait for trait, supported in shown.items() if supported)


class Rejection(NamedTuple):
    """Pair an action that was not selected with the reason."""

    action: CleanupAction
    reason: str


@dataclass(frozen=True)
class Resolution:
    """Hold the result of the policy for one controller.

    :param action: the action to lock in; None if the controller supports none that the policy allows. Such a controller
        must not be offered.
    :param reason: why this action was selected, or why none was.
    :param rejected: all other actions, strongest first.
    """

    action: CleanupAction | None
    reason: str
    rejected: tuple[Rejection, ...]


_CRYPTO, _BLOCK, _FORMAT_CRYPTO, _FORMAT_BLOCK, _ZEROES, _SHRED = CleanupAction

MATRIX: dict[tuple[ClearAction, ClearStrategy], tuple[CleanupAction, ...]] = {
    (ClearAction.AUTO, ClearStrategy.AUTO): (_CRYPTO, _BLOCK, _ZEROES, _SHRED),
    (ClearAction.AUTO, ClearStrategy.CRYPTO): (_CRYPTO,),
    (ClearAction.AUTO, ClearStrategy.BLOCK): (_BLOCK, _ZEROES, _SHRED),
    (ClearAction.SANITIZE, ClearStrategy.AUTO): (_CRYPTO, _BLOCK),
    (ClearAction.SANITIZE, ClearStrategy.CRYPTO): (_CRYPTO,),
    (ClearAction.SANITIZE, ClearStrategy.BLOCK): (_BLOCK,),
    (ClearAction.ZERO, ClearStrategy.AUTO): (_ZEROES, _SHRED),
    (ClearAction.ZERO, ClearStrategy.BLOCK): (_ZEROES, _SHRED),
    (ClearAction.FORMAT, ClearStrategy.AUTO): (_FORMAT_CRYPTO, _FORMAT_BLOCK),
    (ClearAction.FORMAT, ClearStrategy.CRYPTO): (_FORMAT_CRYPTO,),
    (ClearAction.FORMAT, ClearStrategy.BLOCK): (_FORMAT_BLOCK,),
}
"""The actions that each policy allows, the preferred first. A pair that is not a key is an invalid configuration."""

_NEEDS: dict[CleanupAction, tuple[str, str]] = {
    _CRYPTO: ("crypto_erase", "Crypto Erase (SANICAP bit 0)"),
    _BLOCK: ("block_erase", "Block Erase (SANICAP bit 1)"),
    _FORMAT_CRYPTO: ("format_crypto", "Format NVM with cryptographic erase (OACS bit 1 and FNA bit 2)"),
    _FORMAT_BLOCK: ("format_nvm", "Format NVM (OACS bit 1)"),
    _ZEROES: ("write_zeroes", "Write Zeroes (ONCS bit 3)"),
}

_OVERWRITES = frozenset({_ZEROES, _SHRED})


def allowed_actions(clear_action: ClearAction, clear_strategy: ClearStrategy) -> tuple[CleanupAction, ...]:
    """Return the actions that the policy allows, the preferred first.

    :raises ValueError: the two values contradict each other: zeroing is not cryptographic.
    """
    try:
        return MATRIX[clear_action, clear_strategy]
    except KeyError:
        raise ValueError(
            f"clear_action={clear_action} cannot be done with clear_strategy={clear_strategy}: writing zeroes is not a "
            "cryptographic erase; use clear_action=sanitize, or clear_strategy=block"
        ) from None


def resolve(clear_action: ClearAction, clear_strategy: ClearStrategy, capabilities: Capabilities) -> Resolution:
    """Select the first action that the policy allows and the controller supports.

    :raises ValueError: the policy contradicts itself, see :func:`allowed_actions`.
    """
    allowed = allowed_actions(clear_action, clear_strategy)
    chosen = next((action for action in allowed if missing(action, capabilities) is None), None)
    policy = f"clear_action={clear_action}, clear_strategy={clear_strategy}"

    def why_not(action: CleanupAction) -> str:
        if action not in allowed:
            return _forbidden(action, clear_action, clear_strategy)
        return missing(action, capabilities) or f"{chosen} is preferred by {policy}"

    if chosen is None:
        lacking = " or ".join(_NEEDS[action][1] for action in allowed)
        reason = f"{policy} needs {lacking}, which the controller does not support"
    else:
        reason = f"the first that {policy} allows and the controller can do"
    rejected = tuple(Rejection(action, why_not(action)) for action in CleanupAction if action is not chosen)
    return Resolution(chosen, reason, rejected)


def missing(action: CleanupAction, capabilities: Capabilities) -> str | None:
    """Return why a controller does not support *action*, or None if it does."""
    if action not in _NEEDS:
        return None
    capability, name = _NEEDS[action]
    return None if getattr(capabilities, capability) else f"the controller does not support {name}"


def quicker_format(action: CleanupAction | None, capabilities: Capabilities) -> CleanupAction | None:
    """Return the format that could replace overwriting the drive, or None.

    A sanitize covers more of the drive than a format, so sanitized drives get None.
    """
    if action not in _OVERWRITES:
        return None
    ways = MATRIX[ClearAction.FORMAT, ClearStrategy.AUTO]
    return next((way for way in ways if missing(way, capabilities) is None), None)


def _forbidden(action: CleanupAction, clear_action: ClearAction, clear_strategy: ClearStrategy) -> str:
    # A key forbids an action if no row with its value allows it, whatever the value of the other key.
    keys = []
    if not any(action in allowed for (key, _), allowed in MATRIX.items() if key is clear_action):
        keys.append(f"clear_action={clear_action}")
    if not any(action in allowed for (_, key), allowed in MATRIX.items() if key is clear_strategy):
        keys.append(f"clear_strategy={clear_strategy}")
    return f"{keys[0]} does not allow it" if len(keys) == 1 else f"{' and '.join(keys)} do not allow it"
