"""A message's parts as one content."""

from rorqual_recipe.conversation import Message, TextPart
from rorqual_recipe.encodings.segments import SegmentWriter

PART_SEPARATOR = "\n\n"


def text_of(message: Message) -> str:
    """The texts of a message, images left out."""
    return PART_SEPARATOR.join(part.text for part in message.parts if isinstance(part, TextPart))


def has_content(message: Message) -> bool:
    """False for a message without words and images."""
    return any(not isinstance(part, TextPart) or part.text for part in message.parts)


def write_content(out: SegmentWriter, message: Message, image_text: str | None) -> None:
    """The parts of a message. image_text: stands for every image, None = images are seen."""
    for index, part in enumerate(message.parts):
        out.text(PART_SEPARATOR if index else "")
        if isinstance(part, TextPart):
            out.text(part.text)
        elif image_text is not None:
            out.text(image_text)
        else:
            out.image(part)
