//! The header of a trace: the `# key value` lines before the first op.

use crate::error::{ReadErrorKind, excerpt};

/// The header of a trace. All keys are kept in the order of the file, and those that this crate uses are parsed.
/// If a key occurs twice, its first value counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    entries: Vec<(String, String)>,
    /// Peak of live bytes, as counted by the recorder.
    pub peak_live_bytes: Option<u64>,
    /// Number of ops in the trace, as counted by the recorder.
    pub events: Option<u64>,
    /// Memory of the device in bytes.
    pub capacity_bytes: Option<u64>,
    /// Most memory that the recorded allocator may hold, in bytes.
    pub budget_bytes: Option<u64>,
    /// Memory of the device that other processes held, in bytes.
    pub external_bytes: Option<u64>,
    /// Memory of the device that was reported as free but that the driver could not provide, in bytes.
    pub driver_unusable_bytes: Option<u64>,
    /// Whether an allocator could have served the last request.
    pub satisfiable: Option<bool>,
    /// Whether an allocator could have served the last request with whole 2 MiB chunks of free memory only.
    pub satisfiable_by_whole_2mib_chunks: Option<bool>,
}

impl Header {
    /// Returns the value of `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Returns the keys and values in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Changes all sizes to what `times` makes of them. The entries stay as they are in the file.
    pub(crate) fn scale(&mut self, times: impl Fn(u64) -> u64) {
        let sizes = [
            &mut self.peak_live_bytes,
            &mut self.capacity_bytes,
            &mut self.budget_bytes,
            &mut self.external_bytes,
            &mut self.driver_unusable_bytes,
        ];
        for size in sizes.into_iter().flatten() {
            *size = times(*size);
        }
    }

    /// Adds a line with a key that this crate does not parse.
    pub(crate) fn note(&mut self, key: &str, value: String) {
        self.entries.push((key.to_owned(), value));
    }

    /// Adds one line of the file, given without its `#`.
    pub(crate) fn push(&mut self, line: &str) -> Result<(), ReadErrorKind> {
        let line = line.trim();
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        match key {
            "peak_live_bytes" => first(&mut self.peak_live_bytes, || number("peak_live_bytes", value))?,
            "events" => first(&mut self.events, || number("events", value))?,
            "capacity_bytes" => first(&mut self.capacity_bytes, || number("capacity_bytes", value))?,
            // Recordings of gapless 0.2 have the size of the device under this key.
            "device_bytes" => first(&mut self.capacity_bytes, || number("device_bytes", value))?,
            "budget_bytes" => first(&mut self.budget_bytes, || number("budget_bytes", value))?,
            "external_bytes" => first(&mut self.external_bytes, || number("external_bytes", value))?,
            "driver_unusable_bytes" => {
                first(&mut self.driver_unusable_bytes, || number("driver_unusable_bytes", value))?;
            }
            "satisfiable" => first(&mut self.satisfiable, || yes_or_no("satisfiable", value))?,
            "satisfiable_by_whole_2mib_chunks" => {
                let field = &mut self.satisfiable_by_whole_2mib_chunks;
                first(field, || yes_or_no("satisfiable_by_whole_2mib_chunks", value))?;
            }
            _ => {}
        }
        self.entries.push((key.to_owned(), value.to_owned()));
        Ok(())
    }
}

/// Sets a field that has no value yet.
fn first<T>(field: &mut Option<T>, value: impl FnOnce() -> Result<T, ReadErrorKind>) -> Result<(), ReadErrorKind> {
    if field.is_none() {
        *field = Some(value()?);
    }
    Ok(())
}

fn number(key: &'static str, value: &str) -> Result<u64, ReadErrorKind> {
    value.parse().map_err(|_| ReadErrorKind::BadHeader {
        key,
        value: excerpt(value),
        expected: "a whole number below 2^64",
    })
}

fn yes_or_no(key: &'static str, value: &str) -> Result<bool, ReadErrorKind> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(ReadErrorKind::BadHeader { key, value: excerpt(value), expected: "yes or no" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_are_parsed_and_the_first_counts() {
        let mut header = Header::default();
        for line in [" capacity_bytes 123", "capacity_bytes 456", " satisfiable no", " model a  b", "lonely", ""] {
            header.push(line).unwrap();
        }
        assert_eq!(header.capacity_bytes, Some(123));
        assert_eq!(header.satisfiable, Some(false));
        assert_eq!(header.value("model"), Some("a  b"));
        assert_eq!(header.value("lonely"), Some(""));
        assert_eq!(header.value("absent"), None);
    }

    #[test]
    fn known_keys_with_nonsense_are_refused() {
        for line in ["capacity_bytes -1", "external_bytes", "satisfiable maybe", "peak_live_bytes 99999999999999999999"]
        {
            assert!(Header::default().push(line).is_err(), "{line}");
        }
    }
}
