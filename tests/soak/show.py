"""Prints the record of the last attack, results/soak.json, as Markdown tables."""

from pathlib import Path

from ogd import json_files
from ogd.lab.progress import clock

RECORD = Path(__file__).parents[2] / "results" / "soak.json"
HARM = ("tracebacks", "differing records", "processes left", "files left", "wrong exits", "hangs")


def show() -> None:
    """Print what was done, also where it is not finished."""
    if not RECORD.exists():
        print("There is no record yet: run `make soak`.")
        return
    record = json_files.load(RECORD)
    found = record["found"]
    print("| reader | mutated inputs | read | refused | anything else |\n| --- | ---: | ---: | ---: | ---: |")
    states = found["inputs"]
    total = {key: sum(state[key] for state in states.values()) for key in ("inputs", "read", "refused", "failed")}
    for name, state in {**states, "**all**": total}.items():
        print(f"| {name} | {state['inputs']:,} | {state['read']:,} | {state['refused']:,} | {state['failed']:,} |")
    killed = {"kills": 0, "trials": 0, "by signal": {}} | found["kills"]
    print(f"\n| after {killed['kills']} kills in {killed['trials']} trials | count |\n| --- | ---: |")
    for signalled, count in sorted(killed["by signal"].items()):
        print(f"| {signalled} | {count} |")
    for kind in (*HARM, "tracebacks of Python before it has imported ogd"):
        print(f"| **{kind}** | {killed.get(kind, 0)} |")
    if found["memory"]:
        print("\n| hostile files | most memory above the input | in |\n| --- | ---: | --- |")
    readers = sorted({name.split(": ")[0] for name in found["memory"]})
    for reader in readers:
        cases = {name: case for name, case in found["memory"].items() if name.startswith(f"{reader}: ")}
        name, case = max(cases.items(), key=lambda item: item[1]["peak"] - item[1]["input"])
        above = max(case["peak"] - case["input"], 0)
        print(f"| {reader}: {len(cases)} | {above / 1e6:,.0f} MB | {name.split(': ')[1]} |")
    if tried := found.get("models"):
        print("\n| random models | P is that of the reference | P is another |\n| ---: | ---: | ---: |")
        wrong = len(tried["failures"])
        print(f"| {tried['cases']:,} | {tried['cases'] - wrong:,} | {wrong:,} |")
    spent = found["seconds"]
    parts = ", ".join(f"{name} {clock(seconds)}" for name, seconds in spent.items())
    asked = record["asked"]
    if record["finished"]:
        print(f"\nIt took {clock(sum(spent.values()))} ({parts}) with seed {asked['seed']}.")
    else:
        done = f"{total['inputs']:,} of {asked['inputs']:,} inputs, {killed['kills']} of {asked['kills']} kills"
        print(f"\n**Not finished**: {done} and {len(found['memory'])} hostile files; `make soak` goes on from there.")
