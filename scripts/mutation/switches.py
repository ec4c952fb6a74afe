"""Writes many changes into one program, each behind a switch, so that it is built once and not once for each change.

`weave` rewrites the sources in a copy of the repository. What it adds for change 17 is in effect where the environment variable
GAPLESS_CHANGE is 17; where it is `reached:FILE`, nothing is changed, and the numbers of all switches that the program comes to are
added to FILE. Operands are evaluated once and in their order, whatever the switch says.
"""
from bisect import bisect_right
from collections import defaultdict

import tree_sitter_rust
from tree_sitter import Language, Parser

from .areas import area_of

PARSER = Parser(Language(tree_sitter_rust.language()))
MODULE = """\
//! Whether a change is switched on.
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const UNKNOWN: u32 = u32::MAX;
const RECORD: u32 = u32::MAX - 1;
static SWITCHED_ON: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
static FILE: OnceLock<std::fs::File> = OnceLock::new();

#[inline(always)]
pub fn active(change: u32) -> bool {
    let on = SWITCHED_ON.load(Relaxed);
    if on >= RECORD { first(change) } else { on == change }
}

#[cold]
fn first(change: u32) -> bool {
    if SWITCHED_ON.load(Relaxed) == UNKNOWN {
        let value = std::env::var("GAPLESS_CHANGE").unwrap_or_default();
        let on = match value.strip_prefix("reached:") {
            Some(path) => {
                let _ = FILE.set(std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap());
                RECORD
            }
            None => value.parse().unwrap_or(0),
        };
        SWITCHED_ON.store(on, Relaxed);
    }
    let on = SWITCHED_ON.load(Relaxed);
    let reached = &REACHED[change as usize];
    if on == RECORD && !reached.load(Relaxed) && !reached.swap(true, Relaxed) {
        let _ = FILE.get().unwrap().write_all(format!("{change}\\n").as_bytes());
    }
    on == change
}
"""
COMPARISONS = {"==", "!=", "<", ">", "<=", ">="}
LAZY = {"&&": "||", "||": "&&"}


def weave(tree, changes, module="src/mutants.rs", library="src/lib.rs"):
    """Writes changes, a dictionary from numbers to what `cargo mutants --list --json` says, into the files of `tree`. Returns a
    `Woven` for each file, and the numbers of those that it has no form for."""
    files = defaultdict(dict)
    for number, change in changes.items():
        files[change["file"]][number] = change
    woven, without_form = {}, set()
    for file, of_file in files.items():
        path = tree / file
        result = Woven(path.read_bytes(), of_file, area_of(file).switches)
        path.write_bytes(result.text)
        woven[file] = result
        without_form |= result.without_form
    (tree / module).write_text(MODULE.replace("COUNT", str(max(changes, default=0) + 1)))
    with (tree / library).open("a") as file:
        file.write("#[allow(missing_docs)]\n#[doc(hidden)]\npub mod mutants;\n")
    return woven, without_form


class Woven:
    """One file with its changes: the text, and which of them are where in it."""

    def __init__(self, source, changes, switches):
        self.source, self.active = source, f"{switches}::active"
        line_starts = starts_of_lines(source)
        # Changes by what they replace: from the first byte of it to the one behind it.
        self.at = defaultdict(list)
        for number, change in changes.items():
            span = change["span"]
            start, end = (byte_of(source, line_starts, span[side]) for side in ("start", "end"))
            self.at[start, end].append((number, change))
        self.used, self.ranges, out = set(), [], Pieces()
        self.render(PARSER.parse(source).root_node, out, False)
        self.text = out.text()
        self.ranges = out.ranges
        self.without_form = set(changes) - self.used

    def changes_at(self, start, end):
        """The changes that an error in this part of the text may come from: those of the smallest part around it."""
        around = [(stop - begin, numbers) for begin, stop, numbers in self.ranges if begin <= start and end <= stop]
        return min(around, key=lambda part: part[0])[1] if around else set()

    def take(self, span, genre):
        """The changes of this kind that replace just this."""
        found = [(number, change["replacement"]) for number, change in self.at.get(span, []) if change["genre"] == genre]
        self.used |= {number for number, _ in found}
        return found

    def render(self, node, out, constant):
        """Writes a node with the changes that are in it. In constants there can be no switches."""
        kind = node.type
        if kind in ("const_item", "static_item", "attribute_item", "token_tree"):
            constant = True
        if kind == "function_item":
            modifiers = next((child for child in node.children if child.type == "function_modifiers"), None)
            constant = constant or (modifiers is not None and b"const" in self.source[modifiers.start_byte:modifiers.end_byte])
        if constant:
            return self.render_children(node, out, True)
        if kind == "block" and node.parent.type == "function_item":
            return self.render_body(node, out)
        if kind == "binary_expression" and self.render_binary(node, out):
            return None
        if kind == "compound_assignment_expr" and self.render_assignment(node, out):
            return None
        if kind == "unary_expression" and self.render_unary(node, out):
            return None
        if kind == "match_pattern" and self.render_pattern(node, out):
            return None
        if kind == "struct_expression":
            return self.render_struct(node, out)
        if kind == "match_expression":
            # An arm that is no longer taken whatever comes may be missed by the match as a whole.
            arms = {number for arm in node.child_by_field_name("body").named_children for number, change in self.at.get((arm.start_byte, arm.end_byte), [])}
            with out.part(arms):
                return self.render_children(node, out, False)
        return self.render_children(node, out, False)

    def render_children(self, node, out, constant):
        at = node.start_byte
        for child in node.children:
            out.add(self.source[at:child.start_byte])
            self.render(child, out, constant)
            at = child.end_byte
        out.add(self.source[at:node.end_byte])

    def render_body(self, node, out):
        inside = [child for child in node.named_children if "comment" not in child.type]
        returned = node.parent.child_by_field_name("return_type")
        # All values of `impl Trait` would have to be of one type.
        opaque = returned is not None and b"impl " in self.source[returned.start_byte:returned.end_byte]
        found = self.take((inside[0].start_byte, inside[-1].end_byte), "FnValue") if inside and not opaque else []
        out.add(b"{ ")
        for number, value in found:
            with out.part({number}):
                out.add(f"if {self.active}({number}) {{ return {value}; }}\n")
        at = node.start_byte + 1
        for child in node.children[1:-1]:
            out.add(self.source[at:child.start_byte])
            self.render(child, out, False)
            at = child.end_byte
        out.add(self.source[at:node.end_byte])

    def operation(self, node):
        """The operands of a node with two, the operator between them, and the changes of it."""
        left, operator, right = (node.child_by_field_name(name) for name in ("left", "operator", "right"))
        span = operator.start_byte, operator.end_byte
        return left, self.source[slice(*span)].decode(), right, self.take(span, "BinaryOperator")

    def render_binary(self, node, out):
        left, sign, right, found = self.operation(node)
        if not found:
            return False
        with out.part({number for number, _ in found}):
            if sign in LAZY:
                (number, other), = found
                assert other == LAZY[sign]
                out.add("(if (")
                self.render(left, out, False)
                out.add(f") != {self.active}({number}) {{ ")
                if sign == "&&":
                    self.render(right, out, False)
                    out.add(f" }} else {{ {self.active}({number}) }})")
                else:
                    out.add(f"!{self.active}({number}) }} else {{ ")
                    self.render(right, out, False)
                    out.add(" })")
                return True
            borrow, value = ("&", "*") if sign in COMPARISONS else ("", "")
            out.add(f"(match ({borrow}(")
            self.render(left, out, False)
            out.add(f"), {borrow}(")
            self.render(right, out, False)
            out.add(")) { (left__, right__) => ")
            for number, other in found:
                with out.part({number}):
                    out.add(f"if {self.active}({number}) {{ {value}left__ {other} {value}right__ }} else ")
            out.add(f"{{ {value}left__ {sign} {value}right__ }} }})")
        return True

    def render_assignment(self, node, out):
        left, sign, right, found = self.operation(node)
        if not found:
            return False
        with out.part({number for number, _ in found}):
            out.add("{ let right__ = ")
            self.render(right, out, False)
            out.add("; ")
            for number, other in [*found, (None, sign)]:
                with out.part({number} - {None}):
                    if number is not None:
                        out.add(f"if {self.active}({number}) ")
                    out.add("{ ")
                    self.render(left, out, False)
                    out.add(f" {other} right__; }}" + (" else " if number is not None else " }"))
        return True

    def render_unary(self, node, out):
        operator, operand = node.children
        found = self.take((operator.start_byte, operator.end_byte), "UnaryOperator")
        if not found:
            return False
        (number, _), = found
        sign = self.source[operator.start_byte:operator.end_byte].decode()
        with out.part({number}):
            out.add("(match ")
            self.render(operand, out, False)
            out.add(f" {{ value__ => if {self.active}({number}) {{ value__ }} else {{ {sign}value__ }} }})")
        return True

    def render_struct(self, node, out):
        """A struct whose other fields are those of another one: a field may be deleted."""
        fields = node.child_by_field_name("body").named_children
        # Each is deleted with the comma behind it.
        spans = [(field.start_byte, field.end_byte + 1) for field in fields]
        deleted = [(start, end, number) for start, end in spans for number, _ in self.take((start, end), "StructField")]
        out.add("(" if deleted else "")
        for start, end, number in deleted:
            with out.part({number}):
                out.add(f"if {self.active}({number}) {{ ")
                out.add(self.source[node.start_byte:start] + self.source[end:node.end_byte])
                out.add(" } else ")
        out.add("{ " if deleted else "")
        self.render_children(node, out, False)
        out.add(" })" if deleted else "")

    def render_pattern(self, node, out):
        guard = node.child_by_field_name("condition")
        arm = node.parent
        replaced = self.take((guard.start_byte, guard.end_byte), "MatchArmGuard") if guard else []
        deleted = self.take((arm.start_byte, arm.end_byte), "MatchArm")
        if not replaced and not deleted:
            return False
        pattern_end = guard.prev_sibling.start_byte if guard else node.end_byte
        with out.part({number for number, _ in replaced + deleted}):
            out.add(self.source[node.start_byte:pattern_end])
            out.add(" if ")
            for number, _ in deleted:
                out.add(f"!{self.active}({number}) && ")
            out.add("(")
            for number, value in replaced:
                out.add(f"if {self.active}({number}) {{ {value} }} else ")
            out.add("{ ")
            if guard:
                self.render(guard, out, False)
            else:
                out.add("true")
            out.add(" })")
        return True


class Pieces:
    """A text that is put together, and which changes its parts belong to."""

    def __init__(self):
        self.pieces, self.length, self.ranges = [], 0, []

    def add(self, piece):
        piece = piece.encode() if isinstance(piece, str) else piece
        self.pieces.append(piece)
        self.length += len(piece)

    def text(self):
        return b"".join(self.pieces)

    def part(self, numbers):
        return Part(self, numbers)


class Part:
    def __init__(self, pieces, numbers):
        self.pieces, self.numbers = pieces, numbers

    def __enter__(self):
        self.start = self.pieces.length

    def __exit__(self, *_):
        if self.numbers:
            self.pieces.ranges.append((self.start, self.pieces.length, self.numbers))


def starts_of_lines(source):
    """The first byte of each line, and the one behind the last."""
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def byte_of(source, line_starts, position):
    """The byte of a line and a column, counted in characters from 1."""
    start = line_starts[position["line"] - 1]
    line = source[start:line_starts[position["line"]]].decode()
    return start + len(line[:position["column"] - 1].encode())
