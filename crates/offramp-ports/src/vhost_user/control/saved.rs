//! A guest's settings as control queue commands, for storage while no backend runs.

use super::{Control, Planned, Settings};
use crate::vhost_user::features::{CTRL_RX, HASH_REPORT, LOG_ALL, RSS};
use crate::vhost_user::filter::VlanTable;
use offramp_adapter::moderation::Coalescing;
use offramp_virtio::control::{Command, NotificationCoalescing, ReceiveModes};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_GUEST_OFFLOADS, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, VIRTIO_NET_CTRL_MAC,
    VIRTIO_NET_CTRL_MAC_ADDR_SET, VIRTIO_NET_CTRL_MAC_TABLE_SET, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_HASH_CONFIG,
    VIRTIO_NET_CTRL_MQ_RSS_CONFIG, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_CTRL_NOTF_COAL,
    VIRTIO_NET_CTRL_NOTF_COAL_RX_SET, VIRTIO_NET_CTRL_NOTF_COAL_TX_SET, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET,
    VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_ADD,
};

/// The coalescing commands for all receive rings and for all transmit rings.
const OF_ALL: [u32; 2] = [VIRTIO_NET_CTRL_NOTF_COAL_RX_SET, VIRTIO_NET_CTRL_NOTF_COAL_TX_SET];

impl Control {
    /// Returns commands that restore the guest's settings on a newly reset device with the same features.
    pub(in crate::vhost_user) fn commands(&self) -> Vec<Vec<u8>> {
        let start = Settings::after_reset(self.negotiated, &self.rules);
        let Settings { queue_pairs, guest_offloads, coalescing, of_all, mac, .. } = &self.settings;
        let mut commands = self.filter_commands();
        if let Some(mac) = mac {
            commands.push(command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET, mac));
        }
        if *guest_offloads != start.guest_offloads {
            let (class, number) = (VIRTIO_NET_CTRL_GUEST_OFFLOADS, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET);
            commands.push(command(class, number, &guest_offloads.to_le_bytes()));
        }
        for (number, wish) in OF_ALL.into_iter().zip(of_all) {
            commands.extend(wish.map(|wish| command(VIRTIO_NET_CTRL_NOTF_COAL, number, &wish_bytes(wish))));
        }
        commands.extend(self.steering_commands());
        // A ring of an unused pair needs no separate command: it has the guest's settings for all rings of its
        // direction.
        for (vring, wish) in coalescing.iter().enumerate().take(2 * usize::from(*queue_pairs)) {
            if let Some(wish) = wish.filter(|wish| of_all[vring % 2] != Some(*wish)) {
                let fields = [&(vring as u32).to_le_bytes()[..], &wish_bytes(wish)].concat();
                commands.push(command(VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET, &fields));
            }
        }
        commands
    }

    fn filter_commands(&self) -> Vec<Vec<u8>> {
        let filter = &self.settings.filter;
        let mut commands = Vec::new();
        if let Some(modes) = filter.modes {
            let mode = |mode: ReceiveModes, is_on: bool| {
                command(VIRTIO_NET_CTRL_RX, mode.bits().trailing_zeros(), &[is_on.into()])
            };
            commands.push(if self.negotiated & CTRL_RX != 0 {
                let tables =
                    filter.addresses().map(|macs| [&(macs.len() as u32).to_le_bytes()[..], &macs.concat()].concat());
                command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &tables.concat())
            } else {
                mode(ReceiveModes::ALLUNI, false)
            });
            commands.extend(modes.iter().map(|of_modes| mode(of_modes, true)));
        }
        let vids = filter.vlans.iter().flat_map(VlanTable::vids);
        commands.extend(vids.map(|vid| command(VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_ADD, &vid.to_le_bytes())));
        commands
    }

    /// Returns the commands that set the number of queue pairs and the RSS configuration. The command for the number of
    /// pairs removes the indirection table; the RSS command sets the number of pairs and the table.
    fn steering_commands(&self) -> Vec<Vec<u8>> {
        let pairs = self.settings.queue_pairs;
        let set_pairs = command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs.to_le_bytes());
        let Some(rss) = self.settings.rss.as_ref().map(|rss| rss.status(false)) else {
            return if pairs == 1 { Vec::new() } else { vec![set_pairs] };
        };
        let types = rss.types.bits().to_le_bytes();
        let key = [&[rss.key.len() as u8][..], &rss.key].concat();
        let spread = |table: &[u16], unclassified: u16| {
            let table: Vec<u8> = table.iter().chain([&pairs]).flat_map(|pair| pair.to_le_bytes()).collect();
            let mask = (table.len() / 2 - 2) as u16;
            let fields = [&types[..], &mask.to_le_bytes(), &unclassified.to_le_bytes(), &table, &key].concat();
            command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &fields)
        };
        if let Some(unclassified) = rss.unclassified {
            return vec![spread(&rss.table, unclassified)];
        }
        let has = |feature: u64| self.negotiated & feature != 0;
        // Without MQ, a guest can use several pairs only through the RSS command.
        let mut commands: Vec<_> = if has(RSS) { Some(spread(&[0], 0)) } else { None }.into_iter().collect();
        if has(HASH_REPORT) {
            if !has(RSS) && pairs != 1 {
                commands.push(set_pairs);
            }
            let fields = [&types[..], &[0; 8], &key].concat();
            commands.push(command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_HASH_CONFIG, &fields));
        } else {
            commands.push(set_pairs);
        }
        commands
    }

    /// Restores the guest's settings from an earlier backend, and the base at which the control queue stopped. The
    /// error is the first command that this port does not permit.
    pub(in crate::vhost_user) fn load(&mut self, commands: &[Vec<u8>], base: Option<u32>) -> Result<(), Vec<u8>> {
        for bytes in commands {
            let planned = Command::parse(bytes).and_then(|command| self.plan(&command));
            let Some(Planned::Change(next)) = planned else { return Err(bytes.clone()) };
            self.settings = next;
        }
        self.stopped_at = base.map(|base| (base, self.negotiated & !LOG_ALL));
        Ok(())
    }
}

fn command(class: u32, number: u32, fields: &[u8]) -> Vec<u8> {
    [&[class as u8, number as u8][..], fields].concat()
}

fn wish_bytes(wish: Coalescing) -> [u8; 8] {
    NotificationCoalescing { max_usecs: wish.max_usecs, max_packets: wish.max_packets }.to_bytes()
}
