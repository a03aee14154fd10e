"""What the reproduction chose where the paper is silent; docs/reproduction.md shows the same table."""

from ogd.lab.catalogue import INITS
from ogd.lab.experiments.paper import INIT

CHOICES = (
    ("data", "all 60,000 / 10,000 images, pixels / 255"),
    (
        "initial weights",
        f"{INITS[INIT]} (`--init {INIT}`), chosen by how many published cells agree, so that they do is no prediction; "
        "the `init` table compares them all",
    ),
    ("batches", "the training set in a new random order every epoch; the last batch may be smaller"),
    ("storage", "200 per finished task, drawn uniformly, the same examples for OGD, A-GEM, ER and DER++"),
    (
        '"2000 gradients"',
        "counts vectors: OGD-ALL with 10 logits stores 200 examples; a task's head is all that counts in Split",
    ),
    (
        "OGD",
        "exact projection at every step (`--projection implicit`); K in float64, eigenvalues below 10⁻¹⁰ of the "
        "largest are cut off after scaling gradients to length 1",
    ),
    ("A-GEM", "10 examples drawn from the memory per step (with replacement), each scored by its own task's head"),
    (
        "ER, DER++",
        "not in the paper: every step also learns 10 examples drawn from the memory; DER++ adds α times the mean of "
        "(z − z_stored)² over the task's logits, z_stored being those at the end of the example's task",
    ),
    (
        "EWC",
        "Fisher information from per-example gradients with the true label on 2,000 examples; ½ λ Σ F (w − w*)²; λ "
        "chosen on a sixth of the training data held out (`ogd tune ewc`, records in `results/tuning`), never on test",
    ),
    (
        "MTL",
        "every batch uniformly from the union of the tasks seen so far, each example under its own task's head; as "
        "many steps per task as the other methods, so in an epoch of task t it sees 1/t of that task's data",
    ),
    ("permutations", "all tasks are permuted, the first too; every run has its own"),
    ("rotation", "counter-clockwise, bilinear, about the centre, zeros from outside"),
    (
        "split",
        "one head per task: the softmax runs over the task's classes only; Table 3 is 01/23/45/67/89, other partitions "
        "are drawn by a named seed",
    ),
    (
        "Table 4",
        "Rotated is 0° and 30°: the paper names no angle, and its numbers lie between ours of 20° and 30°; with 2,000 "
        "gradients OGD projects every 50 steps",
    ),
    (
        "runs",
        "the paper's, 5 for five tasks and 10 for two or three, except for Figures 3 and 5 (3)",
    ),
    ("±", "sample standard deviation over runs"),
)
