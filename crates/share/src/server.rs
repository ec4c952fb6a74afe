//! The thread that answers the processes that open blocks.

use crate::handle::Token;
use crate::holders::{Holders, Noted};
use crate::messages::{Answer, ListedChunk, MOST_DESCRIPTORS, MOST_LISTED, Question, Reply, Request, UNASKED};
use crate::offers::{Offer, Offers};
use crate::peer::Peer;
use crate::sockets::{self, Packet};
use crate::veil::Veil;
use gapless::allocator::{Pin, PinnedChunk};
use gapless::driver::Driver;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Most connections, one for each importer that has something open.
const MOST_CONNECTIONS: usize = 256;
/// Most of them that one process has, so that none shuts out all others. Those of other namespaces count as one process.
const MOST_OF_ONE_PROCESS: usize = MOST_CONNECTIONS / 2;
/// Most connections beyond those, which are to hear that there are too many.
const MOST_TURNED_AWAY: usize = 64;
/// How often blocks are open through one connection at most.
const MOST_OPEN: usize = 1 << 16;
/// Longest reason of a refusal in bytes.
const MOST_REASON: usize = 1000;
/// How long nothing is done where the system has no descriptor for another connection, or does not watch as many as there are.
const PAUSE: Duration = Duration::from_millis(20);

/// An order to the thread that answers.
#[derive(Debug)]
pub enum Order {
    /// To accept connections of this socket instead.
    Listen(OwnedFd),
    /// To end the connections of a process, as `Exporter::cut_off`.
    CutOff {
        /// The process; `None` for all that have no number here.
        process: Option<NonZeroU32>,
        /// Is sent to when that is done.
        done: Sender<()>,
    },
    /// To end.
    Stop,
}

/// Answers until it is told to stop.
#[derive(Debug)]
pub struct Server<D: Driver> {
    listener: OwnedFd,
    /// Is written to when there are orders.
    woken: OwnedFd,
    orders: Receiver<Order>,
    offers: Arc<Mutex<Offers<D>>>,
    /// Whether those who open a block may keep its memory.
    exposes: bool,
    holders: Arc<Holders<D>>,
    /// The oldest first.
    connections: Vec<Connection<D>>,
    /// Connections that are too many, the oldest first. Each is answered when it asks: closed before that, it would lose the
    /// answer.
    turned_away: VecDeque<OwnedFd>,
}

/// A process that opens blocks. Its end gives back what it has open.
#[derive(Debug)]
struct Connection<D: Driver> {
    socket: OwnedFd,
    exposes: bool,
    process: Option<NonZeroU32>,
    /// What it has open, for those who ask.
    noted: Noted<D>,
    open: HashMap<u64, Open<D>>,
    /// Under which number a block is open.
    numbers: HashMap<Token, u64>,
    next: u64,
    /// How often blocks are open: the sum of `times`.
    times: usize,
    /// Hides the driver's handles.
    veil: Veil,
}

/// A block that is open. However often that is, it is pinned and listed once.
#[derive(Debug)]
struct Open<D: Driver> {
    token: Token,
    pin: Pin<D>,
    chunks: Arc<[PinnedChunk]>,
    times: usize,
}

impl<D: Driver> Server<D> {
    pub fn new(
        listener: OwnedFd,
        woken: OwnedFd,
        orders: Receiver<Order>,
        offers: Arc<Mutex<Offers<D>>>,
        exposes: bool,
        holders: Arc<Holders<D>>,
    ) -> Self {
        let (connections, turned_away) = (Vec::new(), VecDeque::new());
        Self { listener, woken, orders, offers, exposes, holders, connections, turned_away }
    }

    pub fn run(mut self) {
        loop {
            let ready = {
                let mut watched =
                    vec![PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
                watched.extend(self.connections.iter().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
                watched.extend(self.turned_away.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
                match poll(&mut watched, None) {
                    Ok(_) => watched.iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>(),
                    Err(Errno::INTR) => continue,
                    // As many cannot be watched: the limit of descriptors was lowered below their number, for instance.
                    Err(_) => {
                        std::thread::sleep(PAUSE);
                        vec![true; watched.len()]
                    }
                }
            };
            let (ready_connections, ready_to_go) = ready[2..].split_at(self.connections.len());
            let mut ready_to_go = ready_to_go.iter();
            self.turned_away.retain(|socket| {
                let asks = ready_to_go.next().is_some_and(|ready| *ready);
                if asks {
                    say_busy(socket);
                }
                !asks
            });
            let mut ready_connections = ready_connections.iter();
            let offers = &self.offers;
            self.connections.retain_mut(|connection| {
                // Those at the end are ready or new.
                !ready_connections.next().is_some_and(|ready| *ready) || connection.serve(offers).is_ok()
            });
            if ready[1] {
                self.accept();
            }
            // At the end: what is watched may change.
            if ready[0] && self.has_order_to_stop() {
                break;
            }
        }
        // What others have open stays theirs: nobody would hear of its end. Some may have ended before.
        for connection in self.connections.into_iter().filter(|connection| !connection.has_ended()) {
            connection.open.into_values().for_each(|open| std::mem::forget(open.pin));
        }
    }

    /// Carries out the orders. Returns whether one is to stop.
    fn has_order_to_stop(&mut self) -> bool {
        // What was written is read before the orders, which come before it: none is left behind.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Listen(listener) => self.listener = listener,
                Order::CutOff { process, done } => {
                    self.cut_off(process);
                    let _ = done.send(());
                }
                Order::Stop => return true,
            }
        }
        false
    }

    fn cut_off(&mut self, process: Option<NonZeroU32>) {
        for connection in self.connections.extract_if(.., |connection| connection.process == process) {
            // It is not asked whether it still uses them.
            connection.open.values().for_each(|open| open.pin.expose());
        }
    }

    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK)) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return std::thread::sleep(PAUSE),
            Err(_) => return,
        };
        let Ok(peer) = Peer::of(&socket) else { return };
        if peer.other_user().is_some() {
            return;
        }
        let is_its_own = |connection: &&Connection<D>| connection.process == peer.process;
        let are_too_many = self.connections.iter().filter(is_its_own).count() >= MOST_OF_ONE_PROCESS;
        if are_too_many || self.connections.len() >= MOST_CONNECTIONS {
            // One that has nothing open and asks nothing connects again when it has something to ask.
            let may_go = |connection: &Connection<D>| !are_too_many || is_its_own(&connection);
            match self.connections.iter().position(|connection| may_go(connection) && connection.is_idle()) {
                Some(idle) => drop(self.connections.remove(idle)),
                None => {
                    if self.turned_away.len() == MOST_TURNED_AWAY
                        && let Some(oldest) = self.turned_away.pop_front()
                    {
                        say_busy(&oldest);
                    }
                    self.turned_away.push_back(socket);
                    return;
                }
            }
        }
        self.connections.push(Connection::new(socket, peer.process, self.exposes, self.holders.connect(peer.process)));
    }
}

/// Answers the question of a connection that is too many, if it has asked.
fn say_busy(socket: &OwnedFd) {
    let number = match sockets::receive::<Question>(socket) {
        Ok(Packet::Message(question, _)) => question.number,
        _ => UNASKED,
    };
    let _ = sockets::send(socket, &Answer { number, reply: Reply::Busy }, &[]);
}

/// The connection is to be closed.
struct Closed;

impl<D: Driver> Connection<D> {
    fn new(socket: OwnedFd, process: Option<NonZeroU32>, exposes: bool, noted: Noted<D>) -> Self {
        let (open, numbers) = (HashMap::new(), HashMap::new());
        Self { socket, exposes, process, noted, open, numbers, next: 0, times: 0, veil: Veil::default() }
    }

    /// Whether the other side has closed it.
    fn has_ended(&self) -> bool {
        self.seen(PollFlags::empty()).contains(PollFlags::HUP)
    }

    /// Whether it has nothing open and has not asked anything.
    fn is_idle(&self) -> bool {
        self.open.is_empty() && self.seen(PollFlags::IN).is_empty()
    }

    /// Returns the events of `what` that the socket has now.
    fn seen(&self, what: PollFlags) -> PollFlags {
        let mut watched = [PollFd::new(&self.socket, what)];
        poll(&mut watched, Some(&Timespec::default())).map_or(PollFlags::empty(), |_| watched[0].revents())
    }

    /// Answers one question.
    fn serve(&mut self, offers: &Mutex<Offers<D>>) -> Result<(), Closed> {
        let Question { number, request } = match sockets::receive(&self.socket) {
            Ok(Packet::Message(question, descriptors)) if descriptors.is_empty() => question,
            Err(Errno::AGAIN) => return Ok(()),
            _ => return Err(Closed),
        };
        let (reply, descriptors) = self.answer(request, offers);
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        // Few answers are not read before the next question: there is room for them, unless the other side does not read.
        match sockets::send(&self.socket, &Answer { number, reply }, &borrowed) {
            // So many of the user are on their way, whoever does not read them: what this one has open stays.
            Err(Errno::TOOMANYREFS) => {
                sockets::send(&self.socket, &Answer { number, reply: Reply::FewDescriptors }, &[])
            }
            sent => sent,
        }
        .map_err(|_| Closed)
    }

    fn answer(&mut self, request: Request, offers: &Mutex<Offers<D>>) -> (Reply, Vec<OwnedFd>) {
        let reply = match request {
            Request::Open { token } => {
                let offer = offers.lock().of(&token);
                self.open(token, offer.as_ref())
            }
            Request::Chunks { open, from } => match self.open.get(&open) {
                Some(open) => {
                    let from = usize::try_from(from).unwrap_or(usize::MAX);
                    let listed = open.chunks.iter().skip(from).take(MOST_LISTED);
                    Reply::Chunks(
                        listed
                            .map(|chunk| ListedChunk { number: self.veil.of(chunk.handle.0), bytes: chunk.bytes })
                            .collect(),
                    )
                }
                None => refused("nothing of that number is open"),
            },
            Request::Descriptors { open, which } => match self.export(open, &which) {
                Ok(descriptors) => return (Reply::Descriptors, descriptors),
                Err(reply) => reply,
            },
            Request::Close { open } => self.close(open),
        };
        (reply, Vec::new())
    }

    fn open(&mut self, token: Token, offer: Option<&Offer<D>>) -> Reply {
        let Some((offer, pin)) = offer.and_then(|offer| Some((offer, offer.pin()?))) else { return Reply::Gone };
        if self.times >= MOST_OPEN {
            return refused("too much is open");
        }
        let number = match self.numbers.get(&token) {
            Some(number) => *number,
            None => {
                let chunks = match offer.chunks(&pin) {
                    Ok(chunks) => chunks,
                    Err(error) => return refused(&error.to_string()),
                };
                let number = self.next;
                self.next += 1;
                self.numbers.insert(token, number);
                self.noted.opened(token, offer.ticket().clone());
                self.open.insert(number, Open { token, pin, chunks, times: 0 });
                number
            }
        };
        let open = self.open.get_mut(&number).expect("a number of a block that is open");
        if self.exposes {
            open.pin.expose();
        }
        open.times += 1;
        self.times += 1;
        let offset = open.pin.addr().0 - open.chunks[0].addr.0;
        Reply::Opened { open: number, bytes: open.pin.bytes(), offset, chunks: open.chunks.len() as u64 }
    }

    fn close(&mut self, number: u64) -> Reply {
        let Some(open) = self.open.get_mut(&number) else { return refused("nothing of that number is open") };
        open.times -= 1;
        self.times -= 1;
        if open.times == 0
            && let Some(open) = self.open.remove(&number)
        {
            self.numbers.remove(&open.token);
            self.noted.closed(&open.token);
        }
        Reply::Closed
    }

    fn export(&self, open: u64, which: &[u64]) -> Result<Vec<OwnedFd>, Reply> {
        let open = self.open.get(&open).ok_or_else(|| refused("nothing of that number is open"))?;
        if which.len() > MOST_DESCRIPTORS {
            return Err(refused("too many descriptors at a time"));
        }
        // SAFETY: it exports chunks that the pin holds, and does nothing else.
        let driver = unsafe { open.pin.allocator().driver_unchecked() };
        let mut descriptors = Vec::with_capacity(which.len());
        for index in which {
            let chunk = usize::try_from(*index).ok().and_then(|index| open.chunks.get(index));
            let chunk = chunk.ok_or_else(|| refused("no chunk has that number"))?;
            match driver.export(chunk.handle) {
                Ok(descriptor) => descriptors.push(descriptor),
                // Drivers do not say so.
                Err(_) if self.socket.try_clone().is_err() => return Err(Reply::FewDescriptors),
                Err(error) => return Err(refused(&error.to_string())),
            }
        }
        Ok(descriptors)
    }
}

fn refused(reason: &str) -> Reply {
    Reply::Refused(reason.chars().take(MOST_REASON).collect())
}
