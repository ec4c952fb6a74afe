//! The environment that all inputs share: the driver, streams, a folder.

use super::*;
use std::ffi::CString;
use std::sync::OnceLock;

pub(super) type Usage = unsafe extern "C" fn(device: c_int, counts: *mut [u64; 4]) -> u32;
type PlanFaults = unsafe extern "C" fn(text: *const c_char) -> u32;

/// The driver functions that fail on demand.
const FUNCTIONS: [&str; 12] = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemGetInfo_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
];
/// The second device with a process-wide allocator.
pub(super) const OTHER: i32 = 2;
/// Invalid value, out of memory, not supported, unknown.
const CODES: [u32; 4] = [1, 2, 801, 999];

/// The environment that all inputs share: the driver, streams, a folder.
pub(super) struct Environment {
    /// The driver library; none for the installed one.
    pub(super) library: Option<CString>,
    pub(super) usage: Option<Usage>,
    plan_faults: Option<PlanFaults>,
    /// The device that `gapless_create` gets.
    pub(super) device: i32,
    pub(super) streams: Vec<usize>,
    /// The devices with process-wide allocators, on the simulated driver: 0 and the other one.
    pub(super) gpus: Vec<Gpu>,
    pub(super) folder: PathBuf,
    /// Chunks and mappings of each of `gpus` that are not the library's: the memory of the kernels.
    pub(super) own_work: (u64, u64),
}

impl Environment {
    pub(super) fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        ENVIRONMENT.get_or_init(|| {
            let real = std::env::var_os("GAPLESS_FUZZ_DRIVER").is_some_and(|driver| driver == "cuda");
            Self::open(if real { None } else { Some(simulated()) })
        })
    }

    fn open(simulated: Option<PathBuf>) -> Self {
        if simulated.is_some() {
            for (name, value) in [("GAPLESS_SIM_CAPACITY", "64MiB"), ("GAPLESS_SIM_DEVICES", "3"), ("GAPLESS_CONF", "")]
            {
                // SAFETY: whatever else this process does at the same time reads the environment through std, if at all,
                // which locks it.
                unsafe { std::env::set_var(name, value) };
            }
        }
        let library = simulated.as_ref().map(|path| CString::new(path.to_str().expect("UTF-8")).expect("a path"));
        // By its own name from then on: `libcuda.so.1`, which the process-wide allocators ask for.
        let name = library.as_deref().unwrap_or(c"libcuda.so.1");
        // SAFETY: a NUL-terminated name of a driver library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", name.to_string_lossy());
        // An installed driver is taken for a GPU's whatever it is, so that this can be tried on the simulated one, too.
        let symbol = |name| simulated.as_ref().and_then(|_| symbol(handle, name));
        let usage = symbol(c"gapless_sim_usage");
        // SAFETY: the simulated library's function of that name has this type.
        let usage = usage.map(|at| unsafe { std::mem::transmute::<*mut c_void, Usage>(at) });
        let plan_faults = symbol(c"gapless_sim_plan_faults");
        // SAFETY: as above.
        let plan_faults = plan_faults.map(|at| unsafe { std::mem::transmute::<*mut c_void, PlanFaults>(at) });
        let folder = folder();
        std::fs::write(folder.join("trace"), "a 1 4096 0\nm step\na 2 9999999 1\nf 1\n").expect("a temporary file");
        if usage.is_none() {
            // Keeps the GPU's context alive from one input to the next.
            let mut handle: *mut gapless_allocator = null_mut();
            expect_ok(c!(gapless_device_allocator(0, &raw mut handle)));
        }
        // Null, and the driver's other names of a thread's default streams.
        let streams = vec![0, 2, 1];
        let mut gpus = Vec::new();
        if let Some(path) = &simulated {
            for device in [0, OTHER] {
                // Both before anything else, so that every input finds the same: devices within each other's reach.
                let mut handle: *mut gapless_allocator = null_mut();
                expect_ok(c!(gapless_device_allocator(device, &raw mut handle)));
                gpus.push(Gpu::open(path, device));
            }
        }
        let own_work = (0, u64::from(usage.is_some()));
        Self { own_work, device: i32::from(usage.is_some()), library, usage, plan_faults, streams, gpus, folder }
    }

    /// Lets one of the coming calls of one function fail, and says which. None where the driver does not fail on demand.
    pub(super) fn fail(&self, record: Record) -> Option<&'static str> {
        let function = FUNCTIONS[usize::from(record.what) % FUNCTIONS.len()];
        let code = CODES[usize::from(record.how) % CODES.len()];
        self.plan(&format!("{function}:{}:{code}", 1 + record.number % 8)).then_some(function)
    }

    /// Nothing fails any more.
    pub(super) fn mend(&self) {
        self.plan("");
    }

    fn plan(&self, faults: &str) -> bool {
        let text = CString::new(faults).expect("no NUL");
        // SAFETY: the text ends with NUL.
        self.plan_faults.is_some_and(|plan_faults| unsafe { plan_faults(text.as_ptr()) } == 0)
    }

    /// Chunks, mappings, reservations of a device, and all events.
    pub(super) fn usage(&self, device: c_int) -> Option<[u64; 4]> {
        let mut counts = [0; 4];
        // SAFETY: the out-parameter is valid.
        let code = unsafe { self.usage?(device, &raw mut counts) };
        // Before its first use the simulated driver answers that it is not initialised.
        Some(if code == 0 { counts } else { [0; 4] })
    }
}

/// A folder of this process, which is removed at its end.
fn folder() -> PathBuf {
    fn place() -> PathBuf {
        std::env::temp_dir().join(format!("gapless-calls-{}", std::process::id()))
    }
    extern "C" fn remove() {
        let _ = std::fs::remove_dir_all(place());
    }
    std::fs::create_dir_all(place()).expect("a temporary folder");
    // SAFETY: what is called needs nothing that may have ended by then.
    assert_eq!(unsafe { libc::atexit(remove) }, 0);
    place()
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of dlopen and a NUL-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The simulated driver library: where `GAPLESS_SIM_LIBCUDA` says, beside the program, or where cargo builds it.
fn simulated() -> PathBuf {
    const NAME: &str = "libgapless_sim_libcuda.so";
    if let Some(path) = std::env::var_os("GAPLESS_SIM_LIBCUDA") {
        return path.into();
    }
    let program = std::env::current_exe().expect("a path of the program");
    let folder = program.parent().expect("a folder of the program");
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|above| above.join("target"));
    let targets = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).into_iter().chain(targets);
    let built = targets.map(|target| target.join("debug").join(NAME));
    let found = std::iter::once(folder.join(NAME)).chain(built).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{NAME} is missing: cargo build -p gapless-sim-libcuda"))
}
