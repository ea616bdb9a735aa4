"""Has anything that constraints.txt pins a known vulnerability? Asks PyPI, by pip-audit; `make audit`.

Exit code 1 where there is one, with a line for each; 0 where there is none, or where nobody could be asked: the last
line says which, and why. A pin that PyPI does not know is named, not passed over.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PINS = Path(__file__).parents[1] / "constraints.txt"
TIMEOUT_S = 600
NOT_INSTALLED = "No module named pip_audit"


def pins(path: Path = PINS) -> list[str]:
    """`name==version` of each line; markers aside, for a flaw of Windows' packages counts on Linux, too."""
    lines = (line.partition(";")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def ask(pins: list[str]) -> tuple[list[dict], str]:
    """What pip-audit found of each pin; or why there is nothing, as a line."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "pins.txt")
        asked.write_text("\n".join(pins), encoding="utf-8")
        options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "--timeout", "15")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(asked), *options]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return [], f"PyPI did not answer within {TIMEOUT_S} s"
    try:
        return json.loads(ended.stdout)["dependencies"], ""
    except (ValueError, KeyError, TypeError):
        lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        if any(NOT_INSTALLED in line for line in lines):
            return [], "pip-audit is not installed; make setup installs it"
        return [], f"PyPI cannot be asked: {lines[-1][:200] if lines else f'pip-audit ended with {ended.returncode}'}"


def judged(found: list[dict]) -> tuple[list[str], list[str], int]:
    """A line for each vulnerability, the names that nothing is known of, and how many pins were looked up."""
    flaws = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for one in found
        for flaw in one.get("vulns", [])
    ]
    unknown = [one["name"] for one in found if "skip_reason" in one]
    return flaws, unknown, len(found) - len(unknown)


def main() -> int:
    every = pins()
    found, why = ask(every[:1])  # one first: where it cannot be asked for, the others need not be
    if found and not judged(found)[2]:
        why = f"this index has no list of vulnerabilities ({found[0]['skip_reason']})"
    if not why:
        found, why = ask(every)
    if why:
        print(f"audit: skipped, {len(every)} pins were not looked up: {why}")
        return 0
    flaws, unknown, known = judged(found)
    for line in flaws:
        print(line)
    if unknown:
        print(f"not looked up, for PyPI does not know them: {', '.join(unknown)}")
    print(f"audit: {known} of {len(every)} pins looked up, {len(flaws)} known vulnerabilities")
    return int(bool(flaws))


if __name__ == "__main__":
    sys.exit(main())
