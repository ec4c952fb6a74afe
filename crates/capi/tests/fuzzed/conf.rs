//! Any text as a `GAPLESS_CONF`, and what the parser must hold to. Shared with the fuzz target `conf`.

use gapless::ChunkPolicy;
use gapless::driver::cuda::Sharing;
use gapless_capi::{
    Budget, Conf, ConfError, GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_OK, Peers, gapless_check_conf, gapless_last_error,
};
use std::ffi::{CStr, CString};

const KEYS: [&str; 12] = [
    "budget",
    "slack",
    "chunk",
    "region",
    "host",
    "backups",
    "ipc",
    "sharing",
    "peers",
    "log",
    "record",
    "report_on_failure",
];

/// PyTorch's keys that have an effect here.
const PYTORCH_KEYS: [&str; 1] = ["per_process_memory_fraction"];

/// Parses a text. What is accepted is in range and reads back the same once it is written down; what is refused is reported
/// with what would be right; the C interface says the same.
///
/// # Panics
/// When any of that is not so.
pub fn check_conf(text: &str) {
    let parsed = Conf::parse(text);
    check_c_interface(text, parsed.as_ref().err());
    match parsed {
        Ok(conf) => {
            check_ranges(&conf);
            let written = write(&conf);
            let again = Conf::parse(&written).unwrap_or_else(|error| panic!("{written:?}, written: {error}"));
            let silent = Conf { warnings: Vec::new(), ..conf };
            assert_eq!(again, silent, "{text:?}, written as {written:?}");
        }
        Err(error) => check_error(text, &error),
    }
}

fn check_c_interface(text: &str, error: Option<&ConfError>) {
    let Ok(c_text) = CString::new(text) else { return };
    // SAFETY: a NUL-terminated string.
    let status = unsafe { gapless_check_conf(c_text.as_ptr()) };
    assert_eq!(status, if error.is_some() { GAPLESS_ERROR_INVALID_ARGUMENT } else { GAPLESS_OK }, "{text:?}");
    if let Some(error) = error {
        // SAFETY: the last error is a NUL-terminated string until the next failure on this thread.
        let message = unsafe { CStr::from_ptr(gapless_last_error()) };
        assert_eq!(message.to_str(), Ok(&*error.to_string()));
    }
}

/// Checks that each setting of a configuration is in its range, whoever uses it.
fn check_ranges(conf: &Conf) {
    match conf.budget {
        Some(Budget::Bytes(bytes)) => assert!(bytes >= 2 << 20),
        Some(Budget::Fraction(part)) => assert!(part > 0.0 && part <= 1.0, "{part}"),
        None => {}
    }
    assert!(conf.slack.is_none_or(|slack| slack >= 1.0), "{conf:?}");
    assert!(!matches!(conf.chunk, Some(ChunkPolicy::Fixed(bytes)) if bytes == 0 || !bytes.is_multiple_of(2 << 20)));
    assert!(!conf.private || conf.chunk == Some(ChunkPolicy::Fixed(2 << 20)), "{conf:?}");
    assert!(conf.region_bytes != Some(0) && conf.host_bytes != Some(0), "{conf:?}");
    if let Peers::Listed(listed) = &conf.peers {
        assert!(!listed.is_empty() && listed.is_sorted_by(|one, next| one < next), "{listed:?}");
    }
    assert!([&conf.record, &conf.backups].into_iter().flatten().all(|path| !path.as_os_str().is_empty()));
    for warning in &conf.warnings {
        let key = warning.split_once(" is PyTorch's own").map_or("", |(key, _)| key);
        assert!(!key.is_empty() && !KEYS.contains(&key) && !PYTORCH_KEYS.contains(&key), "{warning}");
    }
}

fn check_error(text: &str, error: &ConfError) {
    let message = error.to_string();
    match error {
        ConfError::NoValue { part } => assert!(text.contains(&**part) && !part.contains(':'), "{message}"),
        ConfError::UnknownKey { key } => {
            assert!(!KEYS.contains(&&**key), "{message}");
            assert!(KEYS.iter().all(|known| message.contains(known)), "{message}");
        }
        ConfError::Twice { key } => assert!(text.matches(&**key).count() >= 2, "{message}"),
        ConfError::BadValue { key, value, expected } => {
            assert!(KEYS.contains(key) || PYTORCH_KEYS.contains(key), "{message}");
            assert!(text.contains(&**value) && message.contains(expected), "{message}");
        }
        ConfError::Brackets { .. } => assert!(text.contains(['[', ']']), "{message}"),
        other => panic!("{other}"),
    }
}

/// A configuration in its own syntax. It names every field, so that a new one is not forgotten here.
fn write(conf: &Conf) -> String {
    let Conf {
        budget,
        slack,
        chunk,
        region_bytes,
        host_bytes,
        backups,
        peers,
        log,
        record,
        report_on_failure,
        private,
        sharing,
        warnings: _,
    } = conf;
    let mut parts = Vec::new();
    match *budget {
        // Not in exponents, and with a point: that is what makes it a part of the device.
        Some(Budget::Fraction(part)) if part < 1.0 => parts.push(format!("budget:{part}")),
        Some(Budget::Fraction(part)) => parts.push(format!("budget:{part:.1}")),
        Some(Budget::Bytes(bytes)) => parts.push(format!("budget:{bytes}")),
        None => {}
    }
    parts.extend(slack.map(|slack| format!("slack:{slack}")));
    parts.extend(chunk.map(|chunk| match chunk {
        ChunkPolicy::Fixed(bytes) => format!("chunk:{bytes}"),
        _ => "chunk:auto".into(),
    }));
    parts.extend(region_bytes.map(|bytes| format!("region:{bytes}")));
    parts.extend(host_bytes.map(|bytes| format!("host:{bytes}")));
    parts.extend(private.then(|| "ipc:private".into()));
    parts.extend((*sharing == Sharing::Never).then(|| "sharing:never".into()));
    match peers {
        Peers::Auto => {}
        Peers::None => parts.push("peers:none".into()),
        Peers::Listed(listed) => parts.push(format!("peers:{listed:?}")),
    }
    parts.extend(log.then(|| "log:on".into()));
    parts.extend(report_on_failure.then(|| "report_on_failure:on".into()));
    parts.extend(backups.as_ref().map(|path| format!("backups:{}", path.display())));
    parts.extend(record.as_ref().map(|path| format!("record:{}", path.display())));
    parts.join(",")
}
