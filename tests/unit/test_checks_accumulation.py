"""The check of an `accumulate` of one's own: right ones of every style pass, and each mistake is told by its own sentence."""

import re
from itertools import islice

import pytest
import torch
from torch import nn

from bigtrain_lab.checks import accumulation_findings
from bigtrain_lab.techniques.accumulate import accumulate, parameters, windows


# -- right ones ---------------------------------------------------------------------------------------------------------


def by_index(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    """One loop, as the lesson begins; the window's tokens by looking ahead."""
    total, optimizer_parameters = 0.0, [p for group in optimizer.param_groups for p in group["params"]]
    for i, micro_batch in enumerate(micro_batches):
        if i % k == 0:
            window_tokens = sum(tokens(each) for each in micro_batches[i:i + k])
        loss = loss_sum(micro_batch) / window_tokens
        total += loss.item()
        if scaler is not None:
            loss = scaler.scale(loss)
        loss.backward()
        if (i + 1) % k == 0 or i + 1 == len(micro_batches):
            if scaler is not None:
                scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(optimizer_parameters, clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=False)
    return total


def divides_at_the_end(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    """Sums first; .grad is divided after the last backward, and clipped by hand."""
    stream = iter(micro_batches)
    while window := list(islice(stream, k)):
        optimizer.zero_grad()
        count = 0
        for micro_batch in window:
            loss = loss_sum(micro_batch)
            count += tokens(micro_batch)
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        gradients = [p.grad for p in parameters(optimizer)]
        for g in gradients:
            g /= count
        if clip is not None:
            norm = torch.sqrt(sum(g.square().sum() for g in gradients))
            for g in gradients:
                g *= min(1.0, clip / norm.item())
        scaler.step(optimizer) if scaler else optimizer.step()
        scaler and scaler.update()


def without_backward(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    """torch.autograd.grad, and sums of one's own; without clipping the scaler unscales in its step."""
    weights = parameters(optimizer)
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start:start + k]
        sums = [torch.zeros_like(p) for p in weights]
        for micro_batch in window:
            loss = loss_sum(micro_batch) / sum(map(tokens, window))
            loss = loss if scaler is None else scaler.scale(loss)
            sums = [a + b for a, b in zip(sums, torch.autograd.grad(loss, weights))]
        for p, g in zip(weights, sums):
            p.grad = g
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, max_norm=clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def means_weighted(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    """Each mean times its share of the window's tokens; the value of each loss is asked for first, without a graph."""
    for window in windows(micro_batches, k):
        optimizer.zero_grad()
        counts = torch.tensor([tokens(each) for each in window], dtype=torch.float64)
        with torch.no_grad():
            sum(map(loss_sum, window))
        losses = []
        for count, micro_batch in zip(counts, window):
            loss = loss_sum(micro_batch) / count * (count / counts.sum())
            losses.append(loss.detach())
            (loss if scaler is None else loss * scaler.get_scale()).backward()
            del loss
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_((p for group in optimizer.param_groups for p in group["params"]), clip)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


@pytest.mark.parametrize("right", [accumulate, by_index, divides_at_the_end, without_backward, means_weighted], ids=lambda right: right.__name__)
def test_right_answers_pass(right):
    assert accumulation_findings(right) == []


# -- wrong ones ---------------------------------------------------------------------------------------------------------


def mistaken(mistake):
    """A student's accumulate; right unless it makes the mistake."""
    def divisor(window, micro_batches, k, tokens, this):
        n, own, average = sum(map(tokens, window)), tokens(this), sum(map(tokens, micro_batches)) / len(micro_batches)
        return {"mean_of_means": own * len(window), "last_window_over_k": own * k, "no_division": own, "sums_not_divided": 1, "by_k_alone": len(window),
                "by_tokens_and_k": n * len(window), "tokens_twice": n * n, "average_n": average * len(window), "all_tokens": sum(map(tokens, micro_batches)),
                "minus": -n, "first_counts": tokens(window[0]) * len(window), "by_average_of_all": average * k,
                "so_far": sum(tokens(each) for each in window[:1 + [id(each) for each in window].index(id(this))])}.get(mistake, n)

    def clipped(optimizer, clip, scaler):
        weights = parameters(optimizer)
        match mistake:
            case "never_clips": pass
            case "clips_by_value": nn.utils.clip_grad_value_(weights, clip)
            case "first_group_alone": nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
            case "each_group_alone": [nn.utils.clip_grad_norm_(group["params"], clip) for group in optimizer.param_groups]
            case "each_tensor_alone": [nn.utils.clip_grad_norm_(p, clip) for p in weights]
            case "norm_of_type_1": nn.utils.clip_grad_norm_(weights, clip, norm_type=1)
            case "norm_of_type_inf": nn.utils.clip_grad_norm_(weights, clip, norm_type=float("inf"))
            case "half_the_limit": nn.utils.clip_grad_norm_(weights, clip / 2)
            case "always_to_the_limit":
                norm = torch.sqrt(sum(p.grad.square().sum() for p in weights))
                [p.grad.mul_(clip / norm) for p in weights]
            case _: nn.utils.clip_grad_norm_(weights, clip)

    def accumulate(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
        n, kept, late = len(micro_batches), [], None
        if mistake == "nothing_above_7" and k > 7 or mistake == "nothing_above_n" and k > n:
            return
        if mistake == "rate_times_k":
            for group in optimizer.param_groups:
                group["lr"] *= k
        for start in range(0, n // k * k if mistake == "last_window_dropped" else n, k):
            window = micro_batches[start:start + k]
            if mistake == "zero_grad_once" and start == 0 or mistake not in ("zero_grad_missing", "zero_grad_once"):
                optimizer.zero_grad()
            for number, micro_batch in enumerate(window):
                if mistake == "zero_grad_each_micro":
                    optimizer.zero_grad()
                loss = loss_sum(micro_batch)
                loss = loss * (1 / torch.tensor(sum(map(tokens, window)))) if mistake == "float32" else loss / divisor(
                    window, micro_batches, k, tokens, micro_batch)
                if mistake == "divides_after_clipping":
                    loss = loss * sum(map(tokens, window))
                if mistake in ("one_backward", "keeps_losses_alive"):
                    kept.append(loss)
                if mistake == "one_backward":
                    continue
                if scaler and mistake != "never_scales" and not (mistake == "last_not_scaled" and number == len(window) - 1):
                    loss = scaler.scale(scaler.scale(loss) if mistake == "scales_twice" else loss)
                if mistake in ("one_late", "one_late_across_windows"):
                    loss, late = late, loss
                if loss is not None:
                    loss.backward(retain_graph=mistake == "retains")
                if scaler and mistake == "unscale_each_micro":
                    scaler.unscale_(optimizer)
                if clip and mistake == "clip_each_micro":
                    clipped(optimizer, clip, scaler)
                if mistake == "steps_each_micro":
                    optimizer.step()
            if mistake == "one_late":
                late = late.backward()
            if mistake == "one_backward":
                (scaler.scale(sum(kept)) if scaler else sum(kept)).backward()
                kept.clear()
            if mistake == "zero_grad_before_step":
                optimizer.zero_grad()
            if scaler and (mistake not in ("unscale_each_micro", "clip_before_unscale", "clip_instead_of_unscale")):
                scaler.unscale_(optimizer)
            if clip and mistake != "clip_each_micro":
                clipped(optimizer, clip, scaler)
            if scaler and mistake == "unscales_again":
                scaler.unscale_(optimizer)
            if mistake == "divides_after_clipping":
                for p in parameters(optimizer):
                    p.grad /= sum(map(tokens, window))
            if scaler and mistake == "updates_before_step":
                scaler.update()
            if scaler and mistake not in ("steps_past_scaler", "ignores_scaler"):
                scaler.step(optimizer)
            elif mistake != "steps_each_micro":
                optimizer.step()
            if scaler and mistake not in ("never_updates", "updates_before_step", "ignores_scaler"):
                scaler.update()
        if mistake == "one_step_more":
            optimizer.zero_grad()
            scaler.step(optimizer) if scaler else None
            scaler.update() if scaler else None
        return 1 / 0 if mistake == "raises" else None
    return accumulate


WRONG = {
    "mean_of_means": "Off by 145% here: short micro-batches count as much as long ones .*5.75, 2.88, 1.44, 0.36 times.*. Divide each .sum. by the window's",
    "no_division": "Exactly 4 times too large: you added means and never divided.",
    "sums_not_divided": "Exactly 64 times too large: you added sums and never divided.",
    "by_k_alone": "Exactly 16 times too large: you divided sums by the number of micro-batches alone.",
    "by_tokens_and_k": "Exactly 4 times too small: you divided by the window's tokens and by its number of micro-batches too.",
    "tokens_twice": "Exactly 64 times too small: you divided by the window's tokens twice.",
    "average_n": r"The gradient of update 0 is 1.\d+ times too large, and all its tokens count alike: you divided by 248, .* This window holds 368 tokens",
    "by_average_of_all": "The last gradient is exactly 0.5 of the right one",
    "all_tokens": "The gradient of update 0 is 2.5 times too small: divide each sum by the window's tokens, once.",
    "minus": "The gradient of update 0 is 1 times the right one and points the other way",
    "first_counts": "The gradient of update 0 is 5.75 times too large, and all its tokens count alike: you divided by 64,",
    "so_far": "In update 0 micro-batches of equal length count 4, 2, 1.33, 1 times what they should",
    "last_window_dropped": "2 updates for 10 micro-batches, not 3: micro-batches 8 and 9 never reached the optimizer.",
    "last_window_over_k": "The last gradient is exactly 0.5 of the right one: that window holds 2, you divided by 4.",
    "zero_grad_missing": "Update 1 holds the sum of all gradients since the start",
    "zero_grad_once": "Update 1 holds the sum of all gradients since the start",
    "zero_grad_each_micro": "Only the last micro-batch of each window counts",
    "zero_grad_before_step": "The gradient of update 0 is zero",
    "one_late_across_windows": "In update 0 micro-batches of equal length count 1, 1, 1, ",
    "steps_each_micro": "10 updates for 10 micro-batches, not 3",
    "clip_each_micro": "You clipped the parts; clip the sum, once",
    "never_clips": "you never clipped",
    "clips_by_value": "no weighted sum of the micro-batches' gradients",
    "first_group_alone": "You clipped the first group of the optimizer and not the others. The norm is that of the whole gradient",
    "each_group_alone": "You clipped each tensor, or each group, by its own norm.",
    "each_tensor_alone": "You clipped each tensor, or each group, by its own norm.",
    "norm_of_type_1": "That is the limit of the norm of type 1: leave out norm_type",
    "norm_of_type_inf": "That is the limit of the norm of type inf: leave out norm_type",
    "half_the_limit": r"The clipped gradient has norm \S+, and the limit is \S+ Clip once, to this limit,",
    "always_to_the_limit": "gradients of norm .* need no clipping, and you changed them",
    "divides_after_clipping": "Divide first, then clip.",
    "clip_before_unscale": "You clipped the scaled gradient: unscale before clipping",
    "unscale_each_micro": "Gradients were unscaled 4 times; unscale once, just before clipping.",
    "unscales_again": "Gradients were unscaled 2 times; unscale once, just before clipping.",
    "never_scales": "Under a loss scale of 1,024 update 0 is 1,024 times too small: you never scaled the loss",
    "scales_twice": "Under a loss scale of 1,024 update 0 is 1,024 times too large",
    "last_not_scaled": "Under a loss scale of 1,024 micro-batch 3 of update 0 counts 1,024 times too little",
    "steps_past_scaler": "The optimizer stepped 3 times and the scaler 0",
    "ignores_scaler": "The optimizer stepped 3 times and the scaler 0",
    "updates_before_step": r"You called scaler.update\(\) before scaler.step\(optimizer\)",
    "never_updates": "3 updates and 0 calls of scaler.update",
    "one_backward": "4 graphs alive at the peak: call backward on each micro-batch's loss at once",
    "one_late": "2 graphs alive at the peak: call backward on each micro-batch's loss at once",
    "retains": "2 graphs alive at the peak with all that they saved: leave out retain_graph=True",
    "keeps_losses_alive": "10 graphs alive at the peak: store loss.item",
    "nothing_above_7": "With k=10: 0 updates for 10 micro-batches, not 1: ",
    "nothing_above_n": "With k=13: 0 updates for 10 micro-batches, not 1: ",
    "one_step_more": "The optimizer stepped 4 times|4 updates for 10 micro-batches, not 3",
    "rate_times_k": "You changed the learning rate, 0.1 to 0.2: leave it.",
    "float32": r"With k=\d the weights are not those of the large batch: .* Keep factors as Python numbers: a tensor of theirs is float32.",
    "raises": "Your function raised ZeroDivisionError: division by zero. Call it alone",
}


@pytest.mark.parametrize("mistake", WRONG)
def test_each_mistake_has_its_sentence(mistake):
    findings = accumulation_findings(mistaken(mistake))
    assert len(findings) == 1 and re.search(WRONG[mistake], findings[0]), findings


def test_what_shows_only_for_another_k_is_found_by_the_large_batch():
    def right_but_for_five(micro_batches, k, loss_sum, *rest, **options):
        return accumulate(micro_batches, k, (lambda batch: loss_sum(batch) * 2) if k == 5 else loss_sum, *rest, **options)

    assert accumulation_findings(right_but_for_five)[0].startswith("With k=5 the weights are not those of the large batch")
