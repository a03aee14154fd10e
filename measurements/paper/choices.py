"""What the reproduction chose where the paper is silent, as the page has it.

python measurements/paper/choices.py --show   prints it as Markdown
"""

from ogd.lab.reporting.choices import CHOICES


def show() -> None:
    """Print a line per choice."""
    print("| what | choice |\n|---|---|")
    for what, choice in CHOICES:
        print(f"| {what} | {choice} |")


if __name__ == "__main__":
    show()
