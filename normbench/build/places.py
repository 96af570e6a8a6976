"""What makes the norms and placements of a model: at each site by the rule that holds there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from normbench.build.parts import factory
from normbench.config.recipe import Part, Recipe
from normbench.config.rules import Rule, best_rule, fits_slot, say_places
from normbench.errors import ContractError, UsageError
from normbench.norms.foreign import accept_mask
from normbench.training.devices import seed_draws
from normbench.types import NormFactory, Site, asks_for, optional_norm


class NormsBySite:
    """A norm factory that keeps what it made by the name of its site, which with the seed decides its draws."""

    def __init__(self, factory: NormFactory, seed: int) -> None:
        self.factory = factory
        self.seed = seed
        self.made: dict[str, nn.Module] = {}

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        with seed_draws(self.seed, "norm", site.name if site else len(self.made)):
            norm = self.factory(num_features, channel_dim=channel_dim, site=site)
        return self.keep(norm, channel_dim, site)

    def optional(self, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
        """Return the norm for a place of `optional_norm`; None where the factory asks for none there."""
        with seed_draws(self.seed, "norm", site.name):
            norm = optional_norm(self.factory, num_features, channel_dim=channel_dim, site=site)
        return None if norm is None else self.keep(norm, channel_dim, site)

    def names_any_of(self, slots: Collection[str]) -> bool:
        """Tell whether the factory may give a norm for places that have none unless it is asked for; see `asks_for`."""
        return asks_for(self.factory, slots)

    def given_at(self, site: Site) -> set[str]:
        """Return the settings that the configuration gives the norm of a site; nothing where that is not known."""
        given_at = getattr(self.factory, "given_at", None)
        return set[str]() if given_at is None else given_at(site)

    def keep(self, norm: nn.Module, channel_dim: int, site: Site | None) -> nn.Module:
        """Keep a norm, which takes a mask and knows its features and its place from now on."""
        stands_at = site or Site(f"norm{len(self.made)}")
        if stands_at.name in self.made:
            where = f"two norms stand at {stands_at.name}"
            raise ContractError(f"{where}: give each norm its slot, as in site.at('mlp', 'out')")
        kept: Any = accept_mask(norm)
        kept.stands_at = stands_at
        if not hasattr(kept, "channel_dim"):  # a user's own need not keep it, and probes take statistics by channel
            kept.channel_dim = channel_dim
        self.made[stands_at.name] = norm
        return norm


class ByPlace:
    """What makes the norms or the placements of a model: at each site by the rule that holds there, else as usual.

    Attributes:
        parts: the one that holds at each site that was asked about; None at one that has a norm only if a rule names
            it, and none does.
        optional_sites: those that have a norm only if a rule names them.
    """

    def __init__(self, recipe: Recipe, group: str) -> None:
        self.recipe = recipe
        self.usual = recipe[group]
        self.rules = recipe.rules(group)
        self.factories = {part.section: factory(part) for part in recipe.parts_of(group)}
        self.parts: dict[Site, Part | None] = {}
        self.optional_sites = set[Site]()

    def part_at(self, site: Site) -> Part:
        """Return the part that holds at a site."""
        rule = best_rule(self.rules, site)
        part = self.recipe[rule.key] if rule else self.usual
        self.parts[site] = part
        return part

    def factory_at(self, site: Site) -> Callable[..., Any]:
        """Return what makes the norm or the placement of a site."""
        return self.factories[self.part_at(site).section]

    def part_asked_for(self, site: Site) -> Part | None:
        """Return the part of a rule that names a site; None where none does."""
        rule = best_rule(self.rules, site, asked_for=True)
        part = self.recipe[rule.key] if rule else None
        self.optional_sites.add(site)
        self.parts[site] = part
        return part

    def applies(self, rule: Rule, site: Site) -> bool:
        """Tell whether a rule may hold at a site."""
        return rule.names(site) if site in self.optional_sites else rule.fits(site)

    def check_used(self) -> None:
        """Refuse a rule that fits none of the sites.

        Raises:
            UsageError: with the words of places that there are.
        """
        if self.rules and not self.parts:
            what = f"{self.rules[0].key} fits no place of this model"
            raise UsageError(f"{what}, which makes no {self.usual.group} of its own: leave the rule out")
        for rule in self.rules:
            if not any(self.applies(rule, site) for site in self.parts):
                raise UsageError(f"{rule.key} fits no place of this model: {say_places(rule, self.parts)}")


class NormsByPlace(ByPlace):
    """A norm factory that makes the norm of each site by the rules."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, "norm")
        self.first_in_block: dict[tuple[str, int], nn.Module] = {}

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        if site is None:
            made: nn.Module = self.factories[self.usual.section](num_features, channel_dim=channel_dim, site=None)
            return made
        return self.make_norm(self.part_at(site), num_features, channel_dim, site)

    def names_any_of(self, slots: Collection[str]) -> bool:
        """Tell whether a rule names one of some slots."""
        words = [word for rule in self.rules for word in rule.words]
        return any(fits_slot(word, Site("", slot=slot)) for word in words for slot in slots)

    def given_at(self, site: Site) -> set[str]:
        """Return the settings that the configuration gives the norm of a site."""
        part = self.parts[site] or self.usual
        return set(part.settings)

    def optional(self, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
        """Return the norm of a place of `optional_norm`, where a rule names it."""
        part = self.part_asked_for(site)
        if part is None:
            return None
        return self.make_norm(part, num_features, channel_dim, site)

    def make_norm(self, part: Part, num_features: int, channel_dim: int, site: Site) -> nn.Module:
        """Return the norm of a site from the part that holds there; see `Norm.shared`.

        Raises:
            UsageError: it is to share parameters with a norm of other sizes.
        """
        section = part.section
        norm: nn.Module = self.factories[section](num_features, channel_dim=channel_dim, site=site)
        if not getattr(norm, "shared", False) or site.layer is None:
            return norm
        first = self.first_in_block.setdefault((section, site.layer), norm)
        for name, parameter in first.named_parameters(recurse=False):
            own_shape = norm.get_parameter(name).shape
            if own_shape != parameter.shape:
                what = f"{section}.shared=true finds norms of {parameter.numel()} and of {own_shape.numel()} features"
                cure = f"set {section}.shape=scalar, or name places of one width"
                raise UsageError(f"{what} in {site.at('block').name}: {cure}")
            setattr(norm, name, parameter)
        return norm
