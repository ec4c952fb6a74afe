//! A process that was forked is told from the one that built an allocator also where both have the same number. This test has its
//! own file, so that no other test runs in the process while it forks.

use gapless::allocator::AllocError;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::{Allocator, StreamId};
use std::process::Command;
use std::sync::Arc;

/// Set in the first process of a namespace.
const INSIDE: &str = "GAPLESS_TEST_INSIDE";
/// Starts the first process of a namespace, which may make further ones.
const UNSHARE: [&str; 5] = ["unshare", "--user", "--map-root-user", "--pid", "--fork"];

fn outside(arguments: &[&str]) -> bool {
    let mut command = Command::new(UNSHARE[0]);
    command.args(&UNSHARE[1..]).args(arguments).env(INSIDE, "1");
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_forked_process_of_the_same_number_gets_an_error() {
    if std::env::var_os(INSIDE).is_some() {
        return forks_its_like();
    }
    if !outside(&["true"]) {
        return eprintln!("skipped: {UNSHARE:?} is not allowed here");
    }
    let this = std::env::current_exe().unwrap();
    let test = "a_forked_process_of_the_same_number_gets_an_error";
    assert!(outside(&[this.to_str().unwrap(), "--exact", test, "--nocapture"]));
}

/// In process 1 of a namespace: forks process 1 of another one.
fn forks_its_like() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(driver).build().unwrap();
    let block = allocator.alloc_raw(4 << 20, StreamId::DEFAULT).unwrap();
    // SAFETY: the calling thread's children are in a new namespace from now on.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
    // SAFETY: the child uses its copy of this process, and ends without running what is registered to run at the end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let number = std::process::id();
        let refused =
            matches!(allocator.alloc_raw(8 << 20, StreamId::DEFAULT), Err(AllocError::Forked { built_in: 1 }));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(!(number == 1 && refused))) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((std::process::id(), status), (1, 0), "the child was refused");
    allocator.free(block).unwrap();
}
