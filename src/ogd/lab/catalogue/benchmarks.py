"""The benchmarks as data. Their rules, which need no torch either, live with them in `ogd.lab.benchmarks`."""

from ogd.lab.catalogue.entry import Benchmark, Option

HEADS = ("multi", "single")
SCALES = ("unit", "standard")
IMAGES = (  # of every benchmark made from a data set's images
    Option(
        "scale",
        "unit",
        "pixels between 0 and 1, or standardised by the mean and standard deviation of the training images",
        SCALES,
        later=True,
    ),
    Option("left_out", 0, "training images to leave out, the first ones of the data set", least=0, later=True),
)

BENCHMARKS = {
    "permuted": Benchmark(
        "Permuted",
        "a fixed random order of the pixels per task",
        "ogd.lab.benchmarks.permuting:permuted",
        IMAGES,
        "ogd.lab.benchmarks.rules:PermutedRules",
    ),
    "rotated": Benchmark(
        "Rotated",
        "the images turned by a fixed angle per task",
        "ogd.lab.benchmarks.rotating:rotated",
        (
            Option(
                "angles",
                None,
                "degrees, one angle per task (default: 0 10 20 …)",
                takes=float,
                several=True,
                metavar="DEGREES",
            ),
            *IMAGES,
        ),
        "ogd.lab.benchmarks.rules:RotatedRules",
    ),
    "split": Benchmark(
        "Split",
        "the classes divided among the tasks, one head per task",
        "ogd.lab.benchmarks.splitting:split",
        (
            Option(
                "partition",
                None,
                "the classes of each task, as 01/23/45/67/89 or random:SEED (default: in order, divided evenly)",
                takes=str,
                metavar="CLASSES",
            ),
            Option("heads", "multi", "one head per task, or a single softmax over all classes", HEADS),
            *IMAGES,
        ),
        "ogd.lab.benchmarks.partition:SplitRules",
    ),
}
