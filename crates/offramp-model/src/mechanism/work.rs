//! Work for each byte: checksums and ciphers.

use super::{Curve, Mechanism, Panel, curves, in_unit, metric};
use crate::config::Workload::{self, TtcpBoth, TtcpReceive, TtcpSend};
use crate::profile::Profile;
use crate::simulation::ModelError;

/// Speeds of the host, percent of the times of the profile.
const SCALES_PERCENT: [f64; 9] = [12.5, 25.0, 35.0, 50.0, 70.0, 100.0, 140.0, 200.0, 400.0];
/// Shares of the bytes that are encrypted, percent.
const SHARES_PERCENT: [f64; 9] = [0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0, 50.0, 100.0];
/// Rates of the adapter's cipher.
const RATES_MBIT: [f64; 9] = [10.0, 20.0, 40.0, 60.0, 100.0, 200.0, 400.0, 700.0, 2000.0];
const MEGABYTE: f64 = 1e6;

/// Megabytes per second over one parameter.
fn speed(
    label: &str,
    base: &Profile,
    workload: Workload,
    key: &str,
    values: &[(String, f64)],
) -> Result<Curve, ModelError> {
    let [mut curve] = curves(label, base, workload, key, values, [metric("throughput_bytes_per_s")])?;
    for point in &mut curve.points {
        point[1] /= MEGABYTE;
    }
    Ok(curve)
}

/// How much more the second has, percent, point by point.
fn gain(label: &str, before: &Curve, after: &Curve) -> Curve {
    let points = before.points.iter().zip(&after.points).map(|(before, after)| {
        let ratio = after[1] / before[1];
        [before[0], 100.0 * (ratio - 1.0)]
    });
    Curve { name: label.to_owned(), is_published: false, points: points.collect() }
}

/// Checksums by the host and by the adapter.
pub(super) fn checksum() -> Result<Mechanism, ModelError> {
    let base = Profile::load("windows-lab")?;
    let scales = in_unit(&SCALES_PERCENT, "%");
    let over = |label: &str, workload, checksum: &str| {
        speed(label, &base.clone().with("adapter.checksum", checksum), workload, "host.cost_scale", &scales)
    };
    let pair = |workload, host: &str, adapter: &str| {
        Ok::<_, ModelError>([over(host, workload, "off")?, over(adapter, workload, "on")?])
    };
    let [sent, sent_spared] = pair(TtcpSend, "sending, checksum by host", "sending, checksum by adapter")?;
    let [received, received_spared] =
        pair(TtcpReceive, "receiving, checksum by host", "receiving, checksum by adapter")?;
    let gains = vec![gain("sending", &sent, &sent_spared), gain("receiving", &received, &received_spared)];
    let x_title = "times of the host, %";
    Ok(Mechanism {
        name: "checksum",
        title: "Checksums",
        claims: &["M1", "M2", "M3", "M4", "R7"],
        says: "A checksum costs the instructions for each byte and the wait for the byte to come into the cache; on \
               receiving, the copy that follows would have waited for some of the bytes. Where the processor is the limit, \
               to the right, checksums in the adapter bring a tenth to a fifth more throughput, whatever the speed of the \
               host. Where the link is the limit, to the left, they bring none.",
        command: "offramp model sweep windows-lab --workload ttcp-send --vary host.cost_scale=12.5%..400%:log/9 \
                  --vary adapter.checksum=off,on --out checksum.csv",
        panels: vec![
            Panel {
                title: "Throughput",
                x_title,
                y_title: "MB/s",
                x_is_log: true,
                curves: vec![sent_spared, sent, received_spared, received],
            },
            Panel { title: "Gain by checksums in the adapter", x_title, y_title: "%", x_is_log: true, curves: gains },
        ],
    })
}

/// Ciphers of the host and of the adapter.
pub(super) fn ipsec() -> Result<Mechanism, ModelError> {
    // A host that encrypts everything moves some hundred frames in this time.
    let base = Profile::load("windows-lab")?.with("workload.time", "1s");
    let by = |who: &str| base.clone().with("adapter.ipsec", who);
    let shares = in_unit(&SHARES_PERCENT, "%");
    let over_shares = |label: &str, profile: &Profile| speed(label, profile, TtcpBoth, "workload.encrypted", &shares);
    let limited = by("adapter").with("adapter.crypt_rate", "50Mbit/s");
    let by_share = vec![
        over_shares("the adapter encrypts, without limit", &by("adapter"))?,
        over_shares("the adapter encrypts 50 Mbit/s", &limited)?,
        over_shares("the host encrypts", &by("host"))?,
    ];
    let rates = in_unit(&RATES_MBIT, "Mbit/s");
    let over_rates = |label: &str, profile: &Profile| speed(label, profile, TtcpBoth, "adapter.crypt_rate", &rates);
    let by_rate =
        vec![over_rates("the adapter encrypts", &by("adapter"))?, over_rates("the host encrypts", &by("host"))?];
    Ok(Mechanism {
        name: "ipsec",
        title: "IPsec",
        claims: &["M8"],
        says: "3DES with SHA-1 takes a processor of the time 140 cycles for each byte, all else about eight. The more is \
               encrypted, the more of the throughput an adapter that encrypts gives back, until its cipher is the \
               limit. A cipher slower than what the host encrypts by itself, here 40 Mbit/s, is worse than none. The \
               published gain of 30 % lies where little was encrypted, or where the cipher was slow.",
        command: "offramp model sweep windows-lab --workload ttcp-both --vary adapter.ipsec=host,adapter \
                  --vary workload.encrypted=0.1%..100%:log/9 --out ipsec.csv",
        panels: vec![
            Panel {
                title: "Throughput both ways, by the share that is encrypted",
                x_title: "bytes that are encrypted, %",
                y_title: "MB/s",
                x_is_log: true,
                curves: by_share,
            },
            Panel {
                title: "Throughput both ways, all encrypted, by the adapter's cipher",
                x_title: "rate of the adapter's cipher, Mbit/s",
                y_title: "MB/s",
                x_is_log: true,
                curves: by_rate,
            },
        ],
    })
}
