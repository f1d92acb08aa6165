"""Somebody renames providers in Placement by hand: what stands in the way is named, with what to do."""

import uuid

import pytest
from agentworld import HOST, SANITIZING, AgentWorld

from autoclave.exceptions import PlacementConflict
from autoclave.placement.provider_tree import DesiredProvider, ensure_provider


def test_a_provider_below_another_root_is_named_with_both_roots_and_the_way_back(one_drive: AgentWorld) -> None:
    client = one_drive.placement
    renamed = client.create_provider(str(uuid.uuid4()), "renamed-by-hand")
    child = client.create_provider(str(uuid.uuid4()), f"{HOST}_{SANITIZING}", renamed.uuid)
    made_anew = client.create_provider(str(uuid.uuid4()), HOST)
    desired = DesiredProvider(child.uuid, child.name, made_anew.uuid, "CUSTOM_NVME", frozenset())

    with pytest.raises(PlacementConflict) as told:
        ensure_provider(client, desired, None)

    assert f"is below the root renamed-by-hand ({renamed.uuid}), not below {HOST} ({made_anew.uuid})" in str(told.value)
    assert f"openstack resource provider set --name {HOST} {renamed.uuid}" in str(told.value)


def test_a_device_whose_provider_was_renamed_is_told_of_once(
    one_drive: AgentWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = one_drive.start()
    provider = one_drive.provider()
    [entry] = [each for each in one_drive.onlooker.providers_in_tree(provider.root) if each.uuid == provider.uuid]
    read = one_drive.ports.placement.providers_in_tree
    monkeypatch.setattr(
        one_drive.ports.placement,
        "providers_in_tree",
        lambda root: [
            type(each)(each.uuid, "by-hand" if each.uuid == entry.uuid else each.name, *list(vars(each).values())[2:])
            for each in read(root)
        ],
    )
    agent.period()
    agent.period()
    told = [record.getMessage() for record in caplog.records if "it was renamed there" in record.getMessage()]
    assert len(told) == 1
    assert f"set --name {provider.name} {provider.uuid}" in told[0]
