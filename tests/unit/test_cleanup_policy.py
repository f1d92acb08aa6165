"""Every policy selects what the specification's matrix says, and accounts for what it does not select."""

import itertools

import os_traits
import pytest

from autoclave.rules.cleanup_policy import (
    Capabilities,
    CleanupAction,
    ClearAction,
    ClearStrategy,
    Resolution,
    allowed_actions,
    quicker_format,
    resolve,
)

# The matrix, told the other way round: for the drive's (crypto, block, zeroes) the expected action of
#   auto/auto, auto/crypto, auto/block, sanitize/auto, sanitize/crypto, sanitize/block, zero/auto, zero/block
POLICIES = [
    ("auto", "auto"),
    ("auto", "crypto"),
    ("auto", "block"),
    ("sanitize", "auto"),
    ("sanitize", "crypto"),
    ("sanitize", "block"),
    ("zero", "auto"),
    ("zero", "block"),
]
C, B, W, S, X = "sanitize_crypto", "sanitize_block", "write_zeroes", "shred", None
EXPECTED = {
    (True, True, True): [C, C, B, C, C, B, W, W],
    (True, True, False): [C, C, B, C, C, B, S, S],
    (True, False, True): [C, C, W, C, C, X, W, W],
    (True, False, False): [C, C, S, C, C, X, S, S],
    (False, True, True): [B, X, B, B, X, B, W, W],
    (False, True, False): [B, X, B, B, X, B, S, S],
    (False, False, True): [W, X, W, X, X, X, W, W],
    (False, False, False): [S, X, S, X, X, X, S, S],
}
FORMAT_POLICIES = [("format", "auto"), ("format", "crypto"), ("format", "block")]
CELLS = [
    (*policy, drive, action)
    for drive, actions in EXPECTED.items()
    for policy, action in zip(POLICIES, actions, strict=True)
]


def resolution(clear_action: str, clear_strategy: str, crypto: bool, block: bool, zeroes: bool) -> Resolution:
    return resolve(
        ClearAction(clear_action),
        ClearStrategy(clear_strategy),
        Capabilities(crypto_erase=crypto, block_erase=block, write_zeroes=zeroes, namespace_management=False),
    )


def reasons(result: Resolution) -> dict[str, str]:
    return {action.value: reason for action, reason in result.rejected}


@pytest.mark.parametrize(("clear_action", "clear_strategy", "drive", "action"), CELLS)
def test_each_policy_on_each_drive_selects_what_the_specification_says(
    clear_action: str, clear_strategy: str, drive: tuple[bool, bool, bool], action: str | None
) -> None:
    assert resolution(clear_action, clear_strategy, *drive).action == action


def test_the_table_of_this_test_leaves_no_policy_and_no_drive_out() -> None:
    valid = set(itertools.product(ClearAction, ClearStrategy)) - {(ClearAction.ZERO, ClearStrategy.CRYPTO)}
    assert {*POLICIES, *FORMAT_POLICIES} == valid
    assert set(EXPECTED) == set(itertools.product([True, False], repeat=3))


@pytest.mark.parametrize(("clear_action", "clear_strategy", "drive", "action"), CELLS)
def test_every_action_is_either_selected_or_rejected_with_a_reason(
    clear_action: str, clear_strategy: str, drive: tuple[bool, bool, bool], action: str | None
) -> None:
    result = resolution(clear_action, clear_strategy, *drive)
    named = [rejection.action for rejection in result.rejected] + ([result.action] if result.action else [])
    assert sorted(named) == sorted(CleanupAction)
    assert all(reason for _, reason in result.rejected)
    assert result.reason


def test_zeroing_that_must_be_cryptographic_contradicts_itself() -> None:
    with pytest.raises(ValueError, match="clear_action=zero cannot be done with clear_strategy=crypto"):
        allowed_actions(ClearAction.ZERO, ClearStrategy.CRYPTO)
    with pytest.raises(ValueError, match="not a cryptographic erase"):
        resolution("zero", "crypto", True, True, True)


@pytest.mark.parametrize(
    ("clear_strategy", "capability"),
    [("crypto", "Crypto Erase (SANICAP bit 0)"), ("block", "Block Erase (SANICAP bit 1)")],
)
def test_a_policy_that_the_drive_cannot_satisfy_names_the_missing_capability(
    clear_strategy: str, capability: str
) -> None:
    result = resolution("sanitize", clear_strategy, False, False, True)
    assert result.action is None
    assert result.reason == (
        f"clear_action=sanitize, clear_strategy={clear_strategy} needs {capability}, "
        "which the controller does not support"
    )


def test_a_policy_with_two_ways_names_both_missing_capabilities() -> None:
    assert (
        "needs Crypto Erase (SANICAP bit 0) or Block Erase (SANICAP bit 1),"
        in resolution("sanitize", "auto", False, False, True).reason
    )


def test_rejected_actions_say_whether_policy_or_the_drive_or_preference_decided() -> None:
    result = resolution("sanitize", "auto", False, True, True)
    assert result.action == "sanitize_block"
    assert reasons(result) == {
        "sanitize_crypto": "the controller does not support Crypto Erase (SANICAP bit 0)",
        "format_crypto": "clear_action=sanitize does not allow it",
        "format_block": "clear_action=sanitize does not allow it",
        "write_zeroes": "clear_action=sanitize does not allow it",
        "shred": "clear_action=sanitize does not allow it",
    }
    assert reasons(resolution("auto", "auto", True, False, True)) == {
        "sanitize_block": "the controller does not support Block Erase (SANICAP bit 1)",
        "format_crypto": "clear_action=auto does not allow it",
        "format_block": "clear_action=auto does not allow it",
        "write_zeroes": "sanitize_crypto is preferred by clear_action=auto, clear_strategy=auto",
        "shred": "sanitize_crypto is preferred by clear_action=auto, clear_strategy=auto",
    }
    assert reasons(resolution("zero", "block", True, True, False)) == {
        "sanitize_crypto": "clear_action=zero and clear_strategy=block do not allow it",
        "sanitize_block": "clear_action=zero does not allow it",
        "format_crypto": "clear_action=zero and clear_strategy=block do not allow it",
        "format_block": "clear_action=zero does not allow it",
        "write_zeroes": "the controller does not support Write Zeroes (ONCS bit 3)",
    }
    assert reasons(resolution("auto", "crypto", True, True, True))["shred"] == (
        "clear_strategy=crypto does not allow it"
    )


def test_shred_needs_nothing_of_the_controller_so_auto_always_finds_an_action() -> None:
    assert resolution("auto", "auto", False, False, False).action is CleanupAction.SHRED


@pytest.mark.parametrize(("clear_action", "clear_strategy", "drive", "action"), CELLS)
def test_namespace_management_never_selects_an_action(
    clear_action: str, clear_strategy: str, drive: tuple[bool, bool, bool], action: str | None
) -> None:
    managed = resolve(ClearAction(clear_action), ClearStrategy(clear_strategy), Capabilities(*drive, True))
    assert managed == resolution(clear_action, clear_strategy, *drive)


def test_traits_tell_what_the_drive_can_do_in_standard_names() -> None:
    assert Capabilities(True, True, True, True).traits == ("HW_NVME_CES", "HW_NVME_BES", "HW_NVME_WZS")
    assert Capabilities(False, True, False, True).traits == ("HW_NVME_BES",)
    assert Capabilities(False, False, False, True).traits == ()
    assert set(Capabilities(True, True, True, True).traits) <= set(os_traits.get_traits("HW_NVME_"))


@pytest.mark.parametrize(
    ("clear_strategy", "nvm", "crypto", "action"),
    [
        ("auto", True, True, "format_crypto"),
        ("auto", True, False, "format_block"),
        ("auto", False, False, None),
        ("crypto", True, True, "format_crypto"),
        ("crypto", True, False, None),
        ("block", True, True, "format_block"),
        ("block", False, False, None),
    ],
)
def test_format_needs_what_the_drive_claims(clear_strategy: str, nvm: bool, crypto: bool, action: str | None) -> None:
    """``clear_action=format`` asks OACS and FNA, and nothing else stands in for it."""
    drive = Capabilities(True, True, True, True, format_nvm=nvm, format_crypto=crypto)
    assert resolve(ClearAction.FORMAT, ClearStrategy(clear_strategy), drive).action == action


@pytest.mark.parametrize(("clear_action", "clear_strategy"), POLICIES)
def test_format_is_never_selected_by_another_policy(clear_action: str, clear_strategy: str) -> None:
    """The rows of the specification stay as they are, whatever else a drive can do."""
    drive = Capabilities(False, False, False, False, format_nvm=True, format_crypto=True)
    result = resolve(ClearAction(clear_action), ClearStrategy(clear_strategy), drive)
    assert result.action in (CleanupAction.SHRED, None)


@pytest.mark.parametrize(
    ("action", "nvm", "crypto", "quicker"),
    [
        ("write_zeroes", True, True, "format_crypto"),
        ("shred", True, False, "format_block"),
        ("shred", False, False, None),
        ("sanitize_block", True, True, None),
        ("format_block", True, True, None),
        (None, True, True, None),
    ],
)
def test_quicker_format_is_named_only_for_overwritten_drives(
    action: str | None, nvm: bool, crypto: bool, quicker: str | None
) -> None:
    """A sanitize reaches more than a format does, so only an overwrite has a quicker way."""
    drive = Capabilities(False, False, True, False, format_nvm=nvm, format_crypto=crypto)
    assert quicker_format(CleanupAction(action) if action else None, drive) == quicker
