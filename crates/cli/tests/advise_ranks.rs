//! `gapless advise` for the ranks of one job: the table, its JSON and its page, from recordings and merged from results.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn advise(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapless")).current_dir(folder).arg("advise").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The text without the table's lines and breaks.
fn in_a_line(output: &Output) -> String {
    stdout(output).replace(['┆', '\n'], " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lines(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A program with a device of 170 MiB: 40 blocks of 4 MiB, of which `freed` are freed, every other one first, and a request of
/// `request_mib` that is refused, unless it is 0.
fn recording(freed: u64, request_mib: u64) -> String {
    let mut text = String::from("# capacity_bytes 178257920\n");
    text.extend((0..40).map(|id| format!("a {id} 4194304 0\n")));
    text.extend(
        (0..20).map(|n| 2 * n).chain((0..20).map(|n| 2 * n + 1)).take(freed as usize).map(|id| format!("f {id}\n")),
    );
    if request_mib > 0 {
        text += &format!("r {} 0\n", request_mib << 20);
    }
    text
}

/// A folder with the recordings `ranks/rank_N.trace`.
fn job(recordings: &[String]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("ranks")).unwrap();
    for (rank, text) in recordings.iter().enumerate() {
        std::fs::write(folder.path().join(format!("ranks/rank_{rank}.trace")), text).unwrap();
    }
    folder
}

/// The recordings of a job, in an order that is not theirs.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder.join("ranks"))
        .unwrap()
        .map(|entry| format!("ranks/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    names.sort();
    names.reverse();
    names
}

fn of<'a>(options: &[&'a str], files: &'a [String]) -> Vec<&'a str> {
    options.iter().copied().chain(files.iter().map(String::as_str)).collect()
}

/// Writes what `--json` says of each file by itself, as the ranks of a job do, and returns the names.
fn results(folder: &Path, files: &[String]) -> Vec<String> {
    std::fs::create_dir_all(folder.join("json")).unwrap();
    let one = |(index, file): (usize, &String)| {
        let name = format!("json/{index}.json");
        std::fs::write(folder.join(&name), advise(folder, &["--json", file]).stdout).unwrap();
        name
    };
    files.iter().enumerate().map(one).collect()
}

/// Three ranks that went through and one that failed, and which gapless alone would have saved.
fn one_fails() -> tempfile::TempDir {
    job(&[recording(20, 0), recording(20, 0), recording(20, 64), recording(20, 0)])
}

#[test]
fn every_rank_has_a_line_and_all_have_one_verdict() {
    let folder = one_fails();
    let output = advise(folder.path(), &of(&[], &files(folder.path())));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
    let text = stdout(&output);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("rank_")).collect();
    assert_eq!(rows.len(), 4, "{text}");
    for (rank, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.split('┆').map(str::trim).collect();
        let odd = if rank == 2 { " (odd)" } else { "" };
        assert_eq!(cells[0], format!("rank_{rank}.trace{odd}"), "sorted, without the folder of all");
        assert_eq!(cells[1], "160 MiB");
        assert_eq!(cells[2], if rank == 2 { "60" } else { "-" });
        assert!(cells[3].contains("of 4 MiB"), "{row}");
    }
    for part in [
        "4 ranks, of which 1 failed; peaks of 160 MiB to 160 MiB",
        "The odd one is rank_2.trace: it alone failed.",
        "Survives on all: gapless.",
        "Simplest: python -m gapless.torch SCRIPT",
        "Fits all: the RTX 4060 (7.11 GiB usable), with gapless",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_table_fits_80_columns() {
    let long = job(&[recording(20, 64), recording(20, 64)]);
    let deep = "ranks/a folder with a long name/and another one with a longer name/rank_of_many_ranks.trace";
    std::fs::create_dir_all(long.path().join(deep).parent().unwrap()).unwrap();
    std::fs::rename(long.path().join("ranks/rank_1.trace"), long.path().join(deep)).unwrap();
    let output = stdout(&advise(long.path(), &["ranks/rank_0.trace", deep, "no such file"]));
    for line in output.lines().filter(|line| line.contains(['┆', '═'])) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn json_has_an_object_for_each_file_and_one_for_all() {
    let folder = one_fails();
    let output = advise(folder.path(), &of(&["--json"], &files(folder.path())));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = lines(&output);
    let names: Vec<&str> = lines[..4].iter().map(|line| line["file"].as_str().unwrap()).collect();
    assert_eq!(names, [0, 1, 2, 3].map(|rank| format!("ranks/rank_{rank}.trace")));
    // The object of a file is that of the file by itself.
    let alone = advise(folder.path(), &["--json", "ranks/rank_2.trace"]);
    assert_eq!(serde_json::from_slice::<Value>(&alone.stdout).unwrap(), lines[2]);
    let all = lines.last().unwrap().as_object().unwrap();
    let mut keys: Vec<&str> = all.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "failed",
            "files",
            "fits",
            "growing",
            "incomplete",
            "not_read",
            "odd",
            "peak_live_bytes",
            "policies",
            "ranks",
            "survivors",
            "version",
            "without_verdict"
        ]
    );
    assert_eq!((lines.len(), &all["files"], &all["ranks"], &all["version"]), (5, &4.into(), &4.into(), &1.into()));
    assert_eq!(all["odd"], serde_json::json!({"rank": "ranks/rank_2.trace", "why": "failed_alone"}));
    assert_eq!(all["survivors"], serde_json::json!(["gapless"]));
    let native = all["policies"].as_array().unwrap().iter().find(|policy| policy["setting"] == "native").unwrap();
    assert_eq!(native["fails_on"], serde_json::json!(["ranks/rank_2.trace"]));
    assert_eq!(
        (all["fits"][0]["setting"].as_str(), all["fits"][0]["gpu"].as_str()),
        (Some("gapless"), Some("RTX 4060"))
    );
}

/// What is merged from the results of each file is what the recordings give, to the byte: text, JSON and page.
#[test]
fn merged_results_give_the_same_bytes() {
    let folder = job(&[
        recording(20, 0),
        recording(20, 64),
        "a 1 100 0\nf 2\n".into(),
        // As large as the device, with frames in its name.
        recording(0, 64),
        // RMM's way to begin in the middle: no verdict.
        "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n1,2,free,0x900,4096,0x0\n".into(),
        // A request that was survived, and steps.
        format!("{}m step\n", recording(20, 64)),
    ]);
    // More than nine, so that the order of names is not that of numbers.
    for rank in 6..12 {
        std::fs::write(folder.path().join(format!("ranks/rank_{rank}.trace")), recording(rank, 0)).unwrap();
    }
    let files = files(folder.path());
    let json = results(folder.path(), &files);
    for options in [&[][..], &["--json"]] {
        let direct = advise(folder.path(), &of(&[options, &["--html", "direct.html"]].concat(), &files));
        let merged = advise(folder.path(), &of(&[options, &["--merge", "--html", "merged.html"]].concat(), &json));
        assert_eq!((direct.status.code(), merged.status.code()), (Some(2), Some(2)), "{}", stderr(&merged));
        assert_eq!(stdout(&direct), stdout(&merged));
        assert!(direct.stdout.len() > 1000);
        let page = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        assert!(page("direct.html") == page("merged.html"), "the pages differ");
    }
    // All results in one file, with the line for all of them, are the same again.
    let lines = advise(folder.path(), &of(&["--json"], &files)).stdout;
    std::fs::write(folder.path().join("all.json"), &lines).unwrap();
    let merged = advise(folder.path(), &["--merge", "--json", "all.json"]);
    assert_eq!(String::from_utf8(lines).unwrap(), stdout(&merged));
}

#[test]
fn a_policy_has_to_survive_on_all_ranks() {
    // One that native serves, one that nothing but gapless does, and one that nothing does.
    let folder = job(&[recording(20, 0), recording(20, 64), recording(0, 64)]);
    let code = |ranks: &[&str]| advise(folder.path(), ranks).status.code();
    let [easy, hard, hopeless] = ["ranks/rank_0.trace", "ranks/rank_1.trace", "ranks/rank_2.trace"];
    assert_eq!(code(&[easy, hard]), Some(0));
    assert_eq!(code(&["--setting", "native", easy, hard]), Some(3));
    assert_eq!(code(&[easy, hopeless]), Some(3));
    assert_eq!(code(&[easy, hard, "no such file"]), Some(2));
    let output = advise(folder.path(), &[easy, hard, hopeless]);
    let said = in_a_line(&output);
    assert!(
        said.contains("No policy that was tried survives on all: gapless comes closest, and fails on rank_2.trace."),
        "{said}"
    );
}

#[test]
fn one_bad_file_leaves_the_others() {
    let folder = one_fails();
    std::fs::write(folder.path().join("ranks/rank_1.trace"), "a 1 100 0\nf 2\n").unwrap();
    std::fs::create_dir(folder.path().join("ranks/rank_9.trace")).unwrap();
    let output = advise(folder.path(), &[&of(&[], &files(folder.path()))[..], &["ranks/none.trace"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let said = in_a_line(&output);
    for part in [
        "rank_1.trace - - no advice: line 2: free of id 2",
        "rank_9.trace - - no advice: is a folder: name the files in it",
        "none.trace - - no advice: cannot be read: No such file",
        "3 ranks, of which 1 failed",
        "3 files could not be advised on: their lines say why.",
        "The odd one is rank_2.trace",
        "Survives on all: gapless.",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Each file is given once, however it is named.
#[test]
fn a_file_given_twice_is_refused() {
    let folder = one_fails();
    let one = "ranks/rank_1.trace";
    std::os::unix::fs::symlink("rank_1.trace", folder.path().join("ranks/link")).unwrap();
    for again in [one, "./ranks/../ranks/rank_1.trace", "ranks/link"] {
        for option in [&[][..], &["--merge"]] {
            let output = advise(folder.path(), &[option, &[one, again]].concat());
            assert_eq!(output.status.code(), Some(2));
            assert!(stderr(&output).contains(&format!("{again} is given twice")), "{}", stderr(&output));
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn arguments_that_do_not_go_together_are_refused() {
    let folder = one_fails();
    let [one, two] = ["ranks/rank_1.trace", "ranks/rank_2.trace"];
    for (arguments, hint) in [
        (&["--merge"][..], "FILE"),
        (&["--merge", "--device", "1GiB", one], "--device"),
        (&["--merge", "--setting", "native", one], "--setting"),
        (&["--merge", "--gpu", "T4", one], "--gpu"),
        (&["--merge", "--snapshot-device", "0", one], "--snapshot-device"),
        (&["--merge", one, "--against", two], "--against"),
        (&["--json", "--html", "-", one], "name a file"),
        (&["--json", "--html", "-", one, two], "name a file"),
    ] {
        let output = advise(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(hint), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty() && !folder.path().join("-").exists(), "{arguments:?}");
    }
}

/// What is no result has a line that says what it is, and the others stay.
#[test]
fn files_without_results_are_named_in_a_merge() {
    let folder = one_fails();
    let result = String::from_utf8(advise(folder.path(), &["--json", "ranks/rank_0.trace"]).stdout).unwrap();
    let other_version = result.replacen("\"version\":1", "\"version\":2", 1);
    let not_whole = result.replacen("\"policies\"", "\"policy\"", 1);
    let wrong_type = result.replacen("\"peak_live_bytes\":", "\"peak_live_bytes\":-", 1);
    let cut_short = &result[..result.len() / 2];
    let a_recording = recording(1, 0);
    let all_alone = "{\"version\":1,\"files\":0}";
    let cases: [(&str, &[u8], &str); 10] = [
        ("version.json", other_version.as_bytes(), "has results of version 2, and this is gapless 0"),
        ("part.json", not_whole.as_bytes(), "that is not whole: missing field `policies`"),
        ("type.json", wrong_type.as_bytes(), "that is not whole: invalid value: integer"),
        ("cut.json", cut_short.as_bytes(), "ends in the middle of a result"),
        ("empty.json", b"", "is empty"),
        ("none.json", all_alone.as_bytes(), "is empty"),
        ("other.json", b"{\"loss\": 1.5}", "is no result of gapless advise --json"),
        ("list.json", b"[1, 2]", "is no result of gapless advise --json"),
        ("recording.json", a_recording.as_bytes(), "is no JSON: give a recording without --merge"),
        ("pickle.json", b"\x80\x04}\x94.", "is no JSON: give a recording without --merge"),
    ];
    std::fs::create_dir(folder.path().join("json")).unwrap();
    std::fs::write(folder.path().join("json/good.json"), &result).unwrap();
    for (name, content, reason) in cases {
        std::fs::write(folder.path().join("json").join(name), content).unwrap();
        let output = advise(folder.path(), &["--merge", "json/good.json", &format!("json/{name}")]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        let said = in_a_line(&output);
        assert!(said.contains(reason) && said.contains(name), "{name}: {said}");
        assert!(said.contains("1 rank, of which none failed") && said.contains("rank_0.trace"), "{name}: {said}");
    }
    for (name, reason) in [("json", "is a folder: name the files in it, such as DIR/*.json"), ("none", "No such file")]
    {
        let output = advise(folder.path(), &["--merge", "json/good.json", name]);
        assert!(in_a_line(&output).contains(reason), "{}", stdout(&output));
    }
    // A result among recordings says where it belongs.
    let output = advise(folder.path(), &["ranks/rank_1.trace", "json/good.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(in_a_line(&output).contains("gapless advise takes its own results with --merge"), "{}", stdout(&output));
}

/// Machines may have files of the same name.
#[test]
fn ranks_of_one_name_are_told_apart() {
    let folder = one_fails();
    let results = |rank: usize| advise(&folder.path().join("ranks"), &["--json", &format!("rank_{rank}.trace")]).stdout;
    let (one, two) = (results(0), results(2));
    let renamed = String::from_utf8(two).unwrap().replace("\"file\":\"rank_2.trace\"", "\"file\":\"rank_0.trace\"");
    std::fs::write(folder.path().join("a.json"), &one).unwrap();
    std::fs::write(folder.path().join("b.json"), &renamed).unwrap();
    std::fs::write(folder.path().join("c.json"), [&*one, &*one].concat()).unwrap();
    let output = advise(folder.path(), &["--merge", "--json", "a.json", "b.json", "c.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = lines(&output);
    let names: Vec<&str> = lines.iter().filter_map(|line| line["file"].as_str()).collect();
    assert_eq!(
        names,
        ["rank_0.trace (a.json)", "rank_0.trace (b.json)", "rank_0.trace (c.json)", "rank_0.trace (c.json) 2"]
    );
    assert_eq!(lines[4]["odd"]["rank"], "rank_0.trace (b.json)");
}

#[test]
fn results_come_from_standard_input_too() {
    let folder = one_fails();
    let files = files(folder.path());
    let direct = advise(folder.path(), &of(&["--json"], &files));
    let path: PathBuf = folder.path().join("all.json");
    std::fs::write(&path, &direct.stdout).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["advise", "--merge", "--json", "-"])
        .stdin(std::fs::File::open(&path).unwrap())
        .output()
        .unwrap();
    assert_eq!(stdout(&output), stdout(&direct));
}

#[test]
fn the_page_has_verdict_and_table_and_a_report_for_each_rank() {
    let folder = one_fails();
    std::fs::write(folder.path().join("ranks/<img src=x>.trace"), recording(20, 0)).unwrap();
    std::fs::write(folder.path().join("ranks/bad.trace"), "f 1\n").unwrap();
    let output = advise(folder.path(), &of(&["--html", "page.html"], &files(folder.path())));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    let html = page.split_once("<script>").unwrap().0;
    assert!(
        html.contains("The odd one is rank_2.trace: it alone failed.") && html.contains("Survives on all: gapless.")
    );
    assert_eq!((html.matches("<button").count(), html.matches("hidden><td").count()), (5, 5), "a report for each");
    assert!(html.contains("PyTorch refused a request of 64 MiB at op 60"), "the report of a rank");
    assert!(html.contains("&lt;img src=x&gt;.trace") && !page.contains("<img"));
    assert!(html.contains("<th scope=\"row\">bad.trace</th>") && html.contains("no advice: line 1: free of id 1"));
    let output = advise(folder.path(), &of(&["--html", "no/such/folder.html"], &files(folder.path())));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot write the page") && !output.stdout.is_empty(), "{}", stderr(&output));
}

/// The job script of docs/using/advise.md, once for each task of its array, and the command that follows it.
#[test]
fn the_example_for_slurm_gives_the_table_of_all() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/using/advise.md")).unwrap();
    let script =
        docs.split("```").find(|block| block.contains("#SBATCH --array")).unwrap().strip_prefix("sh\n").unwrap();
    let merge = docs.split("--wrap \"").nth(1).unwrap().split('"').next().unwrap();
    // One goes through, one fails and nothing helps, one is bad, and one was never written.
    let folder = job(&[recording(20, 0), recording(0, 64), "f 1\n".into()]);
    for rank in 0..3 {
        let name = |ending: &str| folder.path().join(format!("ranks/rank_{rank}.{ending}"));
        std::fs::rename(name("trace"), name("pickle")).unwrap();
    }
    std::fs::create_dir(folder.path().join("json")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_gapless")).parent().unwrap().to_str().unwrap();
    let shell = |script: &str, rank: &str| {
        let path = format!("{program}:{}", std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.current_dir(folder.path()).args(["-c", script]).env("PATH", path).env("SLURM_ARRAY_TASK_ID", rank);
        shell.output().unwrap()
    };
    for rank in ["0", "1", "2", "3"] {
        let task = shell(script, rank);
        assert_eq!(task.status.code(), Some(0), "rank {rank}: {}", stderr(&task));
    }
    let merged = shell(merge, "");
    let files = [0, 1, 2, 3].map(|rank| format!("ranks/rank_{rank}.pickle"));
    let direct = advise(folder.path(), &of(&["--html", "direct.html"], &files));
    assert_eq!((merged.status.code(), stdout(&merged)), (Some(2), stdout(&direct)));
    assert!(stdout(&direct).contains("rank_1.pickle (odd)"), "{}", stdout(&direct));
    let page = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(page("job.html") == page("direct.html"));
}
