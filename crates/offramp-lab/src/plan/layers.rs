//! Settings in layers: the settings of the user, of the experiment, and of a variant.

use super::{GIGABIT_BPS, GIGABIT_INTERRUPTS_PER_SECOND, Settings};
use offramp_testbed::rig::RigConfig;
use offramp_testbed::traffic::Params;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// One layer of settings: values by the name of the setting.
pub(super) type Layer = Map<String, Value>;

/// Warm-up before each measured window, in microseconds.
const WARMUP_USECS: u64 = 120_000;
/// Warm-up with a guest, in microseconds. The emulator translates code on first execution, and the guest's congestion
/// window opens slowly.
const GUEST_WARMUP_USECS: u64 = 300_000;
/// Names of the settings with alternative kinds, such as the kinds of `workload`. A value of another kind replaces the
/// value of the earlier layers, instead of being merged with it.
const ALTERNATIVES: [&str; 7] = ["workload", "arrivals", "amount", "moderation", "between", "polling", "coalescing"];

/// All settings of a variant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Setup {
    pub(super) rig: RigConfig,
    pub(super) traffic: Params,
}

/// Returns the layer of the user's settings.
pub(super) fn of_user(settings: &Settings, seconds_min: f64, has_guest: bool) -> Layer {
    let usecs = (settings.seconds.max(seconds_min) * 1e6) as u64;
    let layer = json!({
        "rig": {
            "mtu": settings.mtu,
            "rate_bps": settings.rate_bps.map_or("unlimited".into(), Value::from),
            "queues": settings.queues,
            "between": { "adapters": settings.threads },
            "host": settings.host,
            "host_gso": false,
        },
        "traffic": {
            "streams": settings.streams,
            "congestion": settings.congestion,
            "amount": { "usecs": usecs },
            "warmup_usecs": if has_guest { GUEST_WARMUP_USECS } else { WARMUP_USECS },
        },
    });
    if let Value::Object(layer) = layer { layer } else { Layer::new() }
}

/// Merges layers of settings. A later layer overrides earlier layers. If no layer sets a moderation, the adapters of a
/// link of 1 Gbit/s get a limit of [`GIGABIT_INTERRUPTS_PER_SECOND`] interrupts per second.
///
/// # Errors
/// Returns an error if the merged settings are invalid.
pub(super) fn merged<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> Result<Setup, String> {
    let mut all = Layer::new();
    layers.into_iter().for_each(|layer| lay(&mut all, layer));
    let is_moderated = all.get("rig").is_some_and(|rig| rig.get("moderation").is_some());
    let has_rate = |rate: &Value| rate.as_u64() == Some(GIGABIT_BPS);
    if !is_moderated && all.get("rig").and_then(|rig| rig.get("rate_bps")).is_some_and(has_rate) {
        let gap = json!({ "fixed-gap": { "max_interrupts_per_second": GIGABIT_INTERRUPTS_PER_SECOND } });
        all["rig"]["moderation"] = gap;
    }
    Setup::deserialize(Value::Object(all)).map_err(|error| error.to_string())
}

fn lay(below: &mut Layer, above: &Layer) {
    for (key, value) in above {
        match (below.get_mut(key), value) {
            (Some(Value::Object(below)), Value::Object(above))
                if !ALTERNATIVES.contains(&key.as_str()) || below.keys().eq(above.keys()) =>
            {
                lay(below, above);
            }
            _ => {
                below.insert(key.clone(), value.clone());
            }
        }
    }
}
