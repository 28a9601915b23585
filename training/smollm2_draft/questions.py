"""What the model is asked, so that it writes the text its draft module learns from.

Half of the questions are sentences of our own, a task and a topic; the other half the model asks
itself: given the beginning of a user's turn, it writes one.
"""

from __future__ import annotations

import random

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the model's chat template says where a request does not."""
ASKED_BY_MODEL = 0.5

TASKS = (
    "What is {}?",
    "Explain {} to a child.",
    "Explain {} in detail.",
    "Give me five facts about {}.",
    "Give me three tips about {} for a beginner.",
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Write a paragraph about {}.",
    "Write an essay about {}.",
    "Write a dialogue between two friends about {}.",
    "Write an email to a colleague about {}.",
    "Write a blog post about {}.",
    "Write a speech about {}.",
    "Write the introduction of a report on {}.",
    "Write a letter to my teacher about {}.",
    "Make a list of things I need to know about {}.",
    "Make a table that compares kinds of {}.",
    "Give me a step by step plan to learn about {}.",
    "What are the advantages and disadvantages of {}?",
    "Why does {} matter?",
    "How has {} changed over the last hundred years?",
    "What is the history of {}?",
    "What would the world be like without {}?",
    "Who invented {}, and why?",
    "What are common mistakes with {}?",
    "What is the difference between {} and {other}?",
    "How are {} and {other} connected?",
    "Which is better, {} or {other}?",
    "Summarize what you know about {} in two sentences.",
    "Ask me three questions about {}, then answer them.",
    "Write a quiz with answers about {}.",
    "Tell me something about {} that few people know.",
    "Describe {} as if you saw it for the first time.",
    "Write a Python class that models {}.",
    "Write a Python function that stores records about {} in a dictionary.",
    "Write a JSON object that describes {}.",
    "Write an HTML page about {}.",
    "Rewrite this sentence in three ways: I have always been interested in {}.",
    "Translate into French: I would like to learn more about {}.",
    "Correct the mistakes: she dont knows nothing about {} and never have.",
    "Give this text a title: We spent the whole summer with {}, and nobody wanted to leave.",
)
TOPICS = (
    "whales", "bridges", "salt", "the moon", "bread", "glass", "beetles", "volcanoes", "rivers",
    "photosynthesis", "gravity", "electricity", "magnets", "climate change", "recycling", "bees",
    "the solar system", "black holes", "earthquakes", "glaciers", "deserts", "rain forests",
    "coral reefs", "dinosaurs", "wolves", "cats", "horses", "owls", "mushrooms", "trees", "roses",
    "the Roman Empire", "the Middle Ages", "the Industrial Revolution", "the printing press",
    "democracy", "taxes", "inflation", "banks", "small businesses", "marketing", "job interviews",
    "time management", "leadership", "teamwork", "remote work", "budgets", "insurance", "friends",
    "public speaking", "writing", "reading", "poetry", "novels", "theatre", "films", "photography",
    "painting", "architecture", "music", "the piano", "jazz", "dance", "chess", "football", "golf",
    "swimming", "running", "yoga", "sleep", "nutrition", "vitamins", "the heart", "the brain",
    "vaccines", "bacteria", "antibiotics", "stress", "meditation", "first aid", "cooking", "pasta",
    "cheese", "chocolate", "coffee", "tea", "soup", "gardening", "camping", "hiking", "cycling",
    "trains", "airplanes", "ships", "cars", "bicycles", "robots", "computers", "the internet",
    "artificial intelligence", "machine learning", "encryption", "databases", "operating systems",
    "programming languages", "recursion", "sorting algorithms", "linked lists", "spreadsheets",
    "unit tests", "version control", "web pages", "phones", "batteries", "solar panels",
    "wind turbines", "nuclear energy", "water", "fire", "ice", "clouds", "rainbows", "the ocean",
    "fractions", "prime numbers", "probability", "geometry", "algebra", "statistics", "calculus",
    "maps", "languages", "dreams", "memory", "honesty", "courage", "patience", "joy", "schools",
    "libraries", "museums", "markets", "cities", "villages", "farms", "holidays", "birthdays",
    "Japan", "Brazil", "Egypt", "India", "Iceland", "Kenya", "Paris", "New York", "the Alps",
    "lighthouses", "castles", "clocks", "umbrellas", "shoes", "toys", "paper", "steel", "gold",
)  # fmt: skip
_TURN = "<|im_start|>{}\n{}<|im_end|>\n"


def prepared_question(rng: random.Random) -> str:
    """A task about a topic, or about two."""
    topic, other = rng.sample(TOPICS, 2)
    return rng.choice(TASKS).format(topic, other=other)


def opening() -> str:
    """The text behind which the model writes a user's turn."""
    return _TURN.format("system", SYSTEM) + "<|im_start|>user\n"


def conversation(question: str) -> str:
    """The text behind which the model writes its answer, as its chat template has it."""
    return opening() + question + "<|im_end|>\n<|im_start|>assistant\n"
