"""The check of the 1F1B exercise: each named wrong solution hears its sentence, right ones however written hear nothing."""

from functools import partial
from itertools import count

import pytest

from bigtrain_lab.checks import schedule_findings
from bigtrain_lab.schedule import Action, B, F, Schedule, U
from bigtrain_lab.schedules.gpipe import GPipe
from bigtrain_lab.schedules.naive import Naive
from bigtrain_lab.schedules.one_f_one_b import OneFOneB
from bigtrain_lab.schedules.pipedream import PipeDream

SIZES = [(1, 1), (1, 4), (2, 1), (2, 2), (2, 5), (3, 2), (3, 7), (4, 2), (4, 4), (4, 8), (4, 9), (8, 5), (8, 16)]


def assert_told(findings: list[str], *words: str) -> None:
    """One finding, with what a student acts on: the action, the rank, the numbers, the way out."""
    (told,) = findings
    assert [word for word in words if word not in told] == [], told


def made(base=Schedule, **body):
    """A class without a name: it joins no menu."""
    return type("Typed", (base,), body)


def findings(steps, ranks=4, micro_batches=8, cap=4, base=Schedule, **body):
    return schedule_findings(made(base, steps=steps, **body), ranks, micro_batches, cap)


# -- right, each written in another way -------------------------------------------------------------------------------


def by_clock(self, rank):
    """Each slot: a backward if one may run, else a forward while fewer than p - r are live."""
    p, m, steps, forwards, backwards = self.ranks, self.micro_batches, [], 0, 0
    while backwards < m:
        if forwards < m and forwards - backwards < p - rank:
            steps.append(F(rank, forwards))
            forwards += 1
        else:
            steps.append(B(rank, backwards))
            backwards += 1
    return steps


def by_sorting(self, rank):
    """Number the places: backward m is at 2m + warm, forwards fill the places before and between."""
    warm = self.ranks - rank
    batch = range(self.micro_batches)
    keys = {F(rank, m): (max(m, 2 * (m - warm) + warm + 1), 0) for m in batch} | {B(rank, m): (2 * m + warm, 1) for m in batch}
    return sorted(keys, key=keys.get)


def by_queues(self, rank):
    """Bare actions from two streams, with the update written out."""
    forwards, backwards = (map(partial(Action, kind, rank), count()) for kind in "FB")
    m, warm = self.micro_batches, min(self.micro_batches, self.ranks - rank)
    steps = [next(forwards) for _ in range(warm)]
    for _ in range(m - warm):
        steps += [next(backwards), next(forwards)]
    return [*steps, *(next(backwards) for _ in range(warm)), *U(rank, m - 1)]


@pytest.mark.parametrize("ranks,micro_batches", SIZES)
@pytest.mark.parametrize("steps", [OneFOneB.steps, by_clock, by_sorting, by_queues])
def test_right_ones_hear_nothing(steps, ranks, micro_batches):
    assert findings(steps, ranks, micro_batches, cap=None) == []
    assert findings(steps, ranks, micro_batches, cap=ranks) == []


def held_as_a_range(self, stage, updates):
    return range(max(0, updates - (self.ranks - 1 - stage)), updates + 1)


def held_as_a_list(self, stage, updates):
    held = [0]
    for update in range(updates):
        held.append(update + 1)
        if update >= self.ranks - 1 - stage:
            held.pop(0)
    return held


@pytest.mark.parametrize("ranks,micro_batches", SIZES)
@pytest.mark.parametrize("held", [None, held_as_a_range, held_as_a_list])
def test_pipedream_hears_nothing(held, ranks, micro_batches):
    body = {"versions_held": held} if held else {}
    assert schedule_findings(made(PipeDream, **body), ranks, micro_batches) == []


def test_a_version_found_by_counting_is_as_good():
    def version(self, action):
        done = 0
        if action.kind == "U":
            return action.micro_batch
        for step in self.steps(action.stage):
            if step[0] == action._replace(kind="F"):
                return done
            done += step[0].kind == "U"

    assert schedule_findings(made(PipeDream, version=version, versions_held=held_as_a_range)) == []


# -- wrong: the order ---------------------------------------------------------------------------------------------------


def test_gpipe_renamed():
    assert findings(GPipe.steps) == [
        "33 slots, but 8 live on rank 0: the cap is 4. A backward frees what its forward keeps, so start backwards early: "
        "rank 0 needs 4 before its first one."]
    assert findings(GPipe.steps, 6, 16, cap=6)[0].startswith("63 slots, but 16 live on rank 0: the cap is 6.")
    assert "the last holds 4 live where 1 is enough" in findings(GPipe.steps, 4, 4)[0]  # within the cap, and still too much


@pytest.mark.parametrize("empty", [[], ()])
def test_empty_schedule(empty):
    assert findings(lambda self, rank: empty)[0].startswith("Nothing ran: F0 is missing on rank 0.")


def equal_warm_up(self, rank):
    warm, m = min(self.micro_batches, self.ranks - 1), self.micro_batches
    steps = [F(rank, i) for i in range(warm)]
    for i in range(warm, m):
        steps += [F(rank, i), B(rank, i - warm)]
    return steps + [B(rank, i) for i in range(m - warm, m)]


@pytest.mark.parametrize("p,m", [(2, 3), (3, 5), (4, 8), (8, 16)])
def test_equal_warm_up(p, m):
    (told,) = findings(equal_warm_up, p, m, cap=p)
    assert told.startswith(f"Each rank warms up {p - 1}: the last holds {p} live where 1 is enough.")


def test_backward_first_deadlock():
    def steps(self, rank):
        order = OneFOneB.steps(self, rank)
        if rank == self.ranks - 1:  # its second forward before its first backward
            order[1], order[2] = order[2], order[1]
        if rank == self.ranks - 2:  # its first backward before its second forward
            order.remove(B(rank, 0))
            order.insert(1, B(rank, 0))
        return order

    (told,) = findings(steps)
    assert "rank 2 waits for 3B0 from rank 3" in told and "rank 3 waits for 2F1 from rank 2" in told
    assert "Change the order" in told


@pytest.mark.parametrize("p,m,late", [(4, 8, 4), (2, 6, 2), (3, 4, 3)])
def test_updates_inside_flush(p, m, late):
    (told,) = findings(PipeDream.steps, p, m, cap=p)
    assert told.startswith(f"Micro-batch {late} saw other weights than 0 on rank 0: U0 comes before F{late}.")
    assert "after the flush" in told


def test_one_update_that_comes_too_early():
    def steps(self, rank):
        order = OneFOneB.steps(self, rank)
        return [*order[:-2], order[-1], order[-2]]

    assert "U7 comes before B7" in findings(steps)[0]


def test_no_warm_up_is_slow():
    assert_told(findings(lambda self, rank: [step for m in range(8) for step in (F(rank, m), B(rank, m))]),
                "96 slots", "33 are possible", "rank 0 warms up 0", "3 forwards")


def test_what_is_missing_or_twice_or_elsewhere_is_named():
    assert "0B7 is missing on rank 0" in findings(lambda self, rank: OneFOneB.steps(self, rank)[:-2])[0]
    assert "runs 0F0 twice" in findings(lambda self, rank: [F(rank, 0), *OneFOneB.steps(self, rank)])[0]
    assert "stage 0 lies on rank 0" in findings(lambda self, rank: OneFOneB.steps(self, 0))[0]
    assert schedule_findings(Naive)[0].startswith("96 slots, but 8 live")


def test_what_is_no_schedule_is_a_sentence_too():
    assert "return a list" in findings(lambda self, rank: None)[0]
    assert "'0F0', which is no action" in findings(lambda self, rank: ["0F0"])[0]
    assert_told(findings(lambda self, rank: 1 / 0), "steps(0) raised ZeroDivisionError: division by zero")
    assert_told(findings(lambda self, rank: [F(rank, 0.5)]), "steps(0) holds F(0, 0.5)", "whole numbers")
    assert findings(lambda self, rank: [F("0", 0), B(rank, 0)])[0].startswith("steps(0) holds F(0, 0): ")
    assert "no kind X" in findings(lambda self, rank: [Action("X", rank, 0)])[0]


def test_an_update_of_another_micro_batch():
    assert_told(findings(lambda self, rank: [*OneFOneB.steps(self, rank), U(rank, 3)]), "U3 on rank 0", "up to 7", "its name is U7")


# -- wrong: the versions -------------------------------------------------------------------------------------------------


def test_stash_newest():
    (told,) = schedule_findings(partial(PipeDream, stashing=False))
    assert told.startswith("B1 on rank 0 used version 1, F1 version 0:")
    assert "the very version of its forward" in told
    assert "B1 on rank 1 used version 1, F1 version 0:" in findings(
        PipeDream.steps, base=PipeDream, version=lambda self, a: PipeDream.version(self, a) if a.stage == 0 else
        max(0, a.micro_batch - (3 - a.stage)) if a.kind == "F" else a.micro_batch)[0]


def test_what_is_no_version_is_told_of_the_method_that_gave_it():
    for version, said in ((lambda self, action: None, "version(0F0) gave None: return the number of updates that its weights have behind them."),
                          (lambda self, action: action.micro_batch / 2, "version(0F0) gave 0.0: return the number of updates"),
                          (lambda self, action: self.delay, "version(0F0) raised AttributeError: 'Typed' object has no attribute 'delay'. Try that call alone.")):
        assert schedule_findings(made(PipeDream, version=version))[0].startswith(said)
    for held, said in ((lambda self, stage, updates: None, "versions_held(0, 0) gave None: return the numbers of the versions that the stage keeps, such as [0]."),
                       (lambda self, stage, updates: "0", "versions_held(0, 0) gave '0': return the numbers"),
                       (lambda self, stage, updates: 1 / updates, "versions_held(0, 0) raised ZeroDivisionError: division by zero.")):
        assert schedule_findings(made(PipeDream, versions_held=held))[0].startswith(said)


@pytest.mark.parametrize("p,m", [(4, 8), (3, 7), (2, 5), (4, 5)])
def test_no_update_is_ever_used(p, m):
    assert_told(schedule_findings(made(PipeDream, version=lambda self, action: action.micro_batch if action.kind == "U" else 0), p, m),
                "No forward ever used an update", f"all {m} micro-batches used version 0")


def test_a_delay_of_all_stages_by_other_than_the_depth():
    body = {"version": lambda self, action: max(0, action.micro_batch - 5) if action.kind != "U" else action.micro_batch}
    assert schedule_findings(made(PipeDream, **body))[0].startswith("All stages delayed 5: that is vertical sync.")
    assert_told(schedule_findings(made(PipeDream, version=lambda self, action: action.micro_batch if action.kind == "U" else
                                       min(2, PipeDream.version(self, action)))), "F6 on rank 0 used version 2 though 3 is there")


def test_a_version_below_the_first():
    assert_told(schedule_findings(made(PipeDream, version=lambda self, action: action.micro_batch - (3 - action.stage) * (action.kind != "U"))),
                "F0 on rank 0 asks for version -3", "counted from 0")


def test_versions_that_are_kept_have_to_be_told():
    assert_told(schedule_findings(made(PipeDream, version=lambda self, action: PipeDream.version(self, action))), "versions_held(stage, updates)")


@pytest.mark.parametrize("wrong,said", [
    (lambda t: 0, ("U1 on rank 0 says version 0", "its version is 1")),
    (lambda t: t + 1, ("U0 on rank 0 says version 1", "its version is 0")),
])
def test_an_update_of_another_version(wrong, said):
    body = {"version": lambda self, action: wrong(action.micro_batch) if action.kind == "U" else PipeDream.version(self, action)}
    assert_told(schedule_findings(made(PipeDream, versions_held=held_as_a_range, **body)), *said)


def test_an_update_named_after_another_backward():
    def steps(self, rank):
        order = PipeDream.steps(self, rank)
        last = len(order) - 1
        return [*order[:last - 2], order[last - 1], *U(rank, 6), *U(rank, 7)] if rank == 1 else order

    assert_told(schedule_findings(made(PipeDream, steps=steps)), "U6 on rank 1", "right after B7", "call it U7")


def test_stash_never_freed():
    for p, m in ((4, 8), (3, 5)):
        assert_told(schedule_findings(made(PipeDream, versions_held=lambda self, stage, updates: range(updates + 1)), p, m),
                    f"{m + 2} versions on rank 0 after {m + 1} updates", f"{p} are needed")


def test_freed_too_early():
    (told,) = schedule_findings(made(PipeDream, versions_held=lambda self, stage, updates: [updates]))
    assert told.startswith("Rank 0 does not hold version 0 after 1 update, and B1 still needs it.")
    (told,) = schedule_findings(made(PipeDream, versions_held=lambda self, stage, updates: []))
    assert told.startswith("Rank 0 does not hold version 0 after 0 updates, and F0 still needs it.")


@pytest.mark.parametrize("p,m,needed", [(4, 8, "3, 2, 1, 0"), (3, 6, "2, 1, 0"), (2, 4, "1, 0")])
def test_delay_everywhere(p, m, needed):
    body = {"version": lambda self, action: max(0, action.micro_batch - (self.ranks - 1)) if action.kind != "U" else action.micro_batch}
    assert_told(schedule_findings(made(PipeDream, **body), p, m), f"All stages delayed {p - 1}", "vertical sync", f"{needed}.")


def test_a_version_of_the_future():
    (told,) = schedule_findings(made(PipeDream, version=lambda self, action: action.micro_batch))
    assert told.startswith("F1 on rank 0 asks for version 1, but only 0 updates have been made there by then.")


def test_an_update_elsewhere():
    def steps(self, rank):
        order = PipeDream.steps(self, rank)
        return [*order[:-2], order[-1], order[-2]]

    assert "Rank 0 runs 0U7 before 0B7, whose gradient it applies" in schedule_findings(made(PipeDream, steps=steps))[0]


def test_the_older_version_on_one_stage():
    def version(self, action):
        return max(0, action.micro_batch - 3) if action.stage == 2 else PipeDream.version(self, action)

    assert "used version 0 though 1 is there" in schedule_findings(made(PipeDream, version=version))[0]
