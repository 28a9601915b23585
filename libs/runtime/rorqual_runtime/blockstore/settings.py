"""Where a service finds the block store: for the settings of those that use it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings

from rorqual_runtime.blockstore.slot_io import IoMode


class StoreSettings(BaseSettings):
    """A base beside the service's own settings, whose prefix these take."""

    store_dir: Path | None = Field(None, description="block store; default: store/ in the run dir")
    store_url: str | None = Field(
        None,
        repr=False,
        pattern="^(redis|rediss|valkey|valkeys)://",
        description="a Redis or Valkey server that holds the blocks instead of store_dir",
    )
    store_io: IoMode = Field(
        "direct", description="direct: past the page cache where the file system can; or buffered"
    )
    store_capacity_bytes: int = Field(
        8 << 30, gt=0, description="size at which the least valuable blocks leave"
    )

    def store_place(self, home: Path) -> Path | str:
        """What `open_block_store` opens, given the run directory."""
        return self.store_url or self.store_dir or home / "store"
