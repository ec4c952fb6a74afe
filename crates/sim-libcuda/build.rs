//! Gives the library the driver's name, so that programs linked against it ask the loader for `libcuda.so.1`. It stays in the
//! process when a program closes it, since its threads do.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
