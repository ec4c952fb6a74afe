"""`--shard K/N`: the share of one of several machines."""
import argparse
import re


def shard(text):
    """K/N as a pair, for argparse."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not number < of:
        raise argparse.ArgumentTypeError(f"'{text}' is not K/N with K from 0 to N - 1")
    return number, of
