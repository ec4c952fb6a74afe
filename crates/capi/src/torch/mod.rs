//! The functions that PyTorch calls: its plug-in interface, its allocator object, registered segments, its memory history.

pub(crate) mod history;
mod message;
pub(crate) mod object;
pub(crate) mod plugin;
pub(crate) mod segments;
