"""The gapless that is installed beside this PyTorch: ``installed.py WAY``, where ``WAY`` is object or plug-in.

What passes natively has to pass on it. Run by cargo xtask test-releases, in an environment of its own for each version of PyTorch.
"""

import importlib.metadata
import sys

from differences import LACKS, OTHER_ANSWERS, compare, run
from processes import run as run_python

WAY = sys.argv[1]
USE = """
    import gapless.torch
    gapless.torch.enable()
    import torch
    block = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    print(gapless.torch.backend(), torch.cuda.memory_allocated() >> 20)
"""


def main():
    # A warning says why it is the plug-in. With an object there is nothing to say.
    told = run_python(USE, *(["-W", "error::RuntimeWarning"] if WAY == "object" else []))
    assert f"{WAY} 5" in told.splitlines(), told
    print(f"gapless {importlib.metadata.version('gapless')} on the {WAY}")
    (for_vllm,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="gapless")
    assert for_vllm.load().__module__ == "gapless.vllm"
    wrong = compare(run("native", None), run("gapless", None), LACKS[WAY], WAY)
    wrong = [text for text in wrong if not text.startswith(OTHER_ANSWERS[WAY])]
    for text in wrong:
        print(text)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
