"""Room that counts how often it is asked what fits in it: what a choice costs, told without a clock."""

from __future__ import annotations

from typing import ClassVar

from inference.scheduling.memory import Room


class AskedRoom(Room):
    """``asked``: of all rooms together, since a test last set it to 0."""

    asked: ClassVar[int] = 0

    def fits(self, bytes_: int, decoding: bool) -> bool:
        AskedRoom.asked += 1
        return super().fits(bytes_, decoding)
