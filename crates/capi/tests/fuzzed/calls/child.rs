//! A forked process, whose memory is a copy and whose device is its parent's.
//!
//! - F1  a call of the child that needs the driver is refused, with the kind that says why; others are served from what is cached,
//!   without touching what is live. None hangs or crashes.
//! - F2  for the parent nothing has changed: the checks behind every call look at that.

use super::effect::named;
use super::*;
use std::io::Write;

/// Seconds that a child may take: it waits for nothing.
const PATIENCE: libc::c_uint = 60;
/// How the child says which of its calls went wrong: its exit code.
const WRONG: i32 = 100;

impl Calls {
    pub(super) fn fork(&mut self, record: Record) {
        let (device, _) = self.named_in(record);
        // Once, since it takes its time; and not where a thread of a stream may hold a lock.
        if self.forked || self.environment.usage.is_none() || self.failing.is_some() {
            return;
        }
        let Some(_) = self.torch_book(device) else { return };
        self.forked = true;
        self.wait_for_uses();
        // SAFETY: the child calls this library, whose locks are free and whose driver is not called, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            // SAFETY: ends the child where a call waits for a thread that does not exist in it.
            unsafe { libc::alarm(PATIENCE) };
            let code = self.in_child(device, record);
            // SAFETY: ends the child without handlers of its parent.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        let waited = loop {
            // SAFETY: waits for the child created above.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            // The timer of a fuzzer interrupts the wait.
            if waited >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                break waited;
            }
        };
        assert_eq!((waited, status), (child, 0), "a forked process: call {}", (status >> 8) - WRONG);
    }

    /// Calls by chance. Returns 0, or which of them was answered wrongly.
    fn in_child(&self, device: i32, record: Record) -> i32 {
        let live: Vec<u64> =
            self.live.iter().filter(|(_, block)| self.is_served_by(device, block)).map(|(addr, _)| *addr).collect();
        let mut chance = u64::from(record.number) << 8 | u64::from(record.how);
        let mut gone = BTreeSet::new();
        for call in 0..12 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (chance >> 33) as usize;
            let mut pointer = null_mut();
            let (mut needed, mut released) = (0, 0);
            if self.shown {
                say(format_args!("in the child: {}", number % 9));
            }
            let status = match number % 9 {
                0 => c!(gapless_torch_alloc(device, 32 << 20, null_mut(), null(), &raw mut pointer)),
                1 => c!(gapless_torch_alloc(device, number as u64 % 100_000, null_mut(), &named(1), &raw mut pointer)),
                2 => c!(gapless_torch_trim(device, 0, &raw mut released)),
                3 => c!(gapless_torch_use_pool(device, named(3))),
                4 => c!(gapless_torch_alloc_again(
                    without_provenance_mut(live.first().copied().unwrap_or(0) as usize),
                    1
                )),
                5 => c!(gapless_torch_blocks(device, null(), 0, null_mut(), 0, &raw mut needed)),
                6 => match live.get(number % live.len().max(1)).filter(|addr| gone.insert(**addr)) {
                    Some(addr) => c!(gapless_torch_delete(without_provenance_mut(*addr as usize))),
                    None => GAPLESS_OK,
                },
                7 => c!(gapless_sleep(device, null(), GAPLESS_BACKUP_PINNED, null_mut())),
                _ => c!(gapless_torch_reset_peaks(device)),
            };
            let forked = status == GAPLESS_ERROR_DRIVER && gapless_last_error_kind() == GAPLESS_KIND_FORKED;
            let addr = pointer.addr() as u64;
            let right = match number % 9 {
                // More than is cached: the driver would have to be called.
                0 if self.is_small(device) => forked,
                0 | 1 => forked || status == GAPLESS_OK && !self.is_live(addr, &gone),
                2 | 7 => forked,
                3 => forked || status == GAPLESS_OK,
                4 => forked || status == GAPLESS_ERROR_NOT_FOUND && live.is_empty(),
                5 => [GAPLESS_OK, GAPLESS_ERROR_BUFFER_TOO_SMALL].contains(&status),
                6 => forked || status == GAPLESS_OK,
                _ => status == GAPLESS_OK,
            };
            if !right {
                say(format_args!(
                    "call {call} of a forked process, {}: {status}, {addr:#x}: {}",
                    number % 9,
                    error_text()
                ));
                return WRONG + call;
            }
        }
        0
    }

    /// Whether less than the child's largest request is held.
    fn is_small(&self, device: i32) -> bool {
        self.shares(device).held() < 32 << 20
    }

    fn is_live(&self, addr: u64, gone: &BTreeSet<u64>) -> bool {
        let around = self.live.range(..=addr).next_back();
        around.is_some_and(|(at, block)| addr - at < block.bytes && !gone.contains(at))
    }
}

/// Prints at once: nobody prints later what a test has kept back here.
fn say(text: std::fmt::Arguments) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
