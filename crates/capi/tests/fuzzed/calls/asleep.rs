//! Sleep and wake: memory that goes, and comes again at its addresses.
//!
//! - S1  what sleeps and wakes between two calls has its bytes then, whoever has used it before.
//! - S2  what is asleep is what the figures say; nothing is after a wake.
//! - S3  a backup has the bytes of what is asleep, and what retains it has them after the wake.
//! - S4  what was allocated meanwhile is apart from all that is live, and what is freed meanwhile does not come back.

use super::effect::named;
use super::*;

/// Tags, and NULL for everything. No pool has the last two.
const TAGS: [Option<&CStr>; 4] = [None, Some(c"graphs"), Some(c"none"), Some(c"")];

impl Calls {
    /// Sleeps, has something happen, and wakes.
    pub(super) fn sleep(&mut self, record: Record) {
        let (device, _) = self.named_in(record);
        let Some(book) = self.torch_book(device) else { return };
        let tag = TAGS[usize::from(record.what) % TAGS.len()].map_or(null(), CStr::as_ptr);
        let backup = match record.how {
            255 => 7,
            how if how % 2 == 1 => GAPLESS_BACKUP_PAGEABLE,
            _ => GAPLESS_BACKUP_PINNED,
        };
        let status = c!(gapless_sleep(device, tag, backup, null_mut()));
        let allowed: &[gapless_status] = match record.how {
            255 => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            // The pool may be open for a capture.
            _ if self.open.iter().any(|(its, _)| *its == device) => &[GAPLESS_OK, GAPLESS_ERROR_STREAM],
            _ => &[GAPLESS_OK],
        };
        self.expect(status, allowed, record);
        let asleep = self.asleep(device);
        if status == GAPLESS_OK {
            self.meanwhile(device, book, record);
        } else {
            self.mend();
        }
        let is_faulty = self.faulty;
        let is_backed_up = status == GAPLESS_OK && tag.is_null();
        if is_backed_up {
            self.check_backups(device);
        }
        let flags = if record.number.is_multiple_of(5) { GAPLESS_WAKE_RETAIN_BACKUPS } else { 0 };
        let woke = c!(gapless_wake(device, null(), 0, flags, null_mut()));
        self.mend();
        if woke != GAPLESS_OK {
            assert!(asleep > 0 || is_faulty || woke == GAPLESS_ERROR_STREAM, "{woke}: {}", error_text());
            self.wake_at_last(device, record);
        }
        assert_eq!(self.asleep(device), 0, "S2: {record:?}");
        let live: Vec<u64> = self.process_wide_blocks();
        live.iter().filter(|addr| self.live[addr].device == device).for_each(|addr| self.verify(*addr));
        self.check_backups(device);
    }

    /// S3: what has a backup has its bytes there. Nothing else can have one, after a wake that retains it either.
    fn check_backups(&self, device: i32) {
        for addr in self.process_wide_blocks().into_iter().filter(|addr| self.live[addr].device == device) {
            let (bytes, mut host) = (self.live[&addr].bytes, without_provenance(UNTOUCHED));
            let status = c!(gapless_backup_of(device, without_provenance_mut(addr as usize), bytes, &raw mut host));
            assert!(matches!(status, GAPLESS_OK | GAPLESS_ERROR_NOT_FOUND), "{}", error_text());
            if status == GAPLESS_OK && !host.is_null() && self.is_quiet(addr) {
                for word in self.words(addr, bytes) {
                    let at = host.wrapping_byte_add((word - addr) as usize).cast::<u64>();
                    // SAFETY: the backup has as many bytes, and nothing sleeps or wakes meanwhile.
                    let found = unsafe { at.read_unaligned() };
                    assert_eq!(found, word_of(self.live[&addr].stamp), "S3: the backup of {addr:#x} at {word:#x}");
                }
            }
        }
    }

    /// A wake that failed works once there is memory, and no call fails.
    fn wake_at_last(&mut self, device: i32, record: Record) {
        if self.asleep(device) == 0 {
            return;
        }
        let awake: Vec<u64> = std::mem::take(&mut self.fresh);
        awake.iter().for_each(|addr| self.torch_free(*addr, false));
        expect(c!(gapless_wake(device, null(), 10_000, 0, null_mut())), &[GAPLESS_OK], record);
    }

    /// Allocates and frees while something is asleep.
    fn meanwhile(&mut self, device: i32, book: usize, record: Record) {
        self.fresh.clear();
        if record.number.is_multiple_of(2) {
            let bytes = u64::from(record.number % (4 << 20));
            let pointer = c!(gapless_torch_malloc(bytes as libc::ssize_t, device, null_mut()));
            if pointer.is_null() {
                self.note_refusal(true, device, bytes, null_mut());
            } else {
                self.take_in_of_device(pointer, bytes, null_mut(), book);
                self.fresh.push(pointer.addr() as u64);
            }
        }
        if record.number.is_multiple_of(3) {
            let is_plain = |addr: &u64| !self.pinned.contains_key(addr) && !self.uses.contains_key(addr);
            let found = self
                .process_wide_blocks()
                .into_iter()
                .filter(is_plain)
                .find(|addr| self.live[addr].device == device && !self.fresh.contains(addr));
            if let Some(addr) = found {
                let bytes = self.live[&addr].bytes as usize;
                c!(gapless_torch_free(without_provenance_mut(addr as usize), bytes, device, null_mut()));
                self.note_event(Action::Free, device, addr, 0, StreamId::DEFAULT);
                self.forget(addr);
            }
        }
    }

    /// Bytes of pages that are asleep.
    fn asleep(&self, device: i32) -> u64 {
        let (mut live, mut pages) = (UNTOUCHED as u64, UNTOUCHED as u64);
        expect_ok(c!(gapless_asleep(device, null(), &raw mut live, &raw mut pages)));
        assert!(live <= pages, "S2: {live} bytes in {pages}");
        pages
    }

    /// Tags, and kinds of pools.
    pub(super) fn tag(&mut self, record: Record) {
        match record.what % 3 {
            0 => {
                let tag = TAGS[usize::from(record.how) % TAGS.len()];
                let status = c!(gapless_tag_push(tag.map_or(null(), CStr::as_ptr)));
                let is_name = tag.is_some_and(|tag| !tag.is_empty());
                expect(status, &[if is_name { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_ARGUMENT }], record);
                self.tags += u32::from(is_name);
            }
            1 => {
                let allowed = if self.tags > 0 { GAPLESS_OK } else { GAPLESS_ERROR_NOT_FOUND };
                expect(c!(gapless_tag_pop()), &[allowed], record);
                self.tags = self.tags.saturating_sub(1);
            }
            _ => {
                let (device, _) = self.named_in(record);
                let Some(_) = self.torch_book(device) else { return };
                let pool = named(u64::from(record.handle % 3) + 1);
                let kind = i32::from(record.how % 3);
                let status = c!(gapless_torch_declare_pool(device, pool, kind, c"graphs".as_ptr()));
                let allowed: &[gapless_status] = match kind {
                    2 => &[GAPLESS_ERROR_INVALID_ARGUMENT],
                    _ => &[GAPLESS_OK, GAPLESS_ERROR_IN_USE],
                };
                self.expect(status, allowed, record);
                let (mut found, mut users) = (UNTOUCHED as i32, UNTOUCHED as u32);
                expect_ok(c!(gapless_torch_pool_kind(device, pool, &raw mut found)));
                expect_ok(c!(gapless_torch_pool_users(device, pool, &raw mut users)));
                assert!(status != GAPLESS_OK || users == 0 || found == kind, "{record:?}: {found} instead of {kind}");
            }
        }
    }

    pub(super) fn pop_tags(&mut self) {
        (0..std::mem::take(&mut self.tags)).for_each(|_| expect_ok(c!(gapless_tag_pop())));
    }
}
