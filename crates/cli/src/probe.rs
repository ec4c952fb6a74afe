//! `gapless probe`: answers every question about the device by experiment, each in a process of its own, because some
//! experiments lose the device or never return.

use super::{Failure, Outcome, gpu};
use clap::Args;
use gapless::driver::cuda::{CudaBuilder, DeviceInfo, OpenError};
use gapless_probe::{Answer, Question, Settings};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `gapless probe`.
#[derive(Debug, Args)]
pub(super) struct ProbeArguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// The GPU, counted from 0
    #[arg(long, default_value_t = 0)]
    device: u32,

    /// Use this driver library instead of the installed one
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Answer only these questions, given by their ids
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,

    /// Give up on a question after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,

    /// Start no further question after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    total: u64,

    /// Repeat what has to go right every time so often
    #[arg(long, value_name = "COUNT", default_value_t = Settings::default().rounds)]
    rounds: u64,

    /// Answer one question in this process
    #[arg(long, hide = true, value_name = "ID")]
    here: Option<String>,

    /// Answer this part of it
    #[arg(long, hide = true, value_name = "NAME")]
    part: Option<String>,
}

impl ProbeArguments {
    fn builder(&self) -> CudaBuilder {
        gpu::builder(self.device, self.library.as_deref())
    }
}

/// Asks the questions one after the other and prints the answers. A question that fails does not stop the others.
pub(super) fn run(arguments: &ProbeArguments) -> Result<Outcome, Failure> {
    if let Some(id) = &arguments.here {
        return ask_here(arguments, id);
    }
    if let Some(unknown) = arguments.only.iter().find(|id| find(id).is_none()) {
        let known: Vec<&str> = Question::ALL.iter().map(|question| question.id).collect();
        let text = format!("there is no question '{unknown}': choose from {}", known.join(", "));
        return Err(Failure::BadArguments(text));
    }
    // Opened to see whether there is a device at all, and closed again: every experiment opens its own.
    let (info, file, version) = match describe(arguments) {
        Ok(facts) => facts,
        Err(error) => {
            let mut out = io::stdout().lock();
            if arguments.json {
                writeln!(out, "{}", json!({ "problem": error.to_string() }))?;
            } else {
                writeln!(out, "there is nothing to measure: {error}")?;
            }
            return Ok(Outcome::NoDevice);
        }
    };
    let mut answers = serde_json::Map::new();
    let deadline = Instant::now() + Duration::from_secs(arguments.total);
    for question in Question::ALL {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|id| id == question.id) {
            continue;
        }
        if arguments.json {
            eprintln!("{}: {}", question.id, question.text);
        }
        let answer = ask_apart(arguments, question, deadline);
        if arguments.json {
            eprintln!("  {}", summary(&answer));
        } else {
            writeln!(io::stdout(), "{}: {}\n  {}", question.id, question.text, summary(&answer))?;
        }
        answers.insert(question.id.to_owned(), answer);
    }
    if arguments.json {
        let report = json!({
            "gapless": env!("CARGO_PKG_VERSION"),
            "library": file,
            "cuda": version,
            "device": info,
            "answers": answers,
        });
        writeln!(io::stdout(), "{report}")?;
    }
    Ok(Outcome::Success)
}

fn find(id: &str) -> Option<&'static Question> {
    Question::ALL.iter().find(|question| question.id == id)
}

fn describe(arguments: &ProbeArguments) -> Result<(DeviceInfo, String, String), OpenError> {
    let driver = gpu::open(arguments.builder())?;
    let library = driver.library();
    Ok((driver.info().clone(), library.file().to_owned(), library.version().to_string()))
}

fn ask_here(arguments: &ProbeArguments, id: &str) -> Result<Outcome, Failure> {
    let Some(question) = find(id) else {
        return Err(Failure::BadArguments(format!("there is no question '{id}'")));
    };
    let settings = Settings { rounds: arguments.rounds, part: arguments.part.clone() };
    let answer: Answer = question.ask(arguments.builder(), &settings);
    let line = serde_json::to_string(&answer).map_err(io::Error::from)?;
    writeln!(io::stdout(), "{line}")?;
    Ok(Outcome::Success)
}

/// Asks the question in a process of its own, or each of its parts, and returns the answer, or why there is none.
fn ask_apart(arguments: &ProbeArguments, question: &Question, deadline: Instant) -> Value {
    if question.parts.is_empty() {
        return ask_process(arguments, question, None, deadline);
    }
    let start = Instant::now();
    let mut parts = serde_json::Map::new();
    for part in question.parts {
        let mut answer = ask_process(arguments, question, Some(part), deadline);
        let outcome = if answer["error"].is_null() {
            answer["value"].take()
        } else {
            json!({ "error": answer["error"], "signal": answer["signal"] })
        };
        parts.insert((*part).to_owned(), outcome);
    }
    let seconds = start.elapsed().as_secs_f64();
    json!({ "id": question.id, "question": question.text, "value": parts, "seconds": seconds })
}

/// Asks a question, or a part of one, in a process of its own.
fn ask_process(arguments: &ProbeArguments, question: &Question, part: Option<&str>, deadline: Instant) -> Value {
    let start = Instant::now();
    let failed = |why: String, signal: Option<i32>| {
        json!({
            "id": question.id,
            "question": question.text,
            "value": null,
            "error": why,
            "signal": signal,
            "seconds": start.elapsed().as_secs_f64(),
        })
    };
    let limit = Duration::from_secs(arguments.limit).min(deadline.saturating_duration_since(start));
    if limit.is_zero() {
        return failed("not asked: the time for all questions was used up".to_owned(), None);
    }
    let child = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.args(["probe", "--here", question.id, "--device", &arguments.device.to_string()]);
        command.args(["--rounds", &arguments.rounds.to_string()]);
        if let Some(part) = part {
            command.args(["--part", part]);
        }
        if let Some(path) = &arguments.library {
            command.arg("--library").arg(path);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot start a process for the question: {error}"), None),
    };
    let status = wait(&mut child, limit);
    let mut text = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        // If the read fails, the text is cut short and does not parse as an answer.
        let _ = pipe.read_to_string(&mut text);
    }
    // An answer counts even if its process then took too long to end.
    serde_json::from_str(text.trim()).unwrap_or_else(|_| match status {
        Some(status) => failed(format!("the process ended without an answer: {status}"), status.signal()),
        None => failed(format!("no answer within {} s", limit.as_secs()), None),
    })
}

/// Returns the exit status, or `None` if the process had to be killed. Answers are shorter than a pipe's buffer, so a
/// process can always end before its answer is read.
fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                // Killing fails only if the process has just ended; the wait is short either way.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

fn summary(answer: &Value) -> String {
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => format!("failed: {error}"),
        None => answer.get("value").unwrap_or(&Value::Null).to_string(),
    }
}

/// Shown below the list of options.
pub(super) const AFTER_HELP: &str = "\
Exit code: 0 if the questions were asked (each answer says whether its experiment succeeded), 4 without a usable GPU.";
