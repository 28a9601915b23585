"""Twenty prompts from one token to three thousand: Chinese, code, emoji, prose, odd spacing."""

from __future__ import annotations

_PROSE = (
    "The harbour was quiet before dawn, and the fishing boats rocked against their ropes while "
    "the first gulls argued over scraps on the quay. Maria counted the crates twice, wrote the "
    "numbers in her blue notebook, and waited for the ferry that would take them across the bay "
    "to the market. "
)
_CODE = '''def merge(left, right):
    """Merge two sorted lists into one sorted list."""
    out, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            out.append(left[i]); i += 1
        else:
            out.append(right[j]); j += 1
    return out + left[i:] + right[j:]
'''
_CHINESE = (
    "今天天气很好，我们去公园散步，看到了许多花和小鸟。"
    "孩子们在草地上跑来跑去，老人们坐在长椅上聊天。"
)

PROMPTS: tuple[str, ...] = (
    "a",
    "Hi",
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three colours.",
    "🙂",
    "Explain these emoji: 👩‍👩‍👧‍👦 🏳️‍🌈 🎉🎉 ❤️‍🔥",
    "请用一句话介绍北京。",
    _CHINESE + "请总结这段话。",
    _CHINESE * 8 + "请总结。",
    "What does this function do?\n" + _CODE,
    "Find the bug:\n" + _CODE.replace("<=", "<").replace("i += 1", "i += 2") * 3,
    "   leading and   double  spaces\t\ttabs\r\nand\n\n\nnewlines   ",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 and then",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}\nDescribe this record.',
    "Ünïcödé ßtraße naïve café — “quotes” … ½ ∑ ∞",
    _PROSE * 2 + "Who waited for the ferry?",
    _PROSE * 8 + "What did Maria count?",
    _PROSE * 24 + "Continue the story.",
    _PROSE * 48 + _CODE + "Summarise everything above in one line.",
)
