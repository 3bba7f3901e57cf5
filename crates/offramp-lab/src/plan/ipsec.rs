//! The value of encryption in the adapter.

use super::{BARE, HOST_CPU, Plan, Settings, THROUGHPUT, VariantPlan, bulk, moderated_link, rig};
use offramp_offload::caps::Offloads;
use offramp_offload::esp::{AesKey, Suite};
use offramp_testbed::esp::{EspBy, EspLink};
use offramp_testbed::rig::RigConfig;

/// The experiments, one for each suite.
pub(crate) const ALL: [&str; 3] = [GCM, CHACHA20, TRIPLE_DES];
const GCM: &str = "ipsec-gcm";
const CHACHA20: &str = "ipsec-chacha20";
/// The suite of claim M8.
pub(crate) const TRIPLE_DES: &str = "ipsec-3des";

/// The adapter does ESP and large sends, compared with a host that does ESP alone.
pub(crate) const WITH_LSO: &str = "adapter, LSO";

/// Metrics compared besides throughput.
pub(super) const COMPARED: [&str; 4] = [THROUGHPUT, HOST_CPU, "adapter_cpu_s_per_gb", "machine_cpu_s_per_gb"];

/// All three.
pub(super) fn plans(settings: &Settings) -> [Plan; 3] {
    let gcm = Suite::AesGcm16 { key: AesKey::Bits128, implicit_iv: false };
    [
        plan(settings, GCM, gcm, "What is it worth that the adapter does ESP with AES-GCM?"),
        plan(
            settings,
            CHACHA20,
            Suite::ChaCha20Poly1305 { implicit_iv: false },
            "What is it worth that the adapter does ESP with ChaCha20-Poly1305?",
        ),
        plan(settings, TRIPLE_DES, Suite::TripleDesCbc, "What is it worth that the adapter does ESP with 3DES?"),
    ]
}

fn plan(settings: &Settings, name: &'static str, suite: Suite, question: &'static str) -> Plan {
    let variant = |name, esp: Option<EspBy>, offloads| VariantPlan {
        name,
        rig: RigConfig { esp: esp.map(|by| EspLink { suite, by }), queues: 1, ..rig(settings, offloads) },
        traffic: bulk(settings),
    };
    let all = Offloads::all();
    Plan {
        name,
        question,
        fixed: format!(
            "ESP in a tunnel, {suite}, wire MTU {}, {}; checksums on; no GSO of the host's own; where the host does ESP, \
             one of its programs does; in the variants with LSO that program takes super-frames and segments them itself",
            settings.mtu,
            moderated_link(settings)
        ),
        metric: THROUGHPUT,
        variants: vec![
            variant("host", Some(EspBy::Host), BARE),
            variant("adapter", Some(EspBy::Adapter), BARE),
            variant("host, LSO", Some(EspBy::Host), all),
            variant(WITH_LSO, Some(EspBy::Adapter), all),
            variant("no ESP, LSO", None, all),
        ],
    }
}
