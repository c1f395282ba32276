"""Twice a number: small, for the tests of the engine."""

NAME, ALLOWS = "double", ("bigtrain_lab.order.schedule",)
FORBIDS = ("torch.amp.GradScaler",)


def scenes(draw):
    small, large = draw.randint(2, 50), draw.randint(100, 999)
    yield f"small: x = {small}", {"numbers": [small]}
    yield f"large: x = {large}", {"numbers": [large, 1]}


def shown(inputs, came):
    return (
        came[0] if len(came) == 1 else {"double": came[0], "of a list [place]": came[1:] + came[:1]}
    )
