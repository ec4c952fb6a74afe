//! The tags that a thread gives to the graph pools that it makes.
//!
//! Threads: each has its own.

use crate::error::Error;
use std::cell::RefCell;

thread_local! {
    /// Those that hold, the newest last.
    static TAGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Gives a tag to the pools that the calling thread makes from now on and nobody has [declared](crate::Pools::declare), until
/// [`pop_tag`]. Within several, the last one counts.
///
/// # Errors
/// [`Error::EmptyTag`].
pub fn push_tag(tag: &str) -> Result<(), Error> {
    expect_name(tag)?;
    TAGS.with_borrow_mut(|tags| tags.push(tag.to_owned()));
    Ok(())
}

/// Ends the calling thread's last [`push_tag`].
///
/// # Errors
/// [`Error::NoTag`] where there is none.
pub fn pop_tag() -> Result<(), Error> {
    TAGS.with_borrow_mut(Vec::pop).map(drop).ok_or(Error::NoTag)
}

/// The tag for pools that the calling thread makes. One that is ending has none.
pub(crate) fn current_tag() -> Option<String> {
    TAGS.try_with(|tags| tags.borrow().last().cloned()).ok().flatten()
}

/// Refuses what is no name of a tag.
pub(crate) fn expect_name(tag: &str) -> Result<(), Error> {
    if tag.is_empty() { Err(Error::EmptyTag) } else { Ok(()) }
}
