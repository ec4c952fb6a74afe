//! What a process asks of the CUDA driver, answered by the simulated library.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless::driver::{FaultDriver, MemoryDriver};
use gapless::units::MIB;
use gapless_process::DeviceDriver;
use simulated::with_settings;

fn second_of_two<D: DeviceDriver>(driver: &D, uuid_of_first: [u8; 16]) {
    assert_eq!((driver.name().as_str(), driver.total_bytes()), ("Simulated GPU 1", 64 * MIB));
    assert_eq!(driver.ordinal_of(driver.uuid().unwrap()), Some(1));
    assert_eq!(driver.ordinal_of(uuid_of_first), Some(0));
    assert_eq!(driver.ordinal_of([0xff; 16]), None);
    driver.add_peer(0).unwrap();
    driver.add_peer(0).unwrap();
    assert_eq!(driver.peers(), [0]);
    driver.remove_peer(0);
    assert_eq!(driver.peers(), []);
}

#[test]
fn what_a_device_says_of_itself_and_others() {
    let settings = [("GAPLESS_SIM_DEVICES", "2"), ("GAPLESS_SIM_CAPACITY", "64MiB")];
    with_settings("what_a_device_says_of_itself_and_others", &settings, || {
        let open = |ordinal| simulated::open(simulated::builder().device(ordinal)).unwrap();
        let uuid_of_first = open(0).uuid().unwrap();
        second_of_two(&open(1), uuid_of_first);
        second_of_two(&FaultDriver::new(open(1)), uuid_of_first);
    });
}
