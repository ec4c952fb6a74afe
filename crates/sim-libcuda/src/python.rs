//! The stack of Python of the calling thread, in a program of CPython.
//!
//! `faulthandler`, a module of Python's, writes the stack of the thread that receives a signal, and waits for no lock: the thread
//! need not have that of the interpreter, which libraries give back before they call a driver. A thread of ours asks it once, with
//! `faulthandler.register`, to do so for a real-time signal that nobody has. From then on, the function that it has installed for
//! the signal is called like any other one, so that no signal is sent and no mask of signals matters.
//!
//! That the function is still the signal's is how a stack is known to be there: an interpreter that ends gives its signals back.
//!
//! Threads: any. Lock: that of this file, for as long as a stack is written; a child of `fork` takes it over.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that calls wait until stacks are there, all calls of a process together. Another thread may have the
/// interpreter's lock for as long as it likes, and may wait for the caller.
const LIMIT: Duration = Duration::from_secs(2);

/// What the function of a signal is asked to write.
struct Registered {
    signal: c_int,
    handler: libc::sighandler_t,
    descriptor: RawFd,
    /// Device and number of the file that the descriptor is of, which others may close.
    file: (u64, u64),
    /// The process that has opened it. Its children share the position in it.
    process: u32,
}

/// What has become of it.
enum Phase {
    /// Nobody has asked.
    Nothing,
    /// A process has asked, and waits no longer than this.
    Asked(u32, Instant),
    Ready(Registered),
    /// The interpreter has no such module, or refuses.
    Refused,
}

/// The phase, of which one thread has a view at a time.
struct Shared {
    phase: UnsafeCell<Phase>,
    /// The process of the thread that has it, or 0.
    holder: AtomicU32,
}

// SAFETY: `with` gives out the phase to one thread at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { phase: UnsafeCell::new(Phase::Nothing), holder: AtomicU32::new(0) };
/// Whether the phase is `Ready`.
static IS_READY: AtomicBool = AtomicBool::new(false);

impl Shared {
    fn with<T>(&self, run: impl FnOnce(&mut Phase) -> T) -> T {
        let process = std::process::id();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            // In a child of `fork`, the thread that had it is not there.
            let is_free = holder != process;
            // Acquire: pairs with the store of the thread before.
            if is_free && self.holder.compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                break;
            }
            thread::sleep(Duration::from_micros(20));
        }
        // SAFETY: the holder alone is here.
        let phase = unsafe { &mut *self.phase.get() };
        let result = run(phase);
        IS_READY.store(matches!(phase, Phase::Ready(_)), Ordering::Release);
        self.holder.store(0, Ordering::Release);
        result
    }
}

/// A function of the program or one of its libraries.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    let name: *const c_char = name.as_ptr();
    // SAFETY: the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) };
    (!found.is_null()).then_some(found)
}

/// Defines a structure of functions of CPython, each under the name that it has there.
///
/// They may end the thread that calls them, by `pthread_exit`, which unwinds its stack; hence their ABI.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($function:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name {
            $($function: unsafe extern "C-unwind" fn($($argument),*) -> $result,)*
        }

        impl $name {
            fn find() -> Option<Self> {
                $(
                    let found = symbol(const {
                        match CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("the name of a function"),
                        }
                    })?;
                    // SAFETY: the function has this type in every version of CPython that has it.
                    let $function = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($argument),*) -> $result>(found)
                    };
                )*
                Some(Self { $($function),* })
            }
        }
    };
}

functions! {
    /// What says where a thread stands. Any thread may call these, also where there is no interpreter.
    Standing {
        Py_IsInitialized() -> c_int;
        PyGILState_GetThisThreadState() -> *mut c_void;
        PyGILState_Check() -> c_int;
    }
}

functions! {
    /// What it takes to call a function of a module.
    Calling {
        PyGILState_Ensure() -> c_int;
        PyGILState_Release(c_int) -> ();
        PyImport_ImportModule(*const c_char) -> *mut c_void;
        PyObject_GetAttrString(*mut c_void, *const c_char) -> *mut c_void;
        Py_BuildValue(*const c_char, c_int, c_int, c_int, c_int) -> *mut c_void;
        PyObject_CallObject(*mut c_void, *mut c_void) -> *mut c_void;
        Py_DecRef(*mut c_void) -> ();
        PyErr_Clear() -> ();
    }
}

impl Standing {
    fn is_initialised(&self) -> bool {
        // SAFETY: may be called at any time.
        unsafe { (self.Py_IsInitialized)() != 0 }
    }

    /// Whether this thread is one of an interpreter's.
    fn is_of_python(&self) -> bool {
        // SAFETY: may be called by any thread; returns null where there is no interpreter.
        unsafe { !(self.PyGILState_GetThisThreadState)().is_null() }
    }

    /// Whether this thread has the interpreter's lock.
    fn has_lock(&self) -> bool {
        // SAFETY: may be called by any thread.
        unsafe { (self.PyGILState_Check)() != 0 }
    }
}

/// A call of the driver begins, which has taken no lock yet: where its thread is one of an interpreter's, stacks are asked for.
pub fn begin() {
    if IS_READY.load(Ordering::Acquire) {
        return;
    }
    let Some(standing) = Standing::find() else { return };
    if !standing.is_of_python() || !standing.is_initialised() {
        return;
    }
    let process = std::process::id();
    let until = SHARED.with(|phase| match *phase {
        Phase::Asked(by, until) if by == process => Some(until),
        Phase::Ready(_) | Phase::Refused => None,
        Phase::Nothing | Phase::Asked(..) => {
            let until = Instant::now() + LIMIT;
            *phase = if start_thread() { Phase::Asked(process, until) } else { Phase::Refused };
            Some(until)
        }
    });
    // The thread of ours waits for the interpreter's lock.
    let Some(until) = until.filter(|_| !standing.has_lock()) else { return };
    while Instant::now() < until && SHARED.with(|phase| matches!(phase, Phase::Asked(..))) {
        thread::sleep(Duration::from_micros(100));
    }
}

/// Starts a thread that asks for stacks, and that receives no signal. It is none of the standard library's: the interpreter may end
/// it while it waits.
fn start_thread() -> bool {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a set to write to.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: a set that was filled, and one to write to.
    if unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) } != 0 {
        return false;
    }
    type Main = extern "C" fn(*mut c_void) -> *mut c_void;
    // SAFETY: the ABIs are the same but for unwinding, which begins in C's library and ends there.
    let main = unsafe { std::mem::transmute::<extern "C-unwind" fn(*mut c_void) -> *mut c_void, Main>(ask) };
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: a place for the thread's name, and a function of the type that it asks for.
    let started = unsafe { libc::pthread_create(thread.as_mut_ptr(), null(), main, null_mut()) } == 0;
    if started {
        // SAFETY: written by the call above.
        let thread = unsafe { thread.assume_init() };
        // SAFETY: a thread that nobody else joins or detaches.
        unsafe { libc::pthread_detach(thread) };
    }
    // SAFETY: written by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    started
}

/// Asks for stacks. It has nothing to drop while it is in the interpreter, which may end this thread.
extern "C-unwind" fn ask(_: *mut c_void) -> *mut c_void {
    let registered = Calling::find().and_then(register);
    SHARED.with(|phase| *phase = registered.map_or(Phase::Refused, Phase::Ready));
    null_mut()
}

/// Calls `faulthandler.register(signal, file, all_threads=False, chain=False)`.
fn register(python: Calling) -> Option<Registered> {
    let signal = free_signal()?;
    // SAFETY: the name ends with NUL.
    let descriptor = unsafe { libc::memfd_create(c"python".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    let is_done = call_register(python, signal, descriptor);
    let handler = handler_of(signal).filter(|handler| is_done && *handler != libc::SIG_DFL);
    let registered = handler.and_then(|handler| {
        Some(Registered { signal, handler, descriptor, file: identity(descriptor)?, process: std::process::id() })
    });
    if registered.is_none() {
        // SAFETY: opened above; nobody else has it.
        unsafe { libc::close(descriptor) };
    }
    registered
}

fn call_register(python: Calling, signal: c_int, descriptor: RawFd) -> bool {
    // SAFETY: there was an interpreter when this thread was started. Waits for its lock.
    let state = unsafe { (python.PyGILState_Ensure)() };
    // SAFETY: this thread has the lock, and the names end with NUL, here and below.
    let module = unsafe { (python.PyImport_ImportModule)(c"faulthandler".as_ptr()) };
    let mut is_done = false;
    if !module.is_null() {
        // SAFETY: a module.
        let function = unsafe { (python.PyObject_GetAttrString)(module, c"register".as_ptr()) };
        // SAFETY: a format of four integers.
        let arguments = unsafe { (python.Py_BuildValue)(c"(iiii)".as_ptr(), signal, descriptor, 0, 0) };
        if !function.is_null() && !arguments.is_null() {
            // SAFETY: an object, and a tuple.
            let result = unsafe { (python.PyObject_CallObject)(function, arguments) };
            is_done = !result.is_null();
            // SAFETY: a reference of ours, or null.
            drop_reference(python, result);
        }
        drop_reference(python, arguments);
        drop_reference(python, function);
    }
    drop_reference(python, module);
    // SAFETY: this thread has the lock.
    unsafe { (python.PyErr_Clear)() };
    // SAFETY: what was returned above.
    unsafe { (python.PyGILState_Release)(state) };
    is_done
}

/// Gives a reference of ours back, which may be null.
fn drop_reference(python: Calling, object: *mut c_void) {
    // SAFETY: the caller has the interpreter's lock and the reference; null is allowed.
    unsafe { (python.Py_DecRef)(object) };
}

/// Returns a real-time signal that has no handler.
fn free_signal() -> Option<c_int> {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|signal| handler_of(*signal) == Some(libc::SIG_DFL))
}

/// Returns what is called for a signal, where that takes its number alone.
fn handler_of(signal: c_int) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed, and an action is written.
    if unsafe { libc::sigaction(signal, null(), action.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: written by the call above.
    let action = unsafe { action.assume_init() };
    (action.sa_flags & libc::SA_SIGINFO == 0).then_some(action.sa_sigaction)
}

/// A descriptor as a file, which is not closed.
fn file_of(descriptor: RawFd) -> ManuallyDrop<File> {
    // SAFETY: one that this file has opened, or that was closed by somebody else and has another file by now, if any: callers look
    // which one before they use it.
    ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) })
}

fn identity(descriptor: RawFd) -> Option<(u64, u64)> {
    let file = file_of(descriptor).metadata().ok()?;
    Some((file.dev(), file.ino()))
}

impl Registered {
    /// Returns what Python says of this thread. None where the signal or the descriptor is somebody else's by now.
    fn write(&mut self) -> Option<Vec<u8>> {
        if handler_of(self.signal) != Some(self.handler) || identity(self.descriptor) != Some(self.file) {
            return None;
        }
        if self.process != std::process::id() {
            self.take_a_file_of_ones_own()?;
        }
        let file = file_of(self.descriptor);
        file.set_len(0).ok()?;
        // SAFETY: an open descriptor.
        if unsafe { libc::lseek(self.descriptor, 0, libc::SEEK_SET) } != 0 {
            return None;
        }
        // SAFETY: what `sigaction` calls the handler of a signal, which is called with its number.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(self.handler) };
        handler(self.signal);
        let mut text = vec![0; usize::try_from(file.metadata().ok()?.len()).ok()?];
        file.read_exact_at(&mut text, 0).ok()?;
        Some(text)
    }

    /// In a child of `fork`.
    fn take_a_file_of_ones_own(&mut self) -> Option<()> {
        // SAFETY: the name ends with NUL.
        let new = unsafe { libc::memfd_create(c"python".as_ptr(), libc::MFD_CLOEXEC) };
        if new < 0 {
            return None;
        }
        // SAFETY: an open descriptor, and the number of one that is this file's.
        let moved = unsafe { libc::dup3(new, self.descriptor, libc::O_CLOEXEC) };
        // SAFETY: opened above; nobody else has it.
        unsafe { libc::close(new) };
        if moved < 0 {
            return None;
        }
        (self.file, self.process) = (identity(self.descriptor)?, std::process::id());
        Some(())
    }
}

/// Returns what Python says of this thread, if it is one of an interpreter's.
pub fn traceback() -> Option<String> {
    if !IS_READY.load(Ordering::Acquire) {
        return None;
    }
    let standing = Standing::find()?;
    // While the main thread ends the interpreter, what is asked for goes away under other threads.
    if !standing.is_of_python() || !(standing.is_initialised() || is_main_thread()) {
        return None;
    }
    let text = SHARED.with(|phase| {
        let Phase::Ready(registered) = phase else { return None };
        let text = registered.write();
        if text.is_none() {
            *phase = Phase::Nothing;
        }
        text
    });
    Some(String::from_utf8_lossy(&text?).into_owned())
}

fn is_main_thread() -> bool {
    // SAFETY: has no preconditions. C libraries have a function for it from glibc 2.30 on only.
    u32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }) == Ok(std::process::id())
}
