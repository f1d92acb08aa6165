"""One group of a request to Placement: resources and traits that belong together."""

from collections.abc import Mapping
from dataclasses import dataclass

OF_FLAVOR = "flavor"
"""The origin of what a flavor's own extra specs ask for, in the unnumbered group together with the image."""


@dataclass(frozen=True)
class RequestGroup:
    """A request group.

    :param suffix: with one, a single provider must satisfy all of the group; the unnumbered group, with an empty
        one, may be satisfied by several of a host.
    :param resources: amounts by resource class; none is 0.
    :param required: traits that the providers must have.
    :param forbidden: traits that they must not have.
    :param origin: who asks for it, in words.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    origin: str = OF_FLAVOR

    def asked_by(self, name: str) -> str | None:
        """Who asks for the class or trait *name* here, in words; None: nobody does."""
        kind = "resources" if name in self.resources else "trait"
        if kind == "trait" and name not in self.required | self.forbidden:
            return None
        if self.origin != OF_FLAVOR:
            return self.origin
        also = " or image property" if kind == "trait" and not self.suffix else ""
        return f"extra spec{also} '{kind}{self.suffix}:{name}'"

    def query(self, in_tree: str | None = None) -> list[tuple[str, str]]:
        """Its parameters for ``GET /allocation_candidates``.

        :param in_tree: the provider in whose tree alone it is to be satisfied.
        """
        amounts = ",".join(f"{name}:{amount}" for name, amount in sorted(self.resources.items()))
        traits = [*sorted(self.required), *(f"!{name}" for name in sorted(self.forbidden))]
        parameters = [(f"resources{self.suffix}", amounts)]
        if traits:
            parameters.append((f"required{self.suffix}", ",".join(traits)))
        if in_tree is not None:
            parameters.append((f"in_tree{self.suffix}", in_tree))
        return parameters
