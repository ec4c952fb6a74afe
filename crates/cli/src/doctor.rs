//! `gapless doctor`: checks whether gapless works on the GPUs of this machine.

use super::{Failure, Outcome, gpu};
use clap::Args;
use gapless::driver::cuda::{CudaDriver, DeviceInfo, Library, LibraryFile, LoadError, OpenError};
use gapless::driver::{DriverError, DriverResult, MemoryDriver, MemoryInfo, WorkDriver};
use gapless::{ByteSize, StreamId};
use gapless_report::count::count;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `gapless doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    /// Use this driver library instead of the installed one
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Print the findings as one JSON object
    #[arg(long)]
    json: bool,
}

/// The findings of `doctor`.
#[derive(Debug, serde::Serialize)]
struct Findings {
    /// True when at least one device works.
    works: bool,
    /// Also reported of a library that cannot be used, or that finds no device.
    library: Option<LibraryFile>,
    devices: Vec<DeviceFindings>,
    /// Why the library cannot be used, and what to do about it.
    problem: Option<String>,
}

#[derive(Debug, serde::Serialize)]
struct DeviceFindings {
    ordinal: u32,
    info: Option<DeviceInfo>,
    memory: Option<MemoryInfo>,
    granularity: Option<u64>,
    recommended_granularity: Option<u64>,
    /// Chunk features with which a real cycle succeeded.
    chunk_posix_fd: Option<bool>,
    chunk_rdma: Option<bool>,
    cycle: Option<Cycle>,
    /// Why the kernels cannot be loaded. The device is usable without them.
    kernels_problem: Option<String>,
    problem: Option<String>,
}

/// Microseconds of each step of one cycle. Without kernels nothing is written and verified.
#[derive(Debug, serde::Serialize)]
struct Cycle {
    bytes: u64,
    reserve_us: f64,
    create_us: f64,
    map_us: f64,
    set_access_us: f64,
    write_us: Option<f64>,
    verify_us: Option<f64>,
    unmap_us: f64,
    release_us: f64,
    address_free_us: f64,
    /// How many bytes read back differently from what was written.
    wrong_bytes: Option<u64>,
}

/// Examines every device and prints the findings.
pub(super) fn run(arguments: &DoctorArguments) -> Result<Outcome, Failure> {
    let findings = examine(arguments);
    let mut out = io::stdout().lock();
    if arguments.json {
        let line = serde_json::to_string(&findings).map_err(io::Error::from)?;
        writeln!(out, "{line}")?;
    } else {
        write_text(&mut out, &findings)?;
    }
    Ok(if findings.works { Outcome::Success } else { Outcome::NoDevice })
}

fn examine(arguments: &DoctorArguments) -> Findings {
    let loaded: Result<&'static Library, LoadError> = match &arguments.library {
        // SAFETY: a driver library, or none, says who runs the command.
        Some(path) => unsafe { Library::open_from(path) },
        None => Library::open(),
    };
    // SAFETY: as above.
    let file = unsafe { Library::find(arguments.library.as_deref()) };
    let (devices, problem) = match loaded.map(|library| (library, library.device_count())) {
        Ok((library, Ok(count))) => {
            ((0..count).map(|ordinal| examine_device(arguments, library, ordinal)).collect(), None)
        }
        Ok((_, Err(error))) => (Vec::new(), Some(error.to_string())),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let works = devices.iter().any(|device: &DeviceFindings| device.problem.is_none());
    Findings { works, library: file, devices, problem }
}

fn examine_device(arguments: &DoctorArguments, library: &'static Library, ordinal: u32) -> DeviceFindings {
    let mut findings = DeviceFindings {
        ordinal,
        info: None,
        memory: None,
        granularity: None,
        recommended_granularity: None,
        chunk_posix_fd: None,
        chunk_rdma: None,
        cycle: None,
        kernels_problem: None,
        problem: None,
    };
    if let Err(error) = try_device(arguments, library, &mut findings) {
        findings.problem = Some(error.to_string());
    }
    findings
}

fn try_device(
    arguments: &DoctorArguments,
    library: &'static Library,
    findings: &mut DeviceFindings,
) -> Result<(), OpenError> {
    findings.info = Some(DeviceInfo::query(library, findings.ordinal)?);
    let driver = gpu::open(gpu::builder(findings.ordinal, arguments.library.as_deref()))?;
    findings.memory = Some(driver.memory_info()?);
    findings.granularity = Some(driver.granularity());
    findings.recommended_granularity = Some(driver.recommended_granularity());
    findings.chunk_posix_fd = Some(driver.features().posix_fd);
    findings.chunk_rdma = Some(driver.features().rdma);
    let kernels = match driver.load_kernels() {
        Ok(()) => Kernels::Loaded,
        Err(error) if error.kind.is_sticky() => return Err(error.into()),
        Err(error) => {
            findings.kernels_problem = Some(without_kernels(&error));
            Kernels::Missing
        }
    };
    // The first cycle includes clearing memory; the second is the typical one.
    cycle(&driver, kernels)?;
    let cycle = cycle(&driver, kernels)?;
    if let Some(wrong) = cycle.wrong_bytes.filter(|&wrong| wrong > 0) {
        findings.problem = Some(format!(
            "{} read back differently from what was written: the device's memory or the driver is faulty. Run a memory \
             test of the device (dcgmi diag), and look for Xid errors in the kernel's log",
            count(wrong, "byte")
        ));
    }
    findings.cycle = Some(cycle);
    Ok(())
}

/// Whether the kernels that write and verify can be used.
#[derive(Clone, Copy)]
enum Kernels {
    Loaded,
    Missing,
}

/// Describes what does not work on a device that cannot load the kernels.
fn without_kernels(error: &DriverError) -> String {
    format!(
        "cannot be loaded: {error}. The allocator needs none. What does not work on this device: writing and \
         verifying here, `replay --driver cuda`, `soak --driver cuda`, and the questions of `probe` that run kernels. The \
         kernels need compute capability 7.5 and a driver that compiles PTX (libnvidia-ptxjitcompiler.so.1)"
    )
}

/// Takes one page through every step, from its reservation to its release, and times each.
fn cycle(driver: &CudaDriver, kernels: Kernels) -> DriverResult<Cycle> {
    let bytes = driver.granularity();
    let (addr, reserve_us) = timed(|| driver.reserve(bytes, bytes))?;
    let (chunk, create_us) = timed(|| driver.create(bytes))?;
    let ((), map_us) = timed(|| driver.map(addr, bytes, chunk))?;
    let ((), set_access_us) = timed(|| driver.set_access(addr, bytes))?;
    let (write_us, verify_us, wrong_bytes) = match kernels {
        Kernels::Loaded => {
            let ((), write_us) = timed(|| {
                driver.fill(StreamId::DEFAULT, addr, bytes, SEED)?;
                driver.synchronize(StreamId::DEFAULT)
            })?;
            let ((), verify_us) = timed(|| {
                driver.verify(StreamId::DEFAULT, addr, bytes, SEED)?;
                driver.synchronize(StreamId::DEFAULT)
            })?;
            let wrong_bytes = driver.take_mismatches().iter().map(|mismatch| mismatch.count).sum();
            (Some(write_us), Some(verify_us), Some(wrong_bytes))
        }
        Kernels::Missing => (None, None, None),
    };
    let ((), unmap_us) = timed(|| driver.unmap(addr, bytes))?;
    let ((), release_us) = timed(|| driver.release(chunk))?;
    let ((), address_free_us) = timed(|| driver.address_free(addr, bytes))?;
    Ok(Cycle {
        bytes,
        reserve_us,
        create_us,
        map_us,
        set_access_us,
        write_us,
        verify_us,
        unmap_us,
        release_us,
        address_free_us,
        wrong_bytes,
    })
}

fn timed<T>(call: impl FnOnce() -> DriverResult<T>) -> DriverResult<(T, f64)> {
    let start = Instant::now();
    let value = call()?;
    Ok((value, micros(start.elapsed())))
}

fn micros(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e7).round() / 10.0
}

fn write_text(out: &mut impl Write, findings: &Findings) -> io::Result<()> {
    match &findings.library {
        Some(LibraryFile { file, cuda: Some(cuda), .. }) => writeln!(out, "driver     CUDA {cuda}, {file}")?,
        Some(LibraryFile { file, .. }) => writeln!(out, "driver     of no known version, {file}")?,
        None => writeln!(out, "driver     none")?,
    }
    for device in &findings.devices {
        write_device(out, device)?;
    }
    if let Some(problem) = &findings.problem {
        writeln!(out, "problem    {problem}")?;
    }
    let working = findings.devices.iter().filter(|device| device.problem.is_none()).count();
    match working {
        0 => writeln!(
            out,
            "result     no GPU that gapless can use. What needs no GPU still works: try `gapless replay` on a trace"
        ),
        working => writeln!(out, "result     gapless works on {}", count(working as u64, "GPU")),
    }
}

fn write_device(out: &mut impl Write, device: &DeviceFindings) -> io::Result<()> {
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    match &device.info {
        Some(info) => {
            let (major, minor) = info.compute_capability;
            write!(out, "device {:<3} {}, compute {major}.{minor}", device.ordinal, info.name)?;
            match &info.pci_bus_id {
                Some(id) => writeln!(out, ", {id}")?,
                None => writeln!(out)?,
            }
            if let Some(memory) = device.memory {
                let (free, total) = (ByteSize(memory.free), ByteSize(memory.total));
                writeln!(out, "  memory   {total}, {free} free, {} in use", ByteSize(memory.total - memory.free))?;
            } else {
                writeln!(out, "  memory   {}", info.total)?;
            }
            writeln!(out, "  users    {}", users())?;
            if let (Some(granularity), Some(recommended)) = (device.granularity, device.recommended_granularity) {
                writeln!(out, "  page     {}, recommended {}", ByteSize(granularity), ByteSize(recommended))?;
            }
            writeln!(
                out,
                "  claims   VMM {}, fd export {}, fabric {}, RDMA {}, dma-buf {}, multicast {}",
                yes(info.vmm),
                yes(info.posix_fd_export),
                yes(info.fabric_export),
                yes(info.rdma),
                yes(info.dma_buf),
                yes(info.multicast)
            )?;
            if let (Some(fd), Some(rdma)) = (device.chunk_posix_fd, device.chunk_rdma) {
                writeln!(out, "  works    VMM yes, fd export {}, RDMA {}", yes(fd), yes(rdma))?;
            }
        }
        None => writeln!(out, "device {:<3} cannot be queried", device.ordinal)?,
    }
    if let Some(cycle) = &device.cycle {
        let step = |us: Option<f64>| us.map_or_else(|| "not done".to_owned(), |us| us.to_string());
        let content =
            cycle.wrong_bytes.map_or_else(|| "bytes not checked".to_owned(), |wrong| count(wrong, "wrong byte"));
        writeln!(
            out,
            "  cycle    {}: reserve {} us, create {}, map {}, set_access {}, write {}, verify {}, unmap {}, release \
             {}, address_free {}; {content}",
            ByteSize(cycle.bytes),
            cycle.reserve_us,
            cycle.create_us,
            cycle.map_us,
            cycle.set_access_us,
            step(cycle.write_us),
            step(cycle.verify_us),
            cycle.unmap_us,
            cycle.release_us,
            cycle.address_free_us,
        )?;
    }
    if let Some(problem) = &device.kernels_problem {
        writeln!(out, "  kernels  {problem}")?;
    }
    if let Some(problem) = &device.problem {
        writeln!(out, "  problem  {problem}")?;
    }
    Ok(())
}

/// Names the processes, visible to this user, that have one of the driver's device files open. The files do not say
/// which device number a program sees, so the list covers all devices.
fn users() -> String {
    let own = std::process::id();
    let mut names = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let mut targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        if id != own && targets.any(|target| is_device_file(&target)) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            names.push(format!("{} ({id})", name.trim()));
        }
    }
    if names.is_empty() { "no other visible process".to_owned() } else { names.join(", ") }
}

/// True for `/dev/nvidia0` and so on, but not for `/dev/nvidiactl`, which daemons keep open.
fn is_device_file(path: &std::path::Path) -> bool {
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/nvidia"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

const SEED: u64 = 0x6761_706c;

/// Shown below the list of options.
pub(super) const AFTER_HELP: &str = "\
Exit code: 0 if gapless works on at least one GPU, 4 if it works on none (the output says why and what to do).";
