"""A translation task whose truth is known: numbers and dates in English words, and in Chinese.

    three hundred and forty thousand and seven       <->   三十四万零七
    the fourth of March nineteen oh five             <->   一九〇五年三月四日

English counts in thousands and Chinese in ten thousands, so a digit's word depends on its place
from the end; a date turns around. Values are drawn from a seed, as many as are asked for. One value
in ten, by a hash of the value itself, occurs in held-out pairs only: no seed and no size puts one
into training. English says a date in two ways; into English the first is the translation.
"""

from random import Random

from bigtrain_lab.core import refuse
from bigtrain_lab.models.seed import stable_seed

HELD_OUT = 10  # one value of so many
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
    "twenty": "twentieth",
    "thirty": "thirtieth",
}
MONTHS = (
    "January February March April May June July August September October November December"
).split()
LARGE = (10**9, "billion"), (10**6, "million"), (10**3, "thousand")
DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
DIGITS = "零一二三四五六七八九"
MOST_DIGITS = 12


def pair(
    seed: int, number: int, held_out: bool = False, digits: int = 8, one_way: bool = False
) -> tuple[str, str]:
    """The number-th pair (English, Chinese) of a split: numbers of up to so many digits, and dates,
    said in `one_way` or in two."""
    refuse(
        (
            not 1 <= digits <= MOST_DIGITS,
            f"digits={digits} cannot be said: take 1 to {MOST_DIGITS}.",
        )
    )
    draw = Random(stable_seed("numerals", seed, held_out, number))
    while True:
        if draw.random() < 0.7:
            value = (draw.randrange(10 ** draw.randint(1, digits)),)
        else:
            month = draw.randrange(12)
            value = draw.randint(1900, 2099), month + 1, draw.randint(1, DAYS[month])
        if (stable_seed("held out", *value) % HELD_OUT == 0) == held_out:
            return said(value, second_way=not one_way and draw.random() < 0.5)


def said(value: tuple[int, ...], second_way: bool = False) -> tuple[str, str]:
    """(n,) or (year, month, day) in English and in Chinese."""
    if len(value) == 1:
        return english(*value), chinese(*value)
    year, month, day = value
    first, name = ordinal(day), MONTHS[month - 1]
    spoken = f"{name} the {first}" if second_way else f"the {first} of {name}"
    written = "".join(DIGITS[int(digit)] for digit in str(year)).replace("零", "〇")
    return f"{spoken} {english_year(year)}", f"{written}年{chinese(month)}月{chinese(day)}日"


def english(n: int) -> str:
    """Of 0 to 10^12 - 1."""
    if n < 20:
        return SMALL[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{SMALL[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{SMALL[n // 100]} hundred" + (f" and {english(n % 100)}" if n % 100 else "")
    size, name = next((size, name) for size, name in LARGE if n >= size)
    rest = f"{' and' if n % size < 100 else ''} {english(n % size)}" if n % size else ""
    return f"{english(n // size)} {name}{rest}"


def ordinal(day: int) -> str:
    *before, last = english(day).split("-")
    return "-".join([*before, ORDINALS.get(last, f"{last}th")])


def english_year(year: int) -> str:
    century, rest = divmod(year, 100)
    if century % 10 == 0 and rest < 10:
        return english(year)
    small = f"oh {SMALL[rest % 10]}" if rest else "hundred"
    return f"{english(century)} {english(rest) if rest >= 10 else small}"


def chinese(n: int) -> str:
    """Of 0 to 10^12 - 1: groups of four digits, each with its unit; zeros in a row are said once,
    at a group's end not at all."""
    if n == 0:
        return DIGITS[0]
    text, zero = "", False
    for size, unit in ((10**8, "亿"), (10**4, "万"), (1, "")):
        group = n // size % 10_000
        for tens, place in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
            if digit := group // tens % 10:
                text += ("零" if zero and text else "") + DIGITS[digit] + place
            zero = not digit
        if group:
            text, zero = text + unit, False
    return text.removeprefix("一") if text.startswith("一十") else text


EVERY_WORD = [  # a text for each word of the task
    *SMALL,
    *TENS,
    *map(ordinal, range(1, 32)),
    *MONTHS,
    DIGITS + "〇十百千万亿年月日",
    "hundred thousand million billion and oh the of -",
]
