"""What comes of PyTorch's variables: ``variables_script.py WAY``, where ``WAY`` is native, object or plug-in. Prints a line of JSON
for each case.

PyTorch is imported once. It reads the variables when the GPU is used for the first time, so that each case is a forked process.
"""

import json
import os
import sys
import warnings

CUDA, ACCELERATOR = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
FRACTION = "per_process_memory_fraction"
OTHER = "max_split_size_mb:64"
MIB = 1 << 20

# Every documented key, right and wrong, and spellings that a parser of one's own reads differently.
TEXTS = [
    "",
    "backend:native",
    "backend:cudaMallocAsync",
    "backend:other",
    "max_split_size_mb:512",
    "max_split_size_mb:2",
    "max_non_split_rounding_mb:20",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:3",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:1.8",
    "expandable_segments:True",
    "expandable_segments:False",
    "expandable_segments:yes",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
    "pinned_num_register_threads:7",
    "pinned_use_background_threads:True",
    "pinned_reserve_segment_size_mb:64",
    "graph_capture_record_stream_reuse:True",
    "release_lock_on_cudamalloc:True",
    "large_segment_size_mb:32",
    "throw_on_cudamalloc_oom:True",
    f"{FRACTION}:0.5",
    f"{FRACTION}:.5",
    f"{FRACTION}:5e-1",
    f"{FRACTION}:1",
    f"{FRACTION}:0.0",
    f"{FRACTION}:1.5",
    f"{FRACTION}:-0.5",
    f"{FRACTION}:half",
    f"{FRACTION}:0.5x",
    f"{FRACTION}: 0 . 5 ",
    f" {FRACTION} : 0.5 , {OTHER} ",
    f"{FRACTION}:0.5,",
    f"{FRACTION}:0.5,{FRACTION}:0.25",
    f"{FRACTION}:0.25,backend:native,roundup_power2_divisions:[64:8,>:1]",
    f"roundup_power2_divisions:[64:8,>:1],{FRACTION}:0.25",
    f"PER_PROCESS_MEMORY_FRACTION:0.5,{OTHER}",
    f"{FRACTION}=0.5",
    "max_split_size_mb=512",
    "max_split_size_mb : 512 , garbage_collection_threshold : 0.8",
    " backend:native , ",
    "bogus:1",
    "garbage_collection_threshold:0.8,",
]
CASES = [{variable: text} for text in TEXTS for variable in (CUDA, ACCELERATOR)] + [
    {CUDA: f"{FRACTION}:0.5", ACCELERATOR: f"{FRACTION}:0.25"},
    {CUDA: OTHER, ACCELERATOR: f"{FRACTION}:0.25"},
    {CUDA: f"{FRACTION}:0.5", ACCELERATOR: OTHER},
    {CUDA: "", ACCELERATOR: f"{FRACTION}:0.25"},
    {"PYTORCH_HIP_ALLOC_CONF": f"{FRACTION}:0.5"},
    {"PYTORCH_HIP_ALLOC_CONF": "bogus:1"},
    {},
]


def outcome(way):
    import torch

    try:
        if way != "native":
            import gapless.torch

            gapless.torch.enable()
            assert gapless.torch.backend() == way
        torch.cuda.init()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    told = {"fraction": torch.cuda.get_per_process_memory_fraction()}
    for size in (100, 300, 600):
        try:
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
            told[size] = "served"
        except torch.cuda.OutOfMemoryError as error:
            told[size] = str(error).partition(" GPU 0")[0]
        torch.cuda.empty_cache()
    return told


def main(way):
    import torch  # noqa: F401
    import gapless.torch  # noqa: F401

    warnings.simplefilter("ignore")
    for number, case in enumerate(CASES):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.environ.update(case)
            print(json.dumps([number, outcome(way)]), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            print(json.dumps([number, f"status {status}"]))


if __name__ == "__main__":
    main(sys.argv[1])
