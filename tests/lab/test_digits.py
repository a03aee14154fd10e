"""Which digits? Partitions of Split MNIST next to the published rows, which do not name theirs."""

from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.digits import COMPARED, FITTED, PUBLISHED, SEEDS
from ogd.lab.experiments.runs import find_runs, requests_of
from ogd.lab.reporting import compare, table


def partitions(rows, mnist):
    return [requests_of(row, mnist)[0].partition for row in rows]


def test_twenty_partitions_are_drawn_that_no_table_has(mnist):
    rows = EXPERIMENTS["digits"].rows
    for method in COMPARED:
        drawn = partitions([row for row in rows if row.method == method], mnist)
        assert len(set(drawn)) == len(drawn) == len(SEEDS) == 20
        assert not {*drawn} & {*partitions((rows["mtl"] for rows in PUBLISHED.values()), mnist)}


def test_a_fitted_partition_is_named_so_and_is_judged_by_nothing(mnist):
    experiment = EXPERIMENTS["digits-fitted"]
    comparison = compare(find_runs(experiment, mnist, lambda request, runs: ()))
    assert not comparison.published
    assert "post hoc" in table(comparison).markdown()
    assert [row.method for row in experiment.rows] == ["mtl", "ogd", "agem", "ewc", "sgd"]
    assert {row.settings[0]["partition"] for row in experiment.rows} == {FITTED}
    for quoted, row in zip(experiment.references, PUBLISHED["Table 3"].values(), strict=True):
        assert [float(cell.split()[0]) for cell in quoted.cells] == [cell.mean for cell in row.published]


def test_the_classes_stand_in_the_caption_where_all_rows_share_them(mnist):
    captions = {
        name: compare(find_runs(EXPERIMENTS[name], mnist, lambda request, runs: ())).caption
        for name in ("split", "digits")
    }
    assert "The classes of the tasks are 01/23/45/67/89." in captions["split"]
    assert "The classes of the tasks" not in captions["digits"]
