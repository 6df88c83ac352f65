"""What a store was opened with, judged.

Every option has its bounds here; what is out of them is refused before anything is
touched.
"""

from dataclasses import dataclass

from wheeldb.engine.moment import DUE_MS_MAX, number_text, seconds_text, span_ms
from wheeldb.engine.names import judge_text

__all__ = ("Settings", "judge_between")

NAME_BYTES_MAX = 255
ELAPSED_MARK_MS_MIN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one opening.

    Attributes:
        durability: ``"fsync"``: a power cut loses nothing acknowledged. ``"written"``:
            a killed process loses nothing, a power cut the last moments. ``"memory"``:
            nothing is synced, whatever a call asks for; a power cut may leave a store
            that can't be opened. For tests.
        profile: ``"flash"`` never writes an acknowledged block again, ``"disk"`` packs
            tighter, ``"auto"`` looks at the device.
        node: A name for this store, for people; the ``opened`` event tells it.
        author: Who is behind the calls, as events tell it.
        window_max: Tasks in memory, about.
        segment_bytes: Size of the log's files.
        payload_bytes_max: The largest payload.
        batch_max: Tasks in one call.
        tasks_max: Unfinished tasks, ``None`` for no limit.
        bytes_max: Their payloads in bytes, likewise.
        retention: Seconds for which a finished id of the caller is remembered.
        retention_max: How many of them at most.
        archive: Keep every segment of the log.
        reserve: Keep room for finishing tasks on a full disk.
        elapsed_mark: Seconds between two anchors while a delay is pending, at least
            one: each is an event.
        recoveries_max: Attempts that may be cut short by the death of the process.
        shutdown_budget: Seconds that closing may take.
    """

    durability: str = "fsync"
    profile: str = "auto"
    node: str | None = None
    author: str = "library"
    window_max: int = 50_000
    segment_bytes: int = 16 * 2**20
    payload_bytes_max: int = 64 * 2**10
    batch_max: int = 10_000
    tasks_max: int | None = None
    bytes_max: int | None = None
    retention: float = 86_400.0
    retention_max: int = 100_000
    archive: bool = False
    reserve: bool = True
    elapsed_mark: float = 60.0
    recoveries_max: int = 3
    shutdown_budget: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what is out of its bounds.

        Raises:
            TypeError, ValueError: With the option's name.
        """
        _one_of("durability", self.durability, ("fsync", "written", "memory"))
        _one_of("profile", self.profile, ("auto", "disk", "flash"))
        if self.node is not None:
            judge_text(self.node, "node", NAME_BYTES_MAX)
        judge_text(self.author, "author", NAME_BYTES_MAX)
        judge_between("window_max", self.window_max, 100, 10_000_000)
        judge_between("segment_bytes", self.segment_bytes, 64 * 2**10, 2**30)
        judge_between("payload_bytes_max", self.payload_bytes_max, 1, 16 * 2**20)
        judge_between("batch_max", self.batch_max, 1, 1_000_000)
        if self.tasks_max is not None:
            judge_between("tasks_max", self.tasks_max, 0, 2**53)
        if self.bytes_max is not None:
            judge_between("bytes_max", self.bytes_max, 0, 2**53)
        judge_between("retention_max", self.retention_max, 0, 100_000_000)
        judge_between("recoveries_max", self.recoveries_max, 0, 1_000_000)
        for name in ("archive", "reserve"):
            if type(getattr(self, name)) is not bool:
                kind = type(getattr(self, name)).__name__
                raise TypeError(f"{name} is a {kind}, not a bool")
        for name, least_ms in (
            ("retention", 0),
            ("elapsed_mark", ELAPSED_MARK_MS_MIN),
            ("shutdown_budget", 0),
        ):
            given = getattr(self, name)
            if not least_ms <= span_ms(given, name) <= DUE_MS_MAX:
                raise ValueError(
                    f"{name} is {seconds_text(given)}; it lies between "
                    f"{least_ms // 1000} and {DUE_MS_MAX // 1000} seconds"
                )

    @property
    def is_synced(self) -> bool:
        """Whether calls wait for a sync of their own."""
        return self.durability == "fsync"


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it is one of {allowed}")


def judge_between(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within its bounds.

    Raises:
        TypeError, ValueError: With the name, and the bounds.
    """
    if type(value) is not int:
        raise TypeError(f"{name} is a {type(value).__name__}, not an int")
    if not low <= value <= high:
        raise ValueError(
            f"{name} is {number_text(value)}; it lies between {low} and {high}"
        )
