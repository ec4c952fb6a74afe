//! Where a page goes.

use crate::Failure;
use gapless_report::{printable, write};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

/// Where a page goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Stdout,
    File(PathBuf),
}

impl From<OsString> for Destination {
    fn from(text: OsString) -> Self {
        if text == "-" { Self::Stdout } else { Self::File(text.into()) }
    }
}

impl Destination {
    /// Writes the page.
    ///
    /// # Errors
    /// A folder that does not exist is a bad argument; everything else is a failure to write. Both name the file and what failed.
    pub(crate) fn write(&self, page: &str) -> Result<(), Failure> {
        let path = match self {
            Self::Stdout => return Ok(io::stdout().lock().write_all(page.as_bytes())?),
            Self::File(path) => path,
        };
        write::whole(path, page.as_bytes()).map_err(|(what, error)| {
            let text = format!("cannot write the page to {}: {what}: {error}", printable(&path.to_string_lossy()));
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    Failure::BadArguments(format!("{text}. Name a file in a folder that exists"))
                }
                _ => Failure::Page(text),
            }
        })
    }
}
