"""Layouts of drives: how they are kept, compared, and shown."""

from dataclasses import replace

import pytest

from autoclave.rules.drive_layout import MOST_RECORDED, DriveLayout, NamespaceShape, difference, is_what_zeroing_makes

ONE = NamespaceShape(blocks=8192, block_bytes=512)
BIG = NamespaceShape(blocks=1024, block_bytes=4096, metadata_bytes=64, lba_format=7)
OTHER_FORMATS = {"block_bytes": 4096, "metadata_bytes": 8, "extended": True, "dps": 1}


@pytest.mark.parametrize("changed", [{"blocks": 8}, {"write_protected": True}])
def test_size_and_write_protection_are_no_part_of_a_format(changed):
    assert ONE.same_format(replace(ONE, **changed))
    assert replace(ONE, **changed).same_format(ONE)


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_shapes_with_another_block_have_another_format(name):
    other = replace(ONE, **{name: OTHER_FORMATS[name]})
    assert not ONE.same_format(other)
    assert not DriveLayout((ONE, other)).one_format


def test_one_format_is_that_of_every_namespace():
    """A format of all namespaces at once gives each the format of the first."""
    assert DriveLayout((ONE, replace(ONE, blocks=8), ONE)).one_format
    assert not DriveLayout((ONE, ONE, BIG)).one_format
    assert DriveLayout(()).one_format


@pytest.mark.parametrize(
    "layout",
    [
        DriveLayout((ONE,)),
        DriveLayout((ONE, BIG), unattached=1, unallocated=17_915_904),
        DriveLayout((NamespaceShape(8, 512, 8, extended=True, dps=9, write_protected=True, lba_format=1),)),
    ],
)
def test_layout_is_read_as_it_was_written(layout):
    read = DriveLayout.from_json(layout.to_json())
    assert read == layout
    assert read.to_json() == layout.to_json()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        '"namespaces"',
        '{"namespaces": 1}',
        '{"namespaces": [1]}',
        '{"namespaces": [{"blocks": 1}]}',
        '{"namespaces": [], "more": 1}',
        '{"namespaces": [{"blocks": -1, "block_bytes": 512}]}',
        '{"namespaces": [{"blocks": "1", "block_bytes": 512}]}',
    ],
)
def test_text_that_is_no_layout_is_none(text):
    assert DriveLayout.from_json(text) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((BIG,), "namespace 1 has LBA format 7 (4096+64), recorded is 0 (512+0)"),
        ((NamespaceShape(8191, 512),), "namespace 1 has 8191 blocks, recorded is 8192"),
        ((ONE, ONE), "it has 2 namespaces, recorded is 1 namespace"),
        ((), "it has no namespace, recorded is 1 namespace"),
        ((NamespaceShape(8192, 512, write_protected=True),), "namespace 1 is write-protected"),
        ((NamespaceShape(8192, 512, without_storage=8),), "namespace 1 has 8 blocks without storage, recorded is 0"),
        ((NamespaceShape(8192, 512, lba_format=3),), None),
    ],
)
def test_difference_names_what_is_other(found, said):
    assert difference(DriveLayout((ONE,)), DriveLayout(found)) == said


def test_difference_of_many_namespaces_is_short():
    recorded, found = DriveLayout((ONE,) * 9), DriveLayout((BIG,) * 9)
    assert difference(recorded, found).endswith("and 5 more")


def test_unattached_namespace_is_a_difference():
    assert "not attached" in difference(DriveLayout((ONE,)), DriveLayout((ONE,), unattached=1))


def test_bytes_in_no_namespace_are_shown_and_not_compared():
    layout = DriveLayout((ONE,), unallocated=512)
    assert layout == DriveLayout((ONE,))
    assert str(layout) == "namespace 1: 8192 blocks in LBA format 0 (512+0); 512 bytes in no namespace"


@pytest.mark.parametrize(("number", "recordable"), [(0, False), (1, True), (MOST_RECORDED, True)])
def test_layout_of_no_namespace_is_not_recorded(number, recordable):
    assert DriveLayout((ONE,) * number).recordable is recordable
    assert not DriveLayout((ONE,) * (MOST_RECORDED + 1)).recordable


def test_longest_layout_on_record_fits_into_a_column_beside_as_much_evidence():
    """A TEXT of MariaDB has 65535 bytes, and a drive's former guest chose what is written there."""
    longest = NamespaceShape(
        2**64 - 1,
        1 << 31,
        2**16 - 1,
        extended=True,
        dps=255,
        write_protected=True,
        without_storage=2**64 - 1,
        lba_format=63,
    )
    layout = DriveLayout((longest,) * MOST_RECORDED, unattached=1024, unallocated=2**128 - 1)
    assert layout.recordable
    assert len(layout.to_json()) < 65535 / 2


@pytest.mark.parametrize(
    ("recorded", "found", "right"),
    [
        ((ONE, ONE), (NamespaceShape(16384, 512),), True),
        ((ONE,), (ONE, ONE), True),
        ((ONE,), (BIG,), False),
        ((BIG,), (ONE,), True),
        ((ONE,), (), False),
        ((ONE,), (NamespaceShape(8192, 512, write_protected=True),), False),
        ((ONE, ONE), (ONE,), False),
    ],
)
def test_zeroing_replaces_namespaces_in_the_recorded_format(recorded, found, right):
    assert is_what_zeroing_makes(DriveLayout(recorded), DriveLayout(found), made_anew=False) is right
    assert not is_what_zeroing_makes(DriveLayout(recorded), DriveLayout(found, unattached=1), made_anew=True)


def test_new_namespace_may_be_smaller_than_those_it_replaces():
    """A drive may grant less in one piece."""
    assert is_what_zeroing_makes(DriveLayout((ONE, ONE)), DriveLayout((ONE,)), made_anew=True)
