"""Twice a number: the answer is asked for each."""


def play(answer, numbers):
    return [answer(number) for number in numbers]
