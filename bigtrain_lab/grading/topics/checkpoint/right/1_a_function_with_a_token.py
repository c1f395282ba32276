import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token, fn, names, *args):
        ctx.fn, ctx.names, ctx.args = fn, names, args
        ctx.state = torch.get_rng_state()
        ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        ctx.set_materialize_grads(False)
        return called(fn, names, args)

    @staticmethod
    def backward(ctx, *gradients):
        args = [fresh(x) for x in ctx.args]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad(), torch.autocast("cpu", *ctx.autocast):
            results = called(ctx.fn, ctx.names, args)
        torch.set_rng_state(now)
        pairs = zip(results if isinstance(results, tuple) else (results,), gradients)
        used = [(y, dy) for y, dy in pairs if y.requires_grad and dy is not None]
        torch.autograd.backward(*zip(*used))
        return None, None, None, *(getattr(x, "grad", None) for x in args)


def called(fn, names, args):
    return fn(*args[: len(args) - len(names)], **dict(zip(names, args[len(args) - len(names) :])))


def fresh(x):
    return x.detach().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x


def answer(fn, *args, **kwargs):
    token = torch.empty(0, requires_grad=True)
    return Again.apply(token, fn, [*kwargs], *args, *kwargs.values())
