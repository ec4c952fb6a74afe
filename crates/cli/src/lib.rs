//! The parts of the command line that its benchmark and its tests use as well: experiments on a GPU.

pub mod experiments;
