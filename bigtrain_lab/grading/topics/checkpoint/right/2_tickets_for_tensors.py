from itertools import count

import torch
from torch.autograd.graph import saved_tensors_hooks


def answer(fn, *args, **kwargs):
    state = torch.get_rng_state()
    autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
    tickets, again = count(), {}

    def take_ticket(tensor):
        return next(tickets)

    def find(ticket):
        if ticket not in again:
            run_again()
        return again.pop(ticket)

    def run_again():
        saved = []

        def keep(tensor):
            saved.append(tensor.detach())

        now = torch.get_rng_state()
        torch.set_rng_state(state)
        with torch.enable_grad(), torch.autocast("cpu", *autocast):
            with saved_tensors_hooks(keep, lambda nothing: nothing):
                fn(*args, **kwargs)
        torch.set_rng_state(now)
        again.update(enumerate(saved))

    with saved_tensors_hooks(take_ticket, find):
        return fn(*args, **kwargs)
