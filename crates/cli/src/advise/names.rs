//! The order of file names, and how much of them has to be shown.

use std::cmp::Ordering;

/// Compares names as people count: `rank_2` comes before `rank_10`.
pub(super) fn by_number(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(one), Some(other)) = (left.chars().next(), right.chars().next()) {
        let order = if one.is_ascii_digit() && other.is_ascii_digit() {
            let (digits, others) = (take_digits(&mut left), take_digits(&mut right));
            digits.len().cmp(&others.len()).then(digits.cmp(others))
        } else {
            (left, right) = (&left[one.len_utf8()..], &right[other.len_utf8()..]);
            one.cmp(&other)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then(a.cmp(b))
}

/// Takes the digits at the start of `text` away, and returns them without zeros in front.
fn take_digits<'a>(text: &mut &'a str) -> &'a str {
    let (digits, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    *text = rest;
    digits.trim_start_matches('0')
}

/// Returns the length of the folder that all names begin with, its last slash included.
pub(super) fn common_folder(names: &[&str]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let folder_of = |name: &str| name.rfind('/').map_or(0, |slash| slash + 1);
    others.iter().fold(folder_of(first), |length, name| {
        let shared = first.bytes().zip(name.bytes()).take(length).take_while(|(a, b)| a == b).count();
        // Both are alike up to there, so that a slash is one in both, and no character is cut.
        first.as_bytes()[..shared].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_their_order() {
        let sorted = ["0", "1", "2", "9", "10", "a", "a01", "a1b", "a02", "b/2/1", "b/10", "é", "é1"];
        for (index, a) in sorted.iter().enumerate() {
            for (other, b) in sorted.iter().enumerate() {
                // A number with zeros in front is the same number, and comes first as a text.
                let expected = if *a == "b/2/1" || *b == "b/2/1" { continue } else { index.cmp(&other) };
                assert_eq!(by_number(a, b), expected, "{a} {b}");
            }
        }
        assert_eq!(by_number("b/2/1", "b/10"), Ordering::Less);
        assert_eq!(by_number("1", "01").reverse(), by_number("01", "1"));
        assert_ne!(by_number("1", "01"), Ordering::Equal);
    }

    #[test]
    fn the_folder_of_all_is_left_out() {
        for (names, short) in [
            (&["a/b/1", "a/b/2"][..], &["1", "2"][..]),
            (&["a/b1", "a/b2"], &["b1", "b2"]),
            (&["a/r0/s", "a/r1/s"], &["r0/s", "r1/s"]),
            (&["a/b", "b"], &["a/b", "b"]),
            (&["a/b/c", "a/b"], &["b/c", "b"]),
            (&["/x", "/y"], &["x", "y"]),
            (&["é/ü/1", "é/u/2"], &["ü/1", "u/2"]),
            (&["a/b"], &["b"]),
        ] {
            let length = common_folder(names);
            assert_eq!(names.iter().map(|name| &name[length..]).collect::<Vec<_>>(), short);
        }
        assert_eq!(common_folder(&[]), 0);
    }
}
