"""Small sums, with the written method where there is time to think."""

from __future__ import annotations

from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Answer, Exercise, Turn, user

_ASKS = ("What is {0}?", "Compute {0}.", "{0} = ?", "How much is {0}?")


def arithmetic(draw: Draw) -> Exercise:
    thinks = draw.chance(0.5)
    a, sign, b = draw.on_side(lambda: _drawn(draw, thinks=thinks), str)
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    question = draw.one(_ASKS).format(f"{a} {sign} {b}")
    reasoning = _method(a, sign, b, value) if thinks else ""
    answer = Answer(f"{a} {sign} {b} = {value}", reasoning=reasoning, key=f"= {value}")
    return Exercise("arithmetic", (Turn((user(question),), answer),), thinks=thinks)


def _drawn(draw: Draw, *, thinks: bool) -> tuple[int, str, int]:
    sign = draw.one("++--*")
    if sign == "*":
        return draw.between(2, 9), sign, draw.between(2, 9)
    limit = draw.one((9, 99, 999)) if thinks else draw.one((9, 99))
    a, b = draw.between(0, limit), draw.between(0, limit)
    return (max(a, b), sign, min(a, b)) if sign == "-" else (a, sign, b)


def _method(a: int, sign: str, b: int, value: int) -> str:
    """Digit by digit from the right."""
    if sign == "*":
        return f"{a} times {b} is {value}."
    steps, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        found = x + y + carry if sign == "+" else x - y - carry
        digit, new_carry = found % 10, int(not 0 <= found <= 9)
        with_carry = f" {sign} {carry}" if carry else ""
        steps.append(f"{x} {sign} {y}{with_carry} gives {digit} carry {new_carry}")
        carry = new_carry
    return f"{'; '.join(steps)}. So {value}."
