from bigtrain_lab.models import GPTConfig, gpt_steps, mlp_steps


def answer(model, batch, optimizer, dtype):
    gpt = isinstance(model, GPTConfig)
    account = (
        gpt_steps(model, batch, optimizer) if gpt else mlp_steps(model, batch, optimizer, dtype)
    )
    return account.peak_bytes
