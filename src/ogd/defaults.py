"""Defaults that the library and the laboratory share, without importing torch."""

PER_TASK = 200  # examples of a finished task; in the laboratory, gradients as well

GRADIENTS = 500  # of a finished task in a GradientMemory, chosen on validation data (docs/beyond.md)

# defaults of rehearsal, chosen on validation data (docs/rehearsal.md)
REHEARSAL_EVERY = 2  # steps that share a rehearsal
REHEARSAL_BATCH = 16  # examples that are rehearsed at a time
REHEARSAL_ALPHA = 0.5  # weight of the outputs
REHEARSAL_BOUND = 1.6  # largest norm of a gradient with what is added, in norms of the new task's gradients
