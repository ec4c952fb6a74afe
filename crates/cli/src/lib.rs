//! What the command line shares with its benchmark and its tests: experiments on a GPU.

pub mod experiments;
