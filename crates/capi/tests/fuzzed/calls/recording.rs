//! Recordings of calls, replays, and what is said of them.

use super::*;

impl Calls {
    pub(super) fn recording(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let on = book.is_some_and(|book| self.books[book].recording.is_some());
        match record.what % 8 {
            0..=2 => {
                let ending = if record.how.is_multiple_of(2) { "gz" } else { "txt" };
                self.recordings += 1;
                let path = self.environment.folder.join(format!("{}.{ending}", self.recordings));
                let text = CString::new(path.to_str().expect("UTF-8")).expect("a path");
                let status = c!(gapless_record_start(handle, text.as_ptr()));
                let allowed = match book {
                    None => GAPLESS_ERROR_INVALID_HANDLE,
                    Some(_) if on => GAPLESS_ERROR_IN_USE,
                    Some(_) => GAPLESS_OK,
                };
                expect(status, &[allowed], record);
                if let (Some(book), GAPLESS_OK) = (book, status) {
                    self.books[book].recording = Some(path);
                }
            }
            3 => {
                let path = if record.how < 128 { null() } else { c"/nowhere/at/all".as_ptr() };
                let status = c!(gapless_record_start(handle, path));
                assert!(status != GAPLESS_OK && status != GAPLESS_ERROR_INTERNAL, "{record:?}: {status}");
            }
            4 | 5 => {
                let labels = [c"step", c"two\nlines\r", c"", c"\xff\xfe", c"# no comment"];
                let label = labels[usize::from(record.how) % labels.len()];
                let good = label.to_str().is_ok();
                let status = c!(gapless_record_mark(handle, if record.how == 255 { null() } else { label.as_ptr() }));
                let good = good && record.how != 255;
                let allowed: &[gapless_status] = match book {
                    Some(_) if good => &[GAPLESS_OK],
                    None if good => &[GAPLESS_ERROR_INVALID_HANDLE],
                    _ => &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_INVALID_HANDLE],
                };
                expect(status, allowed, record);
            }
            _ => {
                let status = c!(gapless_record_stop(handle));
                let allowed = match book {
                    None => GAPLESS_ERROR_INVALID_HANDLE,
                    Some(_) if on => GAPLESS_OK,
                    Some(_) => GAPLESS_ERROR_NOT_FOUND,
                };
                expect(status, &[allowed], record);
                if let Some(path) = book.and_then(|book| self.books[book].recording.take()) {
                    read_recording(&path, self.next_stamp);
                }
            }
        }
    }

    pub(super) fn replay(&mut self, record: Record) {
        let options: [(&CStr, bool); 8] = [
            (c"{}", true),
            (c"{\"policies\":[]}", true),
            (c"{\"policies\":[\"caching\"],\"capacity_bytes\":4194304}", true),
            (c"{\"search_capacity\":true,\"policies\":[\"gapless\"]}", true),
            (c"{\"capacity_bytes\":-1}", false),
            (c"{\"capacity\":1}", false),
            (c"[", false),
            (c"\xff", false),
        ];
        let (options, good) = options[usize::from(record.what) % options.len()];
        let file = if record.handle < 192 { "trace" } else { "missing" };
        let path = CString::new(self.environment.folder.join(file).to_str().expect("UTF-8")).expect("a path");
        let path = if record.handle == 255 { null() } else { path.as_ptr() };
        let call = |buffer: *mut c_char, capacity, needed: *mut u64| {
            c!(gapless_replay_json(path, options.as_ptr(), buffer, capacity, needed))
        };
        let mut needed = UNTOUCHED as u64;
        let status = call(null_mut(), 0, &raw mut needed);
        if good && record.handle < 192 {
            expect(status, &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
            // The time that a replay takes is part of what is written, so that the size is not always the same.
            assert!((3..1 << 16).contains(&needed), "{needed} bytes");
        } else {
            expect(status, &[GAPLESS_ERROR_INVALID_ARGUMENT], record);
            assert_eq!(needed, UNTOUCHED as u64, "{record:?}");
        }
    }

    pub(super) fn explain(&mut self, record: Record) {
        let folder = &self.environment.folder;
        let page = format!("{{\"html\":{:?},\"json\":{:?}}}", folder.join("page.html"), folder.join("line.json"));
        let nowhere = format!("{{\"html\":{:?}}}", folder.join("missing/page.html"));
        let options: [(&str, bool); 8] = [
            ("{}", true),
            (&page, true),
            (&nowhere, true),
            ("{\"threads\":2}", true),
            ("{\"threads\":0}", false),
            ("{\"snapshot_device\":0}", false),
            ("{\"device\":1}", false),
            ("[", false),
        ];
        let (options, good) = options[usize::from(record.what) % options.len()];
        let options = CString::new(options).expect("no NUL");
        let file = if record.handle < 192 { "trace" } else { "missing" };
        let path = CString::new(folder.join(file).to_str().expect("UTF-8")).expect("a path");
        let path = if record.handle == 255 { null() } else { path.as_ptr() };
        let mut needed = UNTOUCHED as u64;
        let status = c!(gapless_explain_json(path, options.as_ptr(), null_mut(), 0, &raw mut needed));
        if good && record.handle < 192 {
            expect(status, &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
            assert!((3..1 << 16).contains(&needed), "{needed} bytes");
        } else {
            expect(status, &[GAPLESS_ERROR_INVALID_ARGUMENT], record);
            assert_eq!(needed, UNTOUCHED as u64, "{record:?}");
        }
    }
}

/// A recording is a trace whose ops are no more than the calls.
pub(super) fn read_recording(path: &Path, served: u64) {
    let trace = gapless_trace::Trace::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(trace.allocations() <= served, "{} allocations were recorded, of {served}", trace.allocations());
    let _ = std::fs::remove_file(path);
}
