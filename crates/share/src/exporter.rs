//! The exporting side: what is offered, and the socket for those who open it.

use crate::error::ShareError;
use crate::folder::{folder, remove_stale};
use crate::handle::{Handle, Token, random, socket_path};
use crate::offers::Offers;
use crate::server::Server;
use crate::sockets;
use gapless::driver::Driver;
use gapless::{Allocator, DeviceAddr};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Offers blocks to other processes of the user. A thread answers those who open them, from the first offer on.
///
/// One serves any number of allocators of one device. When it is dropped, offers end; what others have open by then stays
/// pinned for good, since nobody hears of its end any more.
///
/// Threads: any.
#[derive(Debug)]
pub struct Exporter<D: Driver> {
    process: u32,
    started: Mutex<Option<Started>>,
    offers: Arc<Mutex<Offers<D>>>,
}

/// The socket and its thread.
#[derive(Debug)]
struct Started {
    name: Token,
    socket: PathBuf,
    wake: OwnedFd,
    thread: JoinHandle<()>,
}

impl<D: Driver> Exporter<D> {
    /// An exporter without a socket yet.
    pub fn new() -> Self {
        Self { process: std::process::id(), started: Mutex::new(None), offers: Arc::new(Mutex::new(Offers::new())) }
    }
}

impl<D: Driver> Default for Exporter<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Driver + 'static> Exporter<D> {
    /// Offers the live allocation at `addr`, until it is freed. The same block has the same handle each time.
    ///
    /// # Errors
    /// [`ShareError::NotAllocated`], [`ShareError::Forked`], and those of the socket, which the first offer makes.
    pub fn export(&self, allocator: &Allocator<D>, addr: DeviceAddr) -> Result<Handle, ShareError> {
        if self.process != std::process::id() {
            return Err(ShareError::Forked);
        }
        let ticket = allocator.ticket(addr)?;
        let mut started = self.started.lock();
        let started = match &*started {
            Some(started) => started,
            None => started.insert(self.start()?),
        };
        let token = self.offers.lock().token(ticket)?;
        Ok(Handle { exporter: started.name, token, socket: started.socket.clone() })
    }

    /// Removes the socket's file at the end of the process: nobody connects any more. The folder's next exporter would do it, too.
    pub fn remove_socket(&self) {
        if self.process == std::process::id()
            && let Some(started) = &*self.started.lock()
        {
            let _ = std::fs::remove_file(&started.socket);
        }
    }

    fn start(&self) -> Result<Started, ShareError> {
        let folder = folder()?;
        remove_stale(&folder);
        let name = random()?;
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let socket = socket_path(&folder, &format!("{}-{hex}.sock", self.process))?;
        let listener = sockets::listening(&socket)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(ShareError::system("an eventfd"));
        let started = wake.and_then(|wake| {
            let stop = wake.try_clone().map_err(|source| ShareError::System { what: "an eventfd", source })?;
            let server = Server::new(listener, stop, Arc::clone(&self.offers));
            let thread = std::thread::Builder::new().name("gapless-share".to_owned()).spawn(|| server.run());
            let thread = thread.map_err(|source| ShareError::System { what: "the thread of the socket", source })?;
            Ok(Started { name, socket: socket.clone(), wake, thread })
        });
        if started.is_err() {
            let _ = std::fs::remove_file(&socket);
        }
        started
    }
}

impl<D: Driver> Drop for Exporter<D> {
    fn drop(&mut self) {
        let Some(started) = self.started.get_mut().take() else { return };
        if self.process != std::process::id() {
            // The socket and its thread are the parent's.
            return;
        }
        let _ = std::fs::remove_file(&started.socket);
        if rustix::io::write(&started.wake, &1_u64.to_ne_bytes()).is_ok() {
            let _ = started.thread.join();
        }
    }
}
