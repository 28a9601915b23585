"""Words that exercises are made of."""

from __future__ import annotations


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ONSETS = _listed("b c d f g h j k l m n p r s t v w z br dr gr kr pl st tr sh th fl")
VOWELS = _listed("a e i o u ai ea io ou")
CODAS = ("", "", "", "n", "r", "s", "l", "m", "x", "k", "nd", "rt")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white")
FORMS = ("circle", "square", "triangle", "cross", "ring", "diamond")
ANIMALS = _listed(
    """
    cat dog horse bird fish lion bear wolf fox mouse sheep goat cow duck frog snake owl bee
    ant crab deer eagle whale rabbit tiger monkey camel spider turtle zebra
    """
)
FOODS = _listed(
    """
    apple bread cheese rice soup cake egg milk tea coffee honey salt pepper lemon onion
    carrot potato grape melon banana cherry plum nut butter sugar bean corn pear peach fig
    """
)
THINGS = _listed(
    """
    book chair table lamp door window clock key cup plate spoon knife box bag bottle paper
    pen map coin ring rope wheel bell drum brush mirror ladder hammer basket candle shirt
    boat car train bridge tower house garden stone river
    """
)
PLACES = _listed(
    """
    market station harbour forest library kitchen office school museum castle island valley
    desert village temple theatre hospital bakery farm beach
    """
)
QUALITIES = _listed(
    """
    old new small large quiet bright dark warm cold heavy light clean empty full round soft
    hard slow fast strange simple famous golden broken tall short young wet dry
    """
)
VERBS_PAST = _listed(
    """
    found lost opened closed painted carried watched moved sold bought cleaned built kept
    followed hid counted shared brought dropped repaired
    """
)
WHEN = (
    "today", "yesterday", "in the morning", "at night", "last week", "on Monday", "on Friday",
    "in spring", "in winter", "before noon", "after lunch", "every day",
)  # fmt: skip
ATTRIBUTES_OF_CODE = ("code", "number", "key", "pin", "id")
ATTRIBUTES_OF_WORD = {
    "colour": COLOURS,
    "animal": ANIMALS,
    "food": FOODS,
    "place": PLACES,
}
WORDS = (*ANIMALS, *FOODS, *THINGS, *PLACES, *QUALITIES, *COLOURS)
TOOL_VERBS = (
    "get", "find", "set", "send", "add", "remove", "open", "check", "list", "book", "start",
    "stop", "update", "create", "count", "move",
)  # fmt: skip
TOOL_NOUNS = (
    "weather", "order", "ticket", "timer", "message", "file", "user", "price", "light", "room",
    "song", "report", "alarm", "train", "note", "photo", "contact", "event", "lock", "table",
)  # fmt: skip
TEXT_PARAMETERS = ("city", "name", "title", "place", "owner", "target", "topic", "label")
NUMBER_PARAMETERS = ("count", "level", "size", "limit", "number", "year", "minutes", "page")
FLAG_PARAMETERS = ("urgent", "silent", "public", "fast")
