//! The history of one device in a snapshot: its entries, each with its action, which is looked up once.

use super::pickle::{Key, Ref, Values};

/// What an entry says happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    Oom,
    SegmentAlloc,
    SegmentMap,
    SegmentFree,
    SegmentUnmap,
    UserDefined,
    /// Another one, which does not matter here.
    Other,
    /// The entry does not say.
    Missing,
}

impl Action {
    fn of(text: Option<&str>) -> Self {
        match text {
            Some("alloc") => Self::Alloc,
            Some("free_requested") => Self::FreeRequested,
            Some("free_completed") => Self::FreeCompleted,
            Some("oom") => Self::Oom,
            Some("segment_alloc") => Self::SegmentAlloc,
            Some("segment_map") => Self::SegmentMap,
            Some("segment_free") => Self::SegmentFree,
            Some("segment_unmap") => Self::SegmentUnmap,
            Some("user_defined") => Self::UserDefined,
            Some(_) => Self::Other,
            None => Self::Missing,
        }
    }
}

/// The entries in order.
pub struct Entries<'a> {
    all: &'a [Ref],
    actions: Vec<Action>,
}

impl<'a> Entries<'a> {
    /// Looks up the action of each entry, which is the value of `key`.
    pub fn new(values: &Values, all: &'a [Ref], key: Key) -> Self {
        Self { all, actions: all.iter().map(|entry| Action::of(values.text(*entry, key))).collect() }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Action, Ref)> + ExactSizeIterator {
        self.actions.iter().copied().zip(self.all.iter().copied())
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether an entry has this action.
    pub fn has(&self, action: Action) -> bool {
        self.actions.contains(&action)
    }

    /// Returns the number of allocations and frees.
    pub fn requests(&self) -> usize {
        self.actions.iter().filter(|action| matches!(action, Action::Alloc | Action::FreeRequested)).count()
    }
}
