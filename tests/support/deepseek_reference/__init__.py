"""The DeepSeek V4 and V4.1 models once more, written only from their formulas, for tests.

Dense, one-shot and slow on purpose: a whole sequence at once, every restriction an explicit mask,
no state. It shares no code with the engine, so that agreement of the two means something. It reads
a config.json's fields and a checkpoint's tensors by their published names.
"""

from tests.support.deepseek_reference.draft import DraftBlock, DraftReference, MtpReference
from tests.support.deepseek_reference.shape import Shape
from tests.support.deepseek_reference.text import Rule, TextReference, Trace

__all__ = [
    "DraftBlock",
    "DraftReference",
    "MtpReference",
    "Rule",
    "Shape",
    "TextReference",
    "Trace",
]
