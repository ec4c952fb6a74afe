//! The result for one file: a line of `gapless advise --json`. Tables, pages and comparisons are made of results alone, so that
//! they are the same wherever the results come from.

use gapless_trace::advice::Advice;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The result for one file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FileResult {
    version: u32,
    /// The file, as it was named.
    pub file: String,
    /// The policies that survive, the simplest first. It follows from the advice, and is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    survivors: Option<Vec<String>>,
    /// What was found in it.
    #[serde(flatten)]
    pub found: Found,
}

/// What was found in a file.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum Found {
    /// The advice.
    Advice(Box<Advice>),
    /// Why there is no advice.
    Error {
        /// The reason.
        error: String,
    },
}

/// Why a JSON value is no result for one file.
#[derive(Debug, thiserror::Error)]
pub enum NoResult {
    /// It is of another kind.
    #[error("is no result of gapless advise --json: it has no version and no file")]
    Other,
    /// It is of a version with another form.
    #[error(
        "has results of version {found}, and this is gapless {}, which reads version {VERSION}: make them with it",
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// What it has for a version.
        found: Value,
    },
    /// It lacks a key, or has something else for it.
    #[error("has a result of gapless advise --json that is not whole: {0}")]
    Broken(#[from] serde_json::Error),
}

impl FileResult {
    /// Returns the result for the file that `path` names.
    pub fn new(path: &Path, found: Found) -> Self {
        Self::of(path.to_string_lossy().into_owned(), found)
    }

    fn of(file: String, found: Found) -> Self {
        let survivors = match &found {
            Found::Advice(advice) => Some(advice.survivors().iter().map(|policy| policy.setting.clone()).collect()),
            Found::Error { .. } => None,
        };
        Self { version: VERSION, file, survivors, found }
    }

    /// Reads an object that `--json` printed. Returns `None` for the one for all files.
    pub fn from_json(mut value: Value) -> Result<Option<Self>, NoResult> {
        match value.get("version") {
            None => return Err(NoResult::Other),
            Some(version) if *version != VERSION => return Err(NoResult::OtherVersion { found: version.clone() }),
            Some(_) => {}
        }
        if value.get("files").is_some() {
            return Ok(None);
        }
        let Some(Value::String(file)) = value.get_mut("file").map(Value::take) else { return Err(NoResult::Other) };
        let found = match value.get("error") {
            Some(error) => Found::Error { error: String::deserialize(error)? },
            None => Found::Advice(serde_json::from_value(value)?),
        };
        Ok(Some(Self::of(file, found)))
    }
}

/// Number of the form that results have. It changes when a key goes away or means something else.
pub const VERSION: u32 = 1;
