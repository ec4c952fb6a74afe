//! The paths of source files in a trace's places: who publishes a page about a program may not want to show its folders.

use super::Trace;

impl Trace {
    /// Returns the same trace with the names alone of the source files that its places name.
    #[must_use]
    pub fn strip_paths(mut self) -> Self {
        for text in &mut self.recording.origins.texts {
            if let Some(stripped) = stripped(text) {
                *text = stripped.into();
            }
        }
        self
    }

    /// Returns whether one of its places names a source file with its folder.
    #[must_use]
    pub fn has_paths(&self) -> bool {
        self.recording.origins.texts.iter().any(|text| stripped(text).is_some())
    }
}

/// Returns a place such as `forward (/home/me/model.py:12), in aten::mm` with the name alone of its file; `None` where it has no
/// path. A place that was cut within the path of its file keeps nothing of that.
fn stripped(place: &str) -> Option<String> {
    // The name of a function in C++ may have parentheses, too: what could be a path goes.
    let separator = place.rfind(['/', '\\'])?;
    let opening = place[..separator].find(" (")? + 2;
    let name = &place[separator + 1..];
    let name = if name.contains(':') { name } else { "..." };
    Some(format!("{}{name}", &place[..opening]))
}

#[cfg(test)]
mod tests {
    use super::stripped;

    #[test]
    fn a_place_keeps_the_name_of_its_file() {
        for (place, expected) in [
            ("forward (/home/me/model.py:12), in aten::mm", "forward (model.py:12), in aten::mm"),
            (r"forward (C:\Users\me\model.py:12)", "forward (model.py:12)"),
            ("load (/home/me/a (copy)/model.py:1)", "load (model.py:1)"),
            (
                "at::_ops::mm::call(at::Tensor const&) (/opt/torch/lib/libtorch_cpu.so:0)",
                "at::_ops::mm::call(at::Tensor const&) (libtorch_cpu.so:0)",
            ),
            ("forward (/home/me/secret_pro", "forward (..."),
        ] {
            assert_eq!(stripped(place).as_deref(), Some(expected), "{place}");
            assert_eq!(stripped(expected), None, "{place}");
        }
        for place in ["forward (model.py:12)", "<module> (<stdin>:1)", "operator/", ""] {
            assert_eq!(stripped(place), None, "{place}");
        }
    }
}
