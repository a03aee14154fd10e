"""This machine's speed, as ratios measured side by side in one process, on one thread."""

from ogd.lab.bench import laboratory, language_model, library, peers, sizes
from ogd.lab.bench.stopwatch import side_by_side
from ogd.lab.progress import Display
from ogd.lab.records.speed import Ratio
from ogd.lab.training.loop import one_thread

ROUNDS = 9
LOOP_ROUNDS, LOOP_TURNS = 11, 8  # of loops that differ by a few percent: the machine's speed drifts within seconds
LARGE_ROUNDS = 5  # of contestants whose turns take seconds,
LARGE_TURN = 40  # as much of the time that is left as so many others

# key, whose time, over whose time, what that means
RATIOS = [
    (
        "lockstep_sgd_speedup",
        "plain",
        "sgd",
        "SGD, 10 runs in lockstep, against the plain PyTorch loop for one run",
    ),
    (
        "ogd_vs_dense_speedup",
        "dense",
        "ogd",
        "OGD in the laboratory (exact every step, 800 directions, 10 runs), against one run with a dense basis",
    ),
    ("ogd_over_sgd", "ogd", "sgd", "that OGD against SGD, both in lockstep"),
    ("ogd_every_10_over_sgd", "ogd every 10", "sgd", "OGD projecting every 10 steps against SGD, both in lockstep"),
    ("ogd_every_50_over_sgd", "ogd every 50", "sgd", "OGD projecting every 50 steps against SGD, both in lockstep"),
    ("ogd_every_500_over_sgd", "ogd every 500", "sgd", "OGD projecting every 500 steps against SGD, both in lockstep"),
    ("ewc_over_sgd", "ewc", "sgd", "EWC after 4 tasks against SGD, both in lockstep"),
    ("agem_over_sgd", "agem", "sgd", "A-GEM after 4 tasks against SGD, both in lockstep"),
    ("er_over_sgd", "er", "sgd", "experience replay after 4 tasks against SGD, both in lockstep"),
    ("der_over_sgd", "der", "sgd", "DER++ after 4 tasks against SGD, both in lockstep"),
    ("rehearsal_over_sgd", "rehearsal", "sgd", "rehearsal by the library's defaults against SGD, both in lockstep"),
    (
        "protect_vs_dense_speedup",
        "dense",
        "protected",
        "your own loop under GradientMemory (800 directions), against the same with a dense basis",
    ),
    (
        "collect_speedup",
        "collect by a loop",
        "collect",
        "collecting 200 gradients, against a loop of 200 backward passes",
    ),
    ("avalanche_naive_over_sgd", "avalanche naive", "sgd", "an iteration of Avalanche's Naive against SGD in lockstep"),
    ("avalanche_ewc_over_ewc", "avalanche ewc", "ewc", "an iteration of Avalanche's EWC against EWC in lockstep"),
    (
        "avalanche_agem_over_agem",
        "avalanche agem",
        "agem",
        "an iteration of Avalanche's A-GEM against A-GEM in lockstep",
    ),
]


def measure() -> tuple[list[Ratio], list[str]]:
    """Measure every ratio; return them, and what was left out and why."""
    with one_thread(), Display("bench") as display:
        names = {name for _, *pair, _ in RATIOS for name in pair}
        large_turns = (LARGE_ROUNDS + 1) * len(
            {name for _, *pair, _ in [*sizes.RATIOS, *language_model.RATIOS] for name in pair}
        )
        loops = library.loops()  # first: a user's loop is alone in its process
        loop_turns = (LOOP_ROUNDS + 1) * LOOP_TURNS * len(loops)
        display.start((ROUNDS + 1) * len(names) + loop_turns + large_turns * LARGE_TURN)
        close = side_by_side(loops, LOOP_ROUNDS, lambda name: display.advance(1, name), LOOP_TURNS)
        elsewhere = peers.contestants()
        everybody = {**laboratory.contestants(), **library.contestants(), **elsewhere}
        display.advance((ROUNDS + 1) * (len(names) - len(everybody)), "plain")  # Avalanche's turns, without it
        times = side_by_side(everybody, ROUNDS, lambda name: display.advance(1, name))
        ratios = [times.ratio(key, over, under, meaning) for key, over, under, meaning in RATIOS if over in everybody]
        ratios += [close.ratio(*ratio) for ratio in library.LOOP_RATIOS]
        ratios.append(library.bytes_ratio())
        for part in (sizes, language_model):
            large = side_by_side(part.contestants(), LARGE_ROUNDS, lambda name: display.advance(LARGE_TURN, name))
            ratios += [large.ratio(*ratio) for ratio in part.RATIOS]
        ratios += [language_model.memory_ratio(), language_model.bytes_ratio()]
    missing = "Avalanche cannot be imported here: pip install 'ogd[bench]' to compare with it"
    return ratios, [] if elsewhere else [missing]
