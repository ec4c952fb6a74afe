//! The device that a recording is replayed on.

use gapless::ByteSize;
use gapless_trace::{Device, Trace};

/// Returns the device with `chosen_bytes` for its allocator, or else the one that the recording names or needs.
///
/// # Errors
/// Says why the recording cannot be replayed.
pub fn device_for(trace: &Trace, chosen_bytes: Option<u64>) -> Result<Device, String> {
    if trace.ops().is_empty() {
        return Err("holds no ops: give a trace with 'a' and 'f' lines".into());
    }
    let device = match chosen_bytes {
        Some(bytes) => Device::of(bytes),
        None => Device::for_trace(trace).map_err(|error| error.to_string())?,
    };
    let largest = device.capacity_bytes.max(trace.peak_awake_bytes());
    if largest > Device::MOST_BYTES {
        let (largest, most) = (ByteSize(largest), ByteSize(Device::MOST_BYTES));
        return Err(format!("no device has {largest}: the most that is replayed is {most}"));
    }
    Ok(device)
}
