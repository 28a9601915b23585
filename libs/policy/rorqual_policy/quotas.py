"""How much of the block store a tenant may fill."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bytes of blocks a tenant; 0 = no bound."""

    default_bytes: int = 0
    tenant_bytes: Mapping[int, int] = field(default_factory=dict)
    """By tenant, instead of the default."""
    slack: float = 0.05
    """Share of a quota freed beyond what is over, so that not every block evicts another."""

    @property
    def bound_anyone(self) -> bool:
        """Whether there is any quota at all."""
        return bool(self.default_bytes or any(self.tenant_bytes.values()))

    def of(self, tenant: int) -> int:
        """Bytes that a tenant may fill; 0 = no bound."""
        return self.tenant_bytes.get(tenant, self.default_bytes)


def bytes_to_free(used_bytes: Mapping[int, int], quotas: Quotas) -> dict[int, int]:
    """What each tenant over its quota has to give up, in bytes; the others are left out.

    The caller lets the tenant's least recently used blocks go first, and of blocks used at once
    those deepest in their chain: without its beginning a chain is of no use.
    """
    freed: dict[int, int] = {}
    for tenant, used in used_bytes.items():
        quota = quotas.of(tenant)
        if quota and used > quota:
            freed[tenant] = used - int(quota * (1 - quotas.slack))
    return freed
