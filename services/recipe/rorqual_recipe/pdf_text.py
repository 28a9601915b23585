"""`python -m rorqual_recipe.pdf_text`: a PDF on standard input, its text as JSON on the output.

A process of its own: a hostile file can use up its time and memory, nobody else's.
"""

import json
import resource
import sys

import pypdfium2

OPENED_BUT_UNREADABLE = 3


def main(max_pages: int, max_chars: int, max_memory_bytes: int, max_cpu_s: int) -> None:
    """Text of the first pages. Exit status 3 for what is no readable PDF."""
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_s, max_cpu_s))
    data = sys.stdin.buffer.read()
    try:
        answer = _read(data, max_pages, max_chars)
    except Exception as err:  # whatever the library makes of a damaged file
        sys.stderr.write(f"{type(err).__name__}: {err}\n")
        raise SystemExit(OPENED_BUT_UNREADABLE) from None
    sys.stdout.write(json.dumps(answer))


def _read(data: bytes, max_pages: int, max_chars: int) -> dict[str, str | int]:
    document = pypdfium2.PdfDocument(data)
    num_pages = len(document)
    pages: list[str] = []
    num_chars = 0
    for index in range(min(num_pages, max_pages)):
        if num_chars >= max_chars:
            break
        text = document[index].get_textpage().get_text_range()[: max_chars - num_chars]
        pages.append(text.replace("\r\n", "\n"))
        num_chars += len(text)
    text = "\n\n".join(pages).encode("utf-8", "replace").decode()
    return {"text": text, "num_pages": num_pages, "num_read": len(pages), "num_chars": num_chars}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
