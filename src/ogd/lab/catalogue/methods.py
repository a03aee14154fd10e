"""The methods as data. A new one is an entry here and a file in `ogd.lab.methods`; see docs/laboratory.md."""

from collections.abc import Mapping
from dataclasses import replace

from ogd import defaults
from ogd.checks import ArgumentError
from ogd.lab.catalogue import looks
from ogd.lab.catalogue.entry import Method, Option, Value, Weight

MOST_DRAWN = 10_000  # those of a thousand steps are drawn at once
PER_TASK = Option(
    "per_task", defaults.PER_TASK, "gradients or examples to keep of each finished task", formerly="storage"
)
IN_TOTAL = Option(
    "in_total",
    0,
    "gradients or examples to keep of all finished tasks together, an equal share of each, in place of --per-task",
    least=0,
    later=True,
)
CHOOSE = Option(
    "choose",
    "uniform",
    "which examples of a task to keep; uncertain: drawn in proportion to how uncertain the model is of them",
    ("uniform", "balanced", "uncertain", "hardest", "herding"),
    later=True,
)
MERGE = Option(
    "merge",
    1,
    "draw N times as many examples of a task, group those of one class that are alike, and keep the groups' means",
    later=True,
)
OUTPUTS = Option(
    "outputs",
    "true",
    "which gradient to store: of the true class's logit (GTL), the mean logit (AVE) or every logit (ALL)",
    ("true", "mean", "all"),
    formerly="logits",
)
SOFTNESS = Option(
    "softness",
    0.0,
    "how far a projected step may change stored outputs, to learn more; 0: not at all",
    grid=(0.01, 0.02, 0.05, 0.1, 0.2),
    later=True,
)
PROJECTION = Option(
    "projection",
    "implicit",
    "implicit is fast and projects every step of sgd; explicit takes any optimizer",
    ("implicit", "explicit"),
)
EVERY = Option("every", 1, "steps between two projections; more than 1 makes the projection explicit")
REFRESH = Option(
    "refresh",
    0,
    "keep the examples, too, and compute their gradients again every N steps; 0: never",
    least=0,
    later=True,
)
DIRECTIONS = Option(
    "directions",
    "drawn",
    "which directions to keep: gradients of drawn examples, those of --candidates with the largest leverage, their "
    "principal components, or a sketch of all tasks (Frequent Directions)",
    ("drawn", "leverage", "pca", "sketch"),
    later=True,
)
WRITTEN_OUT = ("pca", "sketch")  # those that are combinations of gradients, as long as the model has weights
CANDIDATES = Option("candidates", 1000, "gradients of each task that --directions are chosen from", later=True)
REFERENCE_BATCH = Option("reference_batch", 10, "stored examples drawn per step", most=MOST_DRAWN)
REPLAY_BATCH = Option("replay_batch", 10, "stored examples replayed per step", most=MOST_DRAWN)
REPLAY_EVERY = Option(
    "replay_every", 1, "steps between two replays; each replay then counts that many times", later=True
)
ALPHA = Option(
    "alpha",
    0.5,
    "weight of the squared distance from the stored outputs",
    tuned=(("permuted", 1.0), ("rotated", 0.5), ("split", 0.2)),  # results/tuning
    grid=(0.05, 0.1, 0.2, 0.5, 1, 2),
)
REHEARSAL_BATCH = replace(REPLAY_BATCH, default=defaults.REHEARSAL_BATCH)
REHEARSAL_EVERY = replace(REPLAY_EVERY, default=defaults.REHEARSAL_EVERY)
REHEARSAL_ALPHA = replace(ALPHA, default=defaults.REHEARSAL_ALPHA, tuned=(), grid=())
REHEARSAL_BOUND = Option(
    "bound",
    defaults.REHEARSAL_BOUND,
    "largest norm of a step's gradient, as a multiple of the new task's largest recent one; 0: no bound",
    grid=(0.5, 1, 1.5, 2, 4),
)
EWC_LAMBDA = Option(
    "ewc_lambda",
    1.0,
    "weight of the penalty",
    tuned=(("permuted", 30.0), ("rotated", 100.0), ("split", 300.0)),  # results/tuning
    grid=(1, 3, 10, 30, 100, 300, 1000),
)
FISHER_EXAMPLES = Option("fisher_examples", 2000, "examples to take the Fisher information from")
FISHER_LABELS = Option(
    "fisher_labels", "true", "its labels: the examples' own, or drawn by the model", ("true", "sampled")
)
THRESHOLD_INPUT = Option("threshold_input", 0.95, "share of the network's inputs that its first layer protects", most=1)
THRESHOLD = Option("threshold", 0.99, "share of its inputs that every other layer protects", most=1)
THRESHOLD_GROWTH = Option("threshold_growth", 0.0, "how much both shares grow with every task")
BASIS_EXAMPLES = Option("basis_examples", 300, "examples to take the layers' inputs from")


def _ogd_weight(options: Mapping[str, Value], finished: int) -> float:
    if not finished:
        return 1.0
    n, every = int(options["in_total"]) or int(options["per_task"]) * finished, int(options["every"])
    if options["directions"] in WRITTEN_OUT:
        return 1 + (2 + n / 4) / every
    if options["projection"] == "explicit":
        return 1 + (2 + n / 27) / every
    return 1.8 + n / 130 + 2 * (n / 900) ** 2


def _ogd_size(options: Mapping[str, Value], tasks: int) -> float:
    """K and L in float64, and L in float32."""
    n = int(options["in_total"]) or int(options["per_task"]) * (tasks - 1)  # nothing protects the last task
    return 20.0 * n**2


def _after_the_first(weight: float) -> Weight:
    return lambda options, finished: weight if finished else 1.0


def _replay(more: float) -> Weight:
    return lambda options, finished: 1 + more / int(options["replay_every"]) if finished else 1.0


def _perceptron(options: Mapping[str, Value], optimizer: str, model: str) -> dict[str, Value]:
    if model != "mlp":
        raise ArgumentError("method", f"gpm works on perceptrons only: it needs model mlp, not {model}")
    return {}


def _one_limit(options: Mapping[str, Value], optimizer: str, model: str) -> dict[str, Value]:
    if options.get("in_total") and "per_task" in options:
        raise ArgumentError("in_total", "stands in place of per_task; give one of the two")
    return {}


def choose_projection(
    asked: Value | None, *, every: Value, refresh: Value, directions: Value, optimizer: str = "sgd", model: str = "mlp"
) -> str:
    """Return how OGD projects: implicitly wherever that is exact and nothing else was asked for.

    It is exact for the perceptron under SGD, at every step, with gradients that are stored once. Raise a ValueError
    for settings that exclude one another.
    """
    if directions != DIRECTIONS.default and refresh:
        raise ArgumentError("refresh", f"renews the gradients of drawn examples, not of directions {directions!r}")
    exact: dict[str, tuple[Value, tuple[Value, ...]]] = {
        "every": (every, (1,)),
        "refresh": (refresh, (0,)),
        "directions": (directions, ("drawn", "leverage")),
        "optimizer": (optimizer, ("sgd",)),
        "model": (model, ("mlp",)),
    }
    others = [f"{name} {value}" for name, (value, allowed) in exact.items() if value not in allowed]
    if others and asked == "implicit":
        raise ArgumentError(
            "projection", f"'implicit' is for model mlp, optimizer sgd and every 1; {others[0]} needs 'explicit'"
        )
    return "explicit" if others or asked == "explicit" else "implicit"


def _projection(options: Mapping[str, Value], optimizer: str, model: str) -> dict[str, Value]:
    _one_limit(options, optimizer, model)
    if options.get("directions", DIRECTIONS.default) == DIRECTIONS.default and "candidates" in options:
        raise ArgumentError("candidates", "are for directions 'leverage', 'pca' and 'sketch'")
    settings = {option.name: options.get(option.name, option.default) for option in (EVERY, REFRESH, DIRECTIONS)}
    chosen = choose_projection(options.get("projection"), **settings, optimizer=optimizer, model=model)
    return {"projection": chosen}


METHODS = {
    "mtl": Method(
        "MTL",
        "every batch from all tasks so far: a reference that keeps all data",
        "ogd.lab.methods.baselines:MTL",
        (),
        looks.MTL,
        _after_the_first(1.2),
        bound=True,
    ),
    "ogd": Method(
        "OGD",
        "updates orthogonal to the gradients of stored outputs",
        "ogd.lab.methods.ogd:OGD",
        (PER_TASK, OUTPUTS, PROJECTION, EVERY, CHOOSE, REFRESH, IN_TOTAL, DIRECTIONS, CANDIDATES, SOFTNESS),
        looks.OGD,
        _ogd_weight,
        _ogd_size,
        rule=_projection,
    ),
    "agem": Method(
        "A-GEM",
        "the loss on a batch of stored examples must not grow",
        "ogd.lab.methods.agem:AGEM",
        (PER_TASK, REFERENCE_BATCH, IN_TOTAL),
        looks.AGEM,
        _after_the_first(3.0),
        rule=_one_limit,
    ),
    "er": Method(
        "ER",
        "each step also learns a batch of stored examples",
        "ogd.lab.methods.er:ER",
        (PER_TASK, REPLAY_BATCH, REPLAY_EVERY, IN_TOTAL, CHOOSE, MERGE),
        looks.ER,
        _replay(1.2),
        rule=_one_limit,
    ),
    "der": Method(
        "DER++",
        "ER, and the outputs on stored examples stay near what they were",
        "ogd.lab.methods.der:DER",
        (PER_TASK, REPLAY_BATCH, ALPHA, REPLAY_EVERY, IN_TOTAL, CHOOSE, MERGE),
        looks.DER,
        _replay(1.3),
        rule=_one_limit,
    ),
    "rehearsal": Method(
        "rehearsal",
        "what ogd.ExampleMemory does: DER++ with its draws and its defaults",
        "ogd.lab.methods.rehearsal:Rehearsal",
        (PER_TASK, REHEARSAL_BATCH, REHEARSAL_ALPHA, REHEARSAL_EVERY, IN_TOTAL, CHOOSE, MERGE, REHEARSAL_BOUND),
        looks.REHEARSAL,
        _replay(1.3),
        rule=_one_limit,
    ),
    "ewc": Method(
        "EWC",
        "weights that mattered are pulled back",
        "ogd.lab.methods.ewc:EWC",
        (EWC_LAMBDA, FISHER_EXAMPLES, FISHER_LABELS),
        looks.EWC,
        _after_the_first(1.3),
    ),
    "gpm": Method(
        "GPM",
        "updates orthogonal to the directions in which each layer's inputs lie",
        "ogd.lab.methods.gpm:GPM",
        (THRESHOLD_INPUT, THRESHOLD, THRESHOLD_GROWTH, BASIS_EXAMPLES),
        looks.GPM,
        _after_the_first(2.5),
        rule=_perceptron,
    ),
    "sgd": Method(
        "SGD",
        "one task after the other, nothing done against forgetting",
        "ogd.lab.methods.baselines:SGD",
        (),
        looks.SGD,
    ),
}
