//! `offramp model dma`: prints the throughput of a bus.

use super::{Done, OrFail, setting};
use crate::exit::print;
use offramp_model::bus::Transfers;
use offramp_model::bus::pcie::payload_bps;
use offramp_model::config;
use offramp_model::profile::Profile;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr as _;
use strum::VariantArray as _;

/// Default transfer lengths, in bytes.
const BYTES: [u64; 8] = [64, 128, 256, 512, 1024, 1514, 2048, 4096];

/// Print the throughput of a bus for its master, by the length of a transfer.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A bus: its name, or a file that ends in .toml
    bus: String,
    /// Bytes of a transfer, with commas between several
    #[arg(long, value_delimiter = ',', default_values_t = BYTES, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    bytes: Vec<u64>,
    /// Direction of the adapter: read, write or both [default: all three]
    #[arg(long, value_parser = Transfers::from_str)]
    op: Option<Transfers>,
    /// Set a parameter of the bus, with its unit: bus.iommu=on
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

pub(super) fn run(args: &Args) -> Done {
    let mut profile = Profile::load_bus(&args.bus).or_setup()?;
    profile.set_all(args.settings.iter().cloned()).or_setup()?;
    let (bus, command) = config::bus(&profile);
    let mut out = format!("{}: {}\n\n", profile.name, profile.title);
    let _ = writeln!(out, "{:>7} {:5} {:>10} {:>12} {:>10}  limit", "bytes", "op", "Gbit/s", "transfers/s", "ns each");
    for &bytes in &args.bytes {
        for &transfers in Transfers::VARIANTS.iter().filter(|of| args.op.is_none_or(|op| op == **of)) {
            let name: &str = transfers.into();
            let transfer = bus.transfer(transfers, command, bytes);
            let unlimited = || format!("{}: nobody is master of a bus that has limits", profile.name);
            let (interval, limit) = transfer.ok_or_else(unlimited).or_failed()?;
            let (gbps, ns) = (payload_bps(bytes, interval) / 1e9, interval.as_us() * 1000.0);
            let _ = writeln!(out, "{bytes:>7} {name:5} {gbps:>10.2} {:>12.0} {ns:>10.2}  {limit}", 1e9 / ns);
        }
    }
    out += "\nboth: as many of either kind; the rate is that of one of them\n";
    print(out);
    Ok(ExitCode::SUCCESS)
}
