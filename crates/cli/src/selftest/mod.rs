use std::process::ExitCode;
use clap::Args;
use crate::bed::DeviceOptions;
use crate::link::Link;
/// x
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    device: DeviceOptions,
}
pub fn run(options: &Options) -> Result<ExitCode, String> { Err("later".into()) }
pub fn peer(link: &mut Link, device: &DeviceOptions) -> Result<(), String> { Ok(()) }
