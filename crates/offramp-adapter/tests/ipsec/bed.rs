//! Two adapters connected by a cable, with associations between the adapters, in virtual time.

use crate::support::{MemoryHost, payload_of};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{Line, WirePort};
use offramp_adapter::stats::{Direction, Loss};
use offramp_offload::esp::{Mode, SaConfig, SecretKey, Suite, Tunnel};
use offramp_offload::frame::Frame;
use offramp_offload::layout::FrameLayout;
use std::sync::Arc;

pub const NS_PER_SECOND: u64 = 1_000_000_000;
pub const SPI: u32 = 0x1000;

pub type Pair = QueuePair<MemoryHost, CableEnd>;

/// Returns the configuration of an adapter without moderation.
pub fn config() -> AdapterConfig {
    AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() }
}

/// The left adapter, the right adapter, and a cable between them.
pub struct Bed {
    pub left: Pair,
    pub right: Pair,
    pub controls: [Arc<PortControl>; 2],
    pub now_ns: u64,
}

impl Bed {
    pub fn new(config: &AdapterConfig) -> Self {
        Self::on(config, &CableConfig { mtu: config.mtu, ..CableConfig::default() })
    }

    pub fn on(config: &AdapterConfig, line: &CableConfig) -> Self {
        let (a, b) = cable(line);
        let controls = [PortControl::new(config), PortControl::new(config)];
        let left = QueuePair::new(config, &controls[0], 0, MemoryHost::default(), a);
        let right = QueuePair::new(config, &controls[1], 0, MemoryHost::default(), b);
        Self { left, right, controls, now_ns: 0 }
    }

    /// Creates a bed with one association from left to right.
    pub fn protected(sa: &SaConfig) -> Self {
        let bed = Self::new(&config());
        bed.protect(sa);
        bed
    }

    /// Adds an association from left to right.
    pub fn protect(&self, sa: &SaConfig) {
        self.controls[0].change_ipsec(&[add(SaDirection::Out, sa)]).unwrap();
        self.controls[1].change_ipsec(&[add(SaDirection::In, sa)]).unwrap();
    }

    pub fn poll(&mut self) -> bool {
        let left = self.left.poll(self.now_ns).unwrap();
        let right = self.right.poll(self.now_ns).unwrap();
        left.moved || right.moved
    }

    /// Runs until no frame moves. The time advances only to the next arrival on the line, or until the line has room.
    pub fn run_until_idle(&mut self) {
        loop {
            if self.poll() {
                continue;
            }
            let wires = [self.left.wire(), self.right.wire()];
            let room = wires.map(|wire| wire.next_room_ns(self.now_ns));
            let arrivals = wires.map(WirePort::next_arrival_ns);
            match room.into_iter().chain(arrivals).flatten().min() {
                Some(at) if at > self.now_ns => self.now_ns = at,
                _ => return,
            }
        }
    }

    pub fn transmit(&self) -> &Direction {
        &self.controls[0].queues()[0].transmit
    }

    pub fn receive(&self) -> &Direction {
        &self.controls[1].queues()[0].receive
    }

    /// Checks every checksum of the frames received by the right host, and returns the frames' payload.
    pub fn received(&self) -> Vec<u8> {
        self.right.host().given.iter().flat_map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect()
    }

    pub fn assert_everything_is_accounted_for(&self) {
        assert_eq!(self.left.held() + self.right.held(), 0);
        for control in &self.controls {
            for d in [&control.queues()[0].transmit, &control.queues()[0].receive] {
                assert_eq!(d.frames_in.get(), d.frames_out.get() + d.lost_total(), "{d:?}");
            }
        }
        assert_eq!(self.transmit().frames_out.get(), self.receive().frames_in.get());
    }
}

pub fn add(direction: SaDirection, sa: &SaConfig) -> SaChange {
    SaChange::Add { direction, config: Box::new(sa.clone()) }
}

/// Returns the number of lost frames for each reason.
pub fn losses(direction: &Direction) -> Vec<(Loss, u64)> {
    Loss::ALL.iter().map(|&reason| (reason, direction.lost(reason))).filter(|&(_, lost)| lost > 0).collect()
}

pub fn suite(name: &str) -> Suite {
    Suite::by_name(name).unwrap()
}

/// Returns an association in transport mode. Each SPI has its own keys.
pub fn sa(name: &str, spi: u32) -> SaConfig {
    let suite = suite(name);
    let byte = |n: usize| spi.to_be_bytes()[n % 4].wrapping_mul(31).wrapping_add(n as u8 * 3);
    let key = |len: usize, mask: u8| SecretKey::new((0..len).map(|n| byte(n) ^ mask).collect());
    let keys = (key(suite.encryption_key_len(), 0), key(suite.integrity_key_len(), 0x55));
    SaConfig::new(spi, suite, keys.0, keys.1)
}

pub fn gcm() -> SaConfig {
    sa("aes128gcm16", SPI)
}

/// Returns transport mode, and tunnel mode with each IP version.
pub fn modes() -> [Mode; 3] {
    let tunnel = |source: &str, destination: &str| {
        Mode::Tunnel(Tunnel::new(source.parse().unwrap(), destination.parse().unwrap()))
    };
    [Mode::Transport, tunnel("192.0.2.1", "192.0.2.2"), tunnel("2001:db8::1", "2001:db8::2")]
}

pub fn layout(frame: &[u8]) -> FrameLayout {
    Frame::received(&mut frame.to_vec()).layout().copied().unwrap()
}
