"""One-hot vectors as rows of an identity matrix: a class that there is not is a row that there is not."""

from __future__ import annotations

import torch
from torch import Tensor

from ferrite_torch.errors import Refused


def one_hot(classes: Tensor, num_classes: int = -1) -> Tensor:
    """Returns a row of zeros for each class, with a one at its position; classes are checked as indices of a table are.

    Torch's own pieces compare each class with the positions of the row. What is no class then is a row of zeros.

    Raises:
        Refused: eager refuses the type, or numbers that leave no class.
    """
    if classes.dtype is not torch.int64:
        raise Refused("one_hot is only applicable to index tensor of type LongTensor")
    if num_classes == -1:
        if classes.numel() == 0:
            raise Refused("Can not infer total number of classes from empty tensor")
        num_classes = int(classes.max().item()) + 1
    if num_classes < 1:
        raise Refused("num_classes should be positive")
    rows = torch.eye(num_classes, dtype=torch.int64, device=classes.device).index_select(0, classes.reshape(-1))
    return rows.view(*classes.shape, num_classes)
