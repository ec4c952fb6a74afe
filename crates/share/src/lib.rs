//! Memory of an allocator for other processes of the same user, without privileges and without a daemon.
//!
//! An [`Exporter`] offers blocks: the [`Handle`] of one is bytes that travel by whatever means. An [`Importer`] opens it, in any
//! process that reaches the exporter's socket: the chunks under the block pass as descriptors (`SCM_RIGHTS`), and are mapped there
//! in one piece.
//!
//! ```text
//!   exporting process                                    importing process
//!   export(block) ── Handle: socket, token ────────────▶ open(handle)
//!   server ◀──────── Open { token } ───────────────────── connection, which counts what is open
//!     pins the block ── chunks ─────────────────────────▶ those not mapped here yet:
//!          ◀──────── Descriptors { which } ──────────────
//!     exports each ── descriptors ──────────────────────▶ imports, maps in one piece
//!   the pin goes ◀── Close, or the end of the connection ─ unmaps, releases
//! ```
//!
//! Both ends, here in one process and on a simulated device:
//!
//! ```
//! use gapless::driver::HostDriver;
//! use gapless::{Allocator, StreamId};
//! use gapless_share::{Exporter, Handle, Importer};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let allocator = Allocator::builder(Arc::new(HostDriver::new(Default::default())?)).build()?;
//! let block = allocator.alloc(32 << 20, StreamId::DEFAULT)?;
//! let exporter = Exporter::new();
//! let bytes = exporter.export(&allocator, block.addr())?.to_bytes();
//!
//! // The bytes travel; the other process has an allocator of its own.
//! let importer = Importer::beside(&allocator);
//! let shared = importer.open(&Handle::from_bytes(&bytes)?)?;
//! assert_eq!(shared.bytes(), 32 << 20);
//!
//! drop(shared);
//! exporter.end();
//! # Ok(())
//! # }
//! ```
//!
//! - S1  a block is pinned as long as a connection has it open: what another process sees stays that block's memory.
//! - S2  a token names one live block: once that is freed, opening it is an error.
//! - S3  a chunk is imported while a mapping of this process uses it, and once. What closed blocks keep mapped
//!   ([`Importer::keep_closed`]) serves the same block only, or another where one in the chunk is open.
//!   Numbers of chunks are those of one connection.
//! - S4  no descriptor stays open after a call, on either side; at most [`MOST_DESCRIPTORS`] are at a time.
//! - S5  an answer that comes too late answers nothing else, and what it opened is closed.
//! - S6  an answer of the exporting process takes no lock that is held while its device is waited for. No lock of the importer is
//!   held while an answer is waited for.
//!
//! A block that a process opens is mapped in whole chunks: what lies beside the block in its first and last chunk can be read and
//! written there, too.
//!
//! Limits: one host, one user, and a folder that both processes see ([`FOLDER`]).

#![cfg_attr(not(test), warn(missing_debug_implementations))]
#![warn(clippy::missing_errors_doc, clippy::must_use_candidate, clippy::return_self_not_must_use)]

mod connection;
mod error;
mod exporter;
mod folder;
mod handle;
mod holders;
mod importer;
mod messages;
mod offers;
mod patience;
mod peer;
mod server;
mod socket_file;
mod sockets;
mod uuid;
mod veil;

pub use error::ShareError;
pub use exporter::Exporter;
pub use folder::FOLDER;
pub use handle::{HANDLE_BYTES, Handle};
pub use importer::{Importer, PATIENCE, SharedBlock};
pub use messages::MOST_DESCRIPTORS;
pub use uuid::Uuid;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::driver::HostDriver;

    #[test]
    fn what_is_shared_is_sent_and_shared() {
        const fn anywhere<T: Send + Sync>() {}
        anywhere::<(Exporter<HostDriver>, Importer<HostDriver>, SharedBlock<HostDriver>, Handle, ShareError)>();
    }
}
