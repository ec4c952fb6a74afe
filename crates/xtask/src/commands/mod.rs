//! One module for each command or family of commands.

pub mod build_capi;
pub mod build_kernels;
pub mod build_python_package;
pub mod build_sdist;
pub mod build_sim;
pub mod build_torch_objects;
pub mod build_wheel;
pub mod check_interface;
pub mod ci;
pub mod figures;
pub mod generate_bindings;
pub mod generate_figures;
pub mod generate_header;
pub mod gpu_bundle;
pub mod gpu_compare;
pub mod guests;
pub mod model_check;
pub mod package_crates;
pub mod release;
pub mod sanitize;
pub mod scripts;
pub mod test_interop;
pub mod test_page;
pub mod test_python;
pub mod test_releases;
pub mod time_rmm;
pub mod torch_object;
pub mod torch_stand_ins;
pub mod torch_sweeps;
pub mod torch_without_gpu;

mod python_package;
