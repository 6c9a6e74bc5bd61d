//! The name under which the loader knows the library, whatever cargo calls the file.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsoftrnic-ddp.so");
    println!("cargo::rerun-if-changed=build.rs");
}
