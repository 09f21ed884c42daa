from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Refused:
    function: object
    arguments: object
CALLS = {}
NOT_RAISED = {}
