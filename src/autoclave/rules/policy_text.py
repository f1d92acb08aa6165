"""Validate the rules of a policy file before oslo.policy uses them.

oslo.policy reads an empty rule as "every caller". It reads an invalid check as "no caller", which ``not`` inverts. Both
are faults here. A rule that no request is checked against is a fault as well.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from autoclave.rules.located_yaml import Empty, Located, Unreadable, quoted, read

TARGET = {"project_id": "", "user_id": ""}
"""The attributes that ``%(name)s`` in a rule may refer to."""

LONGEST_RULE = 4096
"""The most characters of one rule."""

DEEPEST_RULE = 30
"""The most levels of ``not``, of parentheses, and of rules that refer to each other."""

_OPEN, _CLOSE = "(", ")"


class FileRule(NamedTuple):
    """Hold one rule of a file.

    :param line: counted from 1.
    """

    name: str
    text: str
    file: str
    line: int

    def fault(self, message: str) -> str:
        """Return *message* with the location of the rule."""
        return _fault(self.file, self.line, f"rule {quoted(self.name)} {message}")


def rules_of(file: str, text: str) -> tuple[list[FileRule], list[str]]:
    """Return the rules in *text*, and the faults of its form.

    :param file: its path, for the faults.
    """
    try:
        root, twice = read(text)
    except Empty:
        return [], []
    except Unreadable as error:
        return [], [_fault(file, error.found.line, f"cannot be read as rules: {error.found.message}")]
    if not isinstance(root.value, dict):
        return [], [_fault(file, root.line, 'cannot be read as rules: each line must be "rule name": "who may"')]
    faults = [_fault(file, found.line, f"rule {quoted(str(found.path[-1]))} is {found.message}") for found in twice]
    rules: list[FileRule] = []
    for name, node in root.children.items():
        wrong = _value_fault(node)
        if wrong is None:
            rules.append(FileRule(str(name), node.value, file, node.line))
        else:
            faults.append(_fault(file, node.line, f"rule {quoted(str(name))} {wrong}"))
    return rules, faults


def faults_of(rules: Iterable[FileRule], defaults: Mapping[str, str], kinds: Collection[str]) -> Iterator[str]:
    """Yield the faults of *rules*, each with its file and line.

    :param defaults: all rules that requests are checked against, with their defaults.
    :param kinds: the kinds of checks: the words allowed before the colon.
    """
    latest = {rule.name: rule for rule in rules}
    texts = {**defaults, **{name: rule.text for name, rule in latest.items()}}
    sound = {}
    for rule in latest.values():
        wrong = _text_fault(rule.text, kinds)
        if wrong is None:
            sound[rule.name] = rule
        else:
            yield rule.fault(wrong)
    references = {name: _references(text) for name, text in texts.items()}
    used = set(defaults).union(*references.values())
    for rule in latest.values():
        if rule.name not in used:
            yield rule.fault(
                "governs nothing: there is no such rule, and no other rule refers to it; take it out, or see "
                "`oslopolicy-sample-generator --namespace autoclave` for the names"
            )
    for rule in sound.values():
        if unknown := sorted(references[rule.name] - set(texts)):
            yield rule.fault(f"refers to {quoted(unknown[0])}, which is no rule")
        elif _depth(rule.name, references) > DEEPEST_RULE:
            yield rule.fault(f"refers to itself, or to more than {DEEPEST_RULE} rules one after the other")


def _fault(file: str, line: int, message: str) -> str:
    return f"{file}, line {line}: {message}"


def _value_fault(node: Located) -> str | None:
    if node.value is None or node.value in ("", [], {}):
        return 'is empty, which would let every caller in; write "@" if that is meant, "!" for no caller'
    if not isinstance(node.value, str):
        return 'must be a text in quotes, such as "role:admin"'
    if len(node.value) > LONGEST_RULE:
        return f"has more than {LONGEST_RULE} characters"
    return None


def _tokens(text: str) -> Iterator[str]:
    """Yield parentheses, words and checks, split as oslo.policy does."""
    for piece in text.split():
        inner = piece.lstrip(_OPEN)
        yield from _OPEN * (len(piece) - len(inner))
        check = inner.rstrip(_CLOSE)
        if check:
            yield check
        yield from _CLOSE * (len(inner) - len(check))


def _references(text: str) -> set[str]:
    return {token.removeprefix("rule:") for token in _tokens(text) if token.startswith("rule:")}


def _text_fault(text: str, kinds: Collection[str]) -> str | None:
    """Return why *text* is not a valid rule, or None if it is."""
    nesting = deepest = negations = 0
    complete = False  # the previous token completes an expression
    for token in _tokens(text):
        word = token.lower()
        if complete != (word in ("and", "or", _CLOSE)):
            return f'cannot be read at {quoted(token)}: checks are joined by "and" or "or"'
        if word in ("and", "or"):
            complete = False
        elif word == _CLOSE:
            nesting -= 1
            if nesting < 0:
                return "closes a parenthesis that it does not open"
        elif word in ("not", _OPEN):
            negations, nesting = negations + (word == "not"), nesting + (word == _OPEN)
            deepest = max(deepest, negations + nesting)
        else:
            complete, negations = True, 0
            wrong = _check_fault(token, kinds)
            if wrong is not None:
                return wrong
    if deepest > DEEPEST_RULE:
        return f'has more than {DEEPEST_RULE} levels of "not" and parentheses'
    if nesting:
        return "does not close a parenthesis"
    return None if complete else "ends where a check must follow"


def _check_fault(check: str, kinds: Collection[str]) -> str | None:
    if check in ("!", "@"):
        return None
    kind, colon, match = check.partition(":")
    if not colon or not match or (check[0] == check[-1] and check[0] in "\"'"):
        return f'has the check {quoted(check)}, which is not KIND:VALUE, "@" or "!"'
    if kind not in kinds and not _is_literal(kind):
        return f"has the check {quoted(check)}, but {quoted(kind)} is none of {', '.join(sorted(kinds))}"
    if kind == "rule":
        return None
    try:
        match % TARGET
    except KeyError as error:
        return f"has the check {quoted(check)}, but {error} is not known of what is asked for"
    except (TypeError, ValueError) as error:
        return f"has the check {quoted(check)}, which cannot be filled in: {error}"
    return None


def _is_literal(kind: str) -> bool:
    try:
        ast.literal_eval(kind)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _depth(name: str, references: Mapping[str, Collection[str]]) -> int:
    """Return how many rules follow each other from *name* on; more than :data:`DEEPEST_RULE` if they form a cycle."""
    depth, reached = 0, {name}
    while reached and depth <= DEEPEST_RULE:
        depth += 1
        reached = {each for one in reached for each in references.get(one, ())}
    return depth
