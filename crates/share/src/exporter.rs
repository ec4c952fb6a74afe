//! The exporting side: what is offered, and the socket for those who open it.

use crate::error::ShareError;
use crate::handle::{Handle, Source, Token, random};
use crate::holders::Holders;
use crate::offers::{Chunks, Offers};
use crate::server::{Order, Server};
use crate::socket_file::SocketFile;
use gapless::allocator::{Holder, Ticket};
use gapless::driver::Driver;
use gapless::{Allocator, DeviceAddr, ProcessIdentity};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Offers blocks to other processes of the user. A thread answers those who open them, from the first offer on.
///
/// One serves any number of allocators of one device. When it is dropped, offers end; what others have open by then stays
/// pinned for good, since nobody hears of its end any more.
///
/// Threads: any.
#[must_use = "offers end when this is dropped"]
pub struct Exporter<D: Driver> {
    process: ProcessIdentity,
    exposes: bool,
    started: Mutex<Option<Started>>,
    /// Changes once, and not while `started` is being made.
    has_ended: AtomicBool,
    offers: Arc<Mutex<Offers<D>>>,
    holders: Arc<Holders<D>>,
}

impl<D: Driver> fmt::Debug for Exporter<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter")
            .field("process", &self.process)
            .field("exposes", &self.exposes)
            .finish_non_exhaustive()
    }
}

/// The socket and its thread.
#[derive(Debug)]
struct Started {
    name: Token,
    socket: SocketFile,
    orders: Sender<Order>,
    /// Makes the thread look at its orders.
    wake: OwnedFd,
    thread: JoinHandle<()>,
}

impl Started {
    /// Removes the file, and waits for the end of the thread.
    fn end(self) {
        self.socket.remove();
        if self.order(Order::Stop) {
            let _ = self.thread.join();
        }
    }

    /// Whether the thread is going to hear of it.
    fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok() && rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).is_ok()
    }
}

impl<D: Driver> Exporter<D> {
    /// An exporter without a socket yet.
    pub fn new() -> Self {
        Self::of(false)
    }

    /// An exporter of which what others open is [exposed](gapless::allocator::Pin::expose): they may keep it, and do not see what
    /// comes later.
    pub fn exposing() -> Self {
        Self::of(true)
    }

    fn of(exposes: bool) -> Self {
        Self {
            process: ProcessIdentity::current(),
            exposes,
            started: Mutex::new(None),
            has_ended: AtomicBool::new(false),
            offers: Arc::new(Mutex::new(Offers::new())),
            holders: Arc::new(Holders::new()),
        }
    }
}

impl<D: Driver> Default for Exporter<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Driver + 'static> Exporter<D> {
    /// Offers the live allocation at `addr`, until it is freed. The same block has the same handle each time. Where somebody has
    /// removed the socket's file since the last offer, it is made again, and handles of before are good again, too.
    ///
    /// # Errors
    /// [`ShareError::NotAllocated`], [`ShareError::Forked`], [`ShareError::Ended`], and those of the socket, which the first offer
    /// makes.
    pub fn export(&self, allocator: &Allocator<D>, addr: DeviceAddr) -> Result<Handle, ShareError> {
        if !self.process.is_current() {
            return Err(ShareError::Forked);
        }
        let ticket = allocator.ticket(addr)?;
        let token = match self.offered(&ticket) {
            Some(token) => token,
            None => {
                // Looked up here, where the caller may wait for the allocator: those who open it do not. They cannot be in a
                // callback of a listener; then who opens it does.
                let chunks = ticket.pin().and_then(|pin| {
                    let list = pin.chunks().ok()?;
                    Some(Chunks { sleeps: ticket.sleeps(), list: Arc::from(list) })
                });
                self.offers.lock().add(ticket, chunks)?
            }
        };
        // SAFETY: nothing but its name is asked for.
        let device = unsafe { allocator.driver_unchecked() }.uuid();
        let mut started = self.started.lock();
        if self.has_ended.load(Ordering::Acquire) {
            return Err(ShareError::Ended);
        }
        let started = match &mut *started {
            Some(started) => started,
            None => started.insert(self.start()?),
        };
        if !started.socket.is_there() {
            let listener = started.socket.make_again()?;
            started.order(Order::Listen(listener));
        }
        let source = Source { name: started.name, socket: started.socket.path().to_owned() };
        Ok(Handle { source, token, device })
    }

    fn offered(&self, ticket: &Ticket<D>) -> Option<Token> {
        self.offers.lock().token(ticket)
    }

    /// Number of blocks that are offered. Those that were freed count for a while.
    pub fn offers(&self) -> usize {
        self.offers.lock().len()
    }

    /// The processes that have blocks open now. One that ends, or closes a block, is heard of a moment later.
    pub fn holders(&self) -> Vec<Holder> {
        // In a forked process, a lock may be held for good by a thread that is not there.
        if self.process.is_current() { self.holders.list() } else { Vec::new() }
    }

    /// Cuts a process off, one that hangs for example: what it has open is not held for it any more. It is not asked, and may
    /// go on to use the memory, so that what it had open is [exposed](gapless::allocator::Pin::expose), as with
    /// [`exposing`](Self::exposing): nobody else gets the chunks that a block has for itself, and the device has them again when
    /// that process has closed them or ended. Chunks in which other blocks lie are used on.
    ///
    /// `None` cuts off all that have no number here, since they are of other namespaces. What a process opens later is another
    /// connection. Waits for the thread that answers, which may be in a call to the driver.
    pub fn cut_off(&self, process: Option<u32>) {
        // Nobody has the number 0.
        let process = match process.map(NonZeroU32::new) {
            Some(None) => return,
            other => other.flatten(),
        };
        if !self.process.is_current() {
            return;
        }
        let (done, is_done) = channel();
        let is_going_to = self.started.lock().as_ref().is_some_and(|it| it.order(Order::CutOff { process, done }));
        if is_going_to {
            // An error where the thread has ended: nothing is held then.
            let _ = is_done.recv();
        }
    }

    /// Ends the socket and its thread, for good: nobody opens anything any more, and nothing is exported. When it returns, the
    /// thread makes no more calls to the driver. For the end of the process, after which the driver may be gone.
    pub fn end(&self) {
        if self.process.is_current() {
            let mut started = self.started.lock();
            self.has_ended.store(true, Ordering::Release);
            if let Some(started) = started.take() {
                started.end();
            }
        }
    }

    fn start(&self) -> Result<Started, ShareError> {
        let name = random()?;
        let (socket, listener) = SocketFile::new()?;
        let (orders, received) = channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC.union(EventfdFlags::NONBLOCK));
        let thread = wake.map_err(ShareError::system("an eventfd")).and_then(|wake| {
            let woken = wake.try_clone().map_err(|cause| ShareError::System { what: "an eventfd", cause })?;
            let (offers, holders) = (Arc::clone(&self.offers), Arc::clone(&self.holders));
            let server = Server::new(listener, woken, received, offers, self.exposes, holders);
            let thread = std::thread::Builder::new().name("gapless-share".to_owned()).spawn(|| server.run());
            Ok((wake, thread.map_err(|cause| ShareError::System { what: "the thread of the socket", cause })?))
        });
        match thread {
            Ok((wake, thread)) => Ok(Started { name, socket, orders, wake, thread }),
            Err(error) => {
                socket.remove();
                Err(error)
            }
        }
    }
}

impl<D: Driver> Drop for Exporter<D> {
    fn drop(&mut self) {
        let Some(started) = self.started.get_mut().take() else { return };
        // In a forked process the socket and its thread are the parent's.
        if self.process.is_current() {
            started.end();
        }
    }
}
