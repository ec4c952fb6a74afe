//! The shared library goes by the name that programs link against.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgapless.so");
    println!("cargo:rerun-if-changed=build.rs");
}
