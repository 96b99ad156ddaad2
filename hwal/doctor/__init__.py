"""doctor: what is wrong, or could be better, with devices, installed versions and limits; each finding with a remedy."""

from hwal.doctor.examine import examine

__all__ = ["examine"]
