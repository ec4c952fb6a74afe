//! The shared library goes by the name that programs ask for: with the number of its C interface, which changes when a
//! program has to be compiled anew. `soname.txt` is the one place of it.

const SONAME: &str = include_str!("soname.txt").trim_ascii();

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=soname.txt");
}
