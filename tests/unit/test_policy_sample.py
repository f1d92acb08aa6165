"""The sample policy file, as the documentation says how to make it."""

from pathlib import Path

import yaml
from oslo_config import cfg
from oslo_policy import generator

from autoclave.api.policy import list_rules


def test_the_sample_has_every_rule_with_its_default_and_changes_none(tmp_path: Path) -> None:
    sample = tmp_path / "policy.yaml.sample"
    # a configuration of its own: what else runs in this process may have set the one that all share
    generator.generate_sample(["--namespace", "autoclave", "--output-file", str(sample)], conf=cfg.ConfigOpts())
    text = sample.read_text()
    assert yaml.safe_load(text) is None
    offered = yaml.safe_load("\n".join(line[1:] for line in text.splitlines() if line.startswith('#"')))
    assert offered == {rule.name: rule.check_str for rule in list_rules()}


def test_no_rule_brings_an_older_one_that_would_count_beside_it() -> None:
    assert [rule.name for rule in list_rules() if rule.deprecated_rule is not None] == []
