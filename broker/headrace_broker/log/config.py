"""`LogConfig`: the settings of one partition's log, under Kafka's names and with 4.2's defaults.

Owns the typed form only. Whether a value is legal for a topic is decided where topic settings
are defined (`headrace_broker.metadata`), so names that do not concern the log are skipped here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

INFINITE: Final = (1 << 63) - 1
"""Kafka's spelling of "never" for a setting of type long."""

_HOUR_MS: Final = 60 * 60 * 1000
_WEEK_MS: Final = 7 * 24 * _HOUR_MS
_LZ4_LEVEL: Final = 9


class TimestampType(StrEnum):
    """Values of `message.timestamp.type`."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """One partition's settings; each field is Kafka's topic setting with `_` for `.`."""

    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = _LZ4_LEVEL
    compression_zstd_level: int = 3
    delete_retention_ms: int = 24 * _HOUR_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = INFINITE
    flush_ms: int = INFINITE
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = INFINITE
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = _HOUR_MS
    message_timestamp_before_max_ms: int = INFINITE
    message_timestamp_type: str = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = _WEEK_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = _WEEK_MS
    # Settings of the broker, which Kafka keeps beside the topic's.

    @property
    def compacts(self) -> bool:
        """Whether `cleanup.policy` contains compact, so that every record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments are removed by time and by size."""
        return "delete" in self.cleanup_policy

    @property
    def segment_ms_max(self) -> int:
        """How long a segment stays active: what is active is never compacted."""
        if self.compacts:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def compression_level(self) -> int | None:
        """The level of `compression.type`; None is the codec's default.

        As in Kafka, 9 is the name of lz4's default, its fast compressor.
        """
        match self.compression_type:
            case "gzip":
                return None if self.compression_gzip_level < 0 else self.compression_gzip_level
            case "lz4":
                is_fast = self.compression_lz4_level == _LZ4_LEVEL
                return None if is_fast else self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None

    @property
    def stamps_append_time(self) -> bool:
        """Whether the broker's clock replaces the producer's."""
        return self.message_timestamp_type == TimestampType.LOG_APPEND_TIME

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> "LogConfig":
        """Read Kafka's topic settings (`segment.bytes` ...); a missing one takes the default."""
        known: dict[str, object] = {}
        for field in fields(cls):
            text = settings.get(field.name.replace("_", "."))
            if text is not None:
                known[field.name] = _PARSERS[type(field.default)](text)
        return cls(**known)  # type: ignore[arg-type]  # _PARSERS follows each default's type


def _boolean(text: str) -> bool:
    return text.strip().lower() == "true"


_PARSERS: Final[dict[type, Callable[[str], object]]] = {
    bool: _boolean,
    int: int,
    float: float,
    str: str,
    TimestampType: TimestampType,
}
