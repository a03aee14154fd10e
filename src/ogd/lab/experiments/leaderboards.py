"""Public leaderboards as data: the protocols of others, what they published there, and our methods under them.

A reference's source is where its number was read. A number that was found in no source is not here. Settings with a
choice to make (`ewc_lambda`, `alpha`, `replay_batch`, a learning rate that the protocol leaves open) are chosen on
validation data by `ogd tune`, never on the test data that the tables show; docs/leaderboards.md has the commands.
"""

import random
from collections.abc import Sequence

from ogd.lab.catalogue import METHODS
from ogd.lab.experiments.experiment import Experiment, Reference, Row, Setting
from ogd.lab.experiments.memories import REHEARSAL

FROMP = "README.md of github.com/team-approx-bayes/fromp"
SFSVI = "README.md of github.com/timrudner/S-FSVI"
DFGP = "logs/PMNIST of github.com/EnnengYang/DFGP, its three seeds"
CUBER = "Table 1 of “Beyond Not-Forgetting: Continual Learning with Backward Knowledge Transfer” (CUBER)"
BUFFERS = (200, 500, 5120)
OGD_MOST = 100  # gradients per task: all of 5,120 would take an hour
SPARSE = "DER++, 32 every 2"
SPARING: Setting = {"replay_batch": 32, "replay_every": 2, "alpha": 0.5}
TOLD = " (told the task)"
ANGLES = tuple(round(random.Random(f"board c, task {t}").uniform(0, 180), 1) for t in range(1, 21))


def _quoted(source: str, numbers: dict[str, str]) -> tuple[Reference, ...]:
    return tuple(Reference(label, (cell,), source) for label, cell in numbers.items())


def _board(
    name: str,
    where: str,
    title: str,
    columns: Sequence[str],
    protocol: Setting,
    rows: dict[str, tuple[str, Sequence[Setting]]],
    references: tuple[Reference, ...] = (),
    note: str = "",
) -> Experiment:
    """`rows` has a method and one setting per column, or one for all of them, by label."""
    made = []
    for label, (method, settings) in rows.items():
        spread = list(settings) * (len(columns) if len(settings) == 1 else 1)
        every = tuple({**protocol, **setting} for setting in spread)
        made.append(Row(label or METHODS[method].label, method, every, subject=method == "ogd"))
    return Experiment(
        name,
        title,
        "average",
        tuple(columns),
        tuple(made),
        runs=5,
        where=where,
        note=note,
        profile="the protocol's scale",
        references=references,
        digits=2,
        named=True,
    )


A = _board(
    "board-a",
    "Leaderboard A",
    "Permuted MNIST, 10 tasks, 200 examples of each stored",
    ["average"],
    {
        "benchmark": "permuted",
        "tasks": 10,
        "hidden": (100, 100),
        "init": "pytorch",
        "optimizer": "adam",
        "lr": 1e-3,
        "batch_size": 128,
        "epochs": 10,
    },
    {
        "Adam alone": ("sgd", [{}]),
        "EWC": ("ewc", [{"ewc_lambda": 10.0}]),
        "A-GEM": ("agem", [{"per_task": 200, "reference_batch": 128}]),
        "ER": ("er", [{"per_task": 200, "replay_batch": 32}]),
        "DER++": ("der", [{"per_task": 200, "replay_batch": 32, "alpha": 2.0}]),
        "DER++, one Adam": ("der", [{"per_task": 200, "replay_batch": 32, "alpha": 3.0, "keep_optimizer": True}]),
        "DER++, one Adam, merged": (
            "der",
            [
                {
                    "per_task": 200,
                    "choose": "uncertain",
                    "merge": 50,
                    "replay_batch": 32,
                    "alpha": 3.0,
                    "keep_optimizer": True,
                }
            ],
        ),
        REHEARSAL: ("rehearsal", [{}]),
        SPARSE: ("der", [{"per_task": 200, **SPARING}]),
        "GPM": ("gpm", [{}]),
        "OGD": ("ogd", [{"per_task": 200, "every": 50}]),
        "All data kept": ("mtl", [{}]),
    },
    (
        *_quoted(FROMP, {"FROMP": "94.8"}),
        *_quoted(SFSVI, {"S-FSVI": "95.76 ± 0.02", "S-FSVI without stored inputs": "84.06 ± 0.46"}),
    ),
    "784-100-100-10, Adam at 10⁻³, batches of 128, 10 epochs per task: main_permutedmnist.py of "
    "github.com/team-approx-bayes/fromp. S-FSVI has the same tasks, network and batches, but its own learning rate. "
    "It stores 200 images of each task as they are, as DER++ does unless merged; its ± is a standard error, by the "
    "code that reports its results. OGD projects every 50 steps. One Adam: its moments go on from one task to the "
    "next; elsewhere they begin anew, as in FROMP. Merged: the 200 stored inputs per task are means of 50 training "
    "images each, drawn by uncertainty. All data kept: every batch is drawn from all tasks so far, in as many steps "
    "(MTL).",
)

B = _board(
    "board-b",
    "Leaderboard B",
    "Permuted MNIST, 10 tasks, a network without biases",
    ["average"],
    {
        "benchmark": "permuted",
        "tasks": 10,
        "scale": "standard",
        "left_out": 6000,
        "hidden": (100, 100),
        "biases": False,
        "init": "pytorch",
        "lr": 0.01,
        "batch_size": 10,
        "epochs": 5,
    },
    {
        "SGD": ("sgd", [{}]),
        "EWC": ("ewc", [{"ewc_lambda": 10.0}]),
        "A-GEM": ("agem", [{"per_task": 200}]),
        "ER": ("er", [{"per_task": 200}]),
        "DER++": ("der", [{"per_task": 200, "alpha": 2.0}]),
        "DER++, merged": ("der", [{"per_task": 200, "alpha": 2.0, "choose": "uncertain", "merge": 5}]),
        SPARSE: ("der", [{"per_task": 200, **SPARING}]),
        "GPM": ("gpm", [{"threshold_input": 0.95, "threshold": 0.99, "basis_examples": 300}]),
        "OGD": ("ogd", [{"per_task": 200, "every": 50}]),
    },
    _quoted(
        CUBER,
        {
            "Multitask": "96.70 ± 0.02",
            f"CUBER{TOLD}": "97.25 ± 0.00",
            f"TRGP{TOLD}": "96.34 ± 0.11",
            "GPM": "93.91 ± 0.16",
            "OWM": "90.71 ± 0.11",
            "EWC": "89.97 ± 0.57",
            "ER (reservoir)": "87.24 ± 0.53",
            "A-GEM": "83.56 ± 0.16",
        },
    )
    + _quoted(DFGP, {"DFGP": "94.63 ± 0.10"}),
    "784-100-100-10 without biases, SGD at 0.01, batches of 10, 5 epochs per task, 54,000 training images, "
    "standardised pixels: main_pmnist.py of github.com/sahagobinda/GPM. Our A-GEM, ER and DER++ store 200 examples "
    "per task; how many the published A-GEM and ER stored, their source does not say. OGD projects every 50 steps. "
    "Merged: what is stored are means of five examples each, drawn by uncertainty. Told the task: before these two "
    "are tested on a task, they load what they learned for it (main_pmnist.py of github.com/LYang-666/TRGP; Eq. 3 of "
    "CUBER's paper). DFGP is not told and stores no examples: the mean and sample standard deviation of its seeds, "
    "94.72, 94.65 and 94.53.",
)


def _board_c(
    benchmark: str,
    more: Setting,
    ewc_lambda: float,
    agem_lr: Sequence[float],
    alpha: Sequence[float],
) -> Experiment:
    replay = [{"in_total": n, "replay_batch": 128} for n in BUFFERS]
    return _board(
        f"board-c-{benchmark}",
        "Leaderboard C",
        f"{benchmark.capitalize()} MNIST, 20 tasks, one epoch each, buffers of a fixed size",
        [f"{n:,} in total" for n in BUFFERS],
        {"benchmark": benchmark, "hidden": (100, 100), "init": "glorot", "batch_size": 128, "epochs": 1, **more},
        {
            "SGD": ("sgd", [{"lr": 0.2}]),
            "EWC": ("ewc", [{"lr": 0.1, "ewc_lambda": ewc_lambda}]),
            "A-GEM": (
                "agem",
                [{"in_total": n, "reference_batch": 128, "lr": lr} for n, lr in zip(BUFFERS, agem_lr, strict=True)],
            ),
            "ER": ("er", [{**one, "lr": 0.2} for one in replay]),
            "DER++": ("der", [{**one, "lr": 0.1, "alpha": a} for one, a in zip(replay, alpha, strict=True)]),
            SPARSE: ("der", [{"in_total": n, "lr": 0.1, **SPARING} for n in BUFFERS]),
            f"{SPARSE}, merged": ("der", [{"in_total": n, "lr": 0.1, "merge": 5, **SPARING} for n in BUFFERS]),
            "GPM": ("gpm", [{"lr": 0.1}]),
            "OGD": ("ogd", [{"lr": 0.1, "per_task": min(n // 20, OGD_MOST), "every": 50} for n in BUFFERS]),
        },
        note="784-100-100-10, batches of 128, as many examples replayed per step. Learning rates of SGD, A-GEM and "
        "ER and α of DER++ are those of utils/best_args.py of github.com/aimagelab/mammoth; its β, the weight of "
        "replayed labels, is 1 here, and its learning rate 0.1 for every buffer, because runs diverge at 0.2. SGD, EWC "
        "and GPM store no examples, and OGD stores a twentieth of the buffer's "
        f"size as gradients per task, at most {OGD_MOST}, and projects every 50 steps. Merged: what is stored are "
        "means of five examples each.",
    )


BOARDS = (
    A,
    B,
    _board_c("permuted", {"tasks": 20}, 0.3, (0.1, 0.1, 0.1), (1.0, 1.0, 0.5)),
    _board_c("rotated", {"angles": ANGLES}, 0.001, (0.1, 0.3, 0.3), (1.0, 0.5, 0.5)),
)
