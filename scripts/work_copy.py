"""A copy of the work tree to change and build in, so that the work tree itself is left alone."""
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_files(tree):
    """Copies the committed and changed files into a folder. What was built there stays."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split("\n")
    built = tree / "target"
    if tree.exists():
        for path in tree.iterdir():
            if path != built:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
