//! The C library, installed as C programs expect it.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::PathBuf;

/// The library's own name, which a program asks for that was linked with it: see `crates/capi/build.rs`.
const SONAME: &str = "libgapless.so.0";

#[derive(Debug, clap::Args)]
pub struct BuildCapiArguments {
    /// Folder to install lib/libgapless.so.0, a link libgapless.so to it, lib/libgapless.a and include/gapless.h in [default: dist/capi]
    prefix: Option<PathBuf>,
}

pub fn run(workspace: &Workspace, arguments: &BuildCapiArguments) -> Result<(), Failure> {
    let prefix = match &arguments.prefix {
        Some(given) => files::given(given)?,
        None => workspace.path("dist/capi"),
    };
    process::run(&mut workspace.cargo(["build", "--release", "--package", "gapless-capi"]))?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    files::create_folder(&lib)?;
    files::create_folder(&include)?;
    files::install(&workspace.target("release/libgapless_capi.so"), &lib.join(SONAME), 0o755)?;
    files::link(SONAME, &lib.join("libgapless.so"))?;
    files::install(&workspace.target("release/libgapless_capi.a"), &lib.join("libgapless.a"), 0o644)?;
    files::install(&workspace.path("include/gapless.h"), &include.join("gapless.h"), 0o644)?;
    let prefix = files::shown(&prefix);
    println!("installed in {prefix}: cc program.c -I{prefix}/include -L{prefix}/lib -lgapless");
    Ok(())
}
