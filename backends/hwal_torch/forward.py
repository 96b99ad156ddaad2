"""A forward that stands in front of a module's own, on the module itself: the script goes on with the object it built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import update_wrapper
from types import MethodType
from typing import Any

from torch import nn


class Forward(ABC):
    """The forward of one module from now on. It keeps the signature, which generate() and others read.

    A deep copy of the module (an average of weights, say) and a pickled one go back to the forward of their class.

    Attributes:
        module: whose forward it is. original: the one it had before.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.original = module.forward
        update_wrapper(self, module.forward, updated=())  # the attributes of a Forward below are its own
        module.forward = self  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return of_class(memo[id(self.module)])

    def __reduce__(self) -> Any:
        return of_class, (self.module,)


def of_class(module: nn.Module) -> MethodType:
    """The forward that a module has by its class."""
    return MethodType(type(module).forward, module)
