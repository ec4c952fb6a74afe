//! The shared library goes by the name that programs ask for: with the number of its C interface, which changes when a
//! program has to be compiled anew.

/// The number of the C interface. `cargo xtask build-capi` installs the library under this name, too.
const INTERFACE: u32 = 0;

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgapless.so.{INTERFACE}");
    println!("cargo:rerun-if-changed=build.rs");
}
