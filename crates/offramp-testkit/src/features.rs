//! Named feature bits, each as a mask.

/// The device completes checksums for `NEEDS_CSUM` (virtio 1.3, 5.1.3).
pub const CSUM: u64 = 1 << 0;
/// The driver accepts frames with partial checksums (virtio 1.3, 5.1.3).
pub const GUEST_CSUM: u64 = 1 << 1;
/// The device reports its MTU (virtio 1.3, 5.1.3).
pub const MTU: u64 = 1 << 3;
/// The device reports its MAC address (virtio 1.3, 5.1.3).
pub const MAC: u64 = 1 << 5;
/// The driver accepts super-frames of TCP over IPv4 (virtio 1.3, 5.1.3).
pub const GUEST_TSO4: u64 = 1 << 7;
/// The driver accepts super-frames of TCP over IPv6 (virtio 1.3, 5.1.3).
pub const GUEST_TSO6: u64 = 1 << 8;
/// The driver accepts super-frames with ECN (virtio 1.3, 5.1.3).
pub const GUEST_ECN: u64 = 1 << 9;
/// The driver accepts UDP super-frames in place of IP fragments (virtio 1.3, 5.1.3).
pub const GUEST_UFO: u64 = 1 << 10;
/// The device segments TCP over IPv4 (virtio 1.3, 5.1.3).
pub const HOST_TSO4: u64 = 1 << 11;
/// The device segments TCP over IPv6 (virtio 1.3, 5.1.3).
pub const HOST_TSO6: u64 = 1 << 12;
/// The device segments TCP with ECN (virtio 1.3, 5.1.3).
pub const HOST_ECN: u64 = 1 << 13;
/// The device segments UDP into IP fragments (virtio 1.3, 5.1.3).
pub const HOST_UFO: u64 = 1 << 14;
/// One received frame can fill several buffers (virtio 1.3, 5.1.3).
pub const MRG_RXBUF: u64 = 1 << 15;
/// The device reports its link state (virtio 1.3, 5.1.3).
pub const STATUS: u64 = 1 << 16;
/// The device has a control queue (virtio 1.3, 5.1.3).
pub const CTRL_VQ: u64 = 1 << 17;
/// The driver can change its receive offloads.
pub const CTRL_GUEST_OFFLOADS: u64 = 1 << 2;
/// The driver can request statistics of its queues.
pub const DEVICE_STATS: u64 = 1 << 50;
/// The driver can set the device's receive modes.
pub const CTRL_RX: u64 = 1 << 18;
/// The driver can select the VLANs that the device receives.
pub const CTRL_VLAN: u64 = 1 << 19;
/// The device has further receive modes.
pub const CTRL_RX_EXTRA: u64 = 1 << 20;
/// The driver can change the device's MAC address.
pub const CTRL_MAC_ADDR: u64 = 1 << 23;
/// The driver can moderate notifications for one queue.
pub const VQ_NOTF_COAL: u64 = 1 << 52;
/// The driver can moderate notifications for all queues of a direction.
pub const NOTF_COAL: u64 = 1 << 53;
/// The driver announces the guest's location on request (virtio 1.3, 5.1.3).
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// The device segments TCP with AccECN (proposed: virtio-spec issue 232).
pub const HOST_ACCECN: u64 = 1 << 25;
/// The driver accepts super-frames with AccECN (proposed: virtio-spec issue 232).
pub const GUEST_ACCECN: u64 = 1 << 26;
/// The device has several queue pairs (virtio 1.3, 5.1.3).
pub const MQ: u64 = 1 << 22;
/// The backend logs the changed pages (vhost-user, `VHOST_F_LOG_ALL`).
pub const LOG_ALL: u64 = 1 << 26;
/// Descriptors can point to tables of descriptors (virtio 1.3, 6).
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Driver and device name the entry for the next notification (virtio 1.3, 6).
pub const EVENT_IDX: u64 = 1 << 29;
/// The backend supports protocol features (vhost-user, `VHOST_USER_F_PROTOCOL_FEATURES`).
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The device is not a legacy device (virtio 1.3, 6).
pub const VERSION_1: u64 = 1 << 32;
/// Rings are packed (virtio 1.3, 2.8).
pub const RING_PACKED: u64 = 1 << 34;
/// Buffers are used in the order in which they were made available (virtio 1.3, 6).
pub const IN_ORDER: u64 = 1 << 35;
/// The driver accepts super-frames of UDP over IPv4 (virtio 1.3, 5.1.3).
pub const GUEST_USO4: u64 = 1 << 54;
/// The driver accepts super-frames of UDP over IPv6 (virtio 1.3, 5.1.3).
pub const GUEST_USO6: u64 = 1 << 55;
/// The device segments UDP (virtio 1.3, 5.1.3).
pub const HOST_USO: u64 = 1 << 56;
/// The device reports the hash of every frame (virtio 1.3, 5.1.3).
pub const HASH_REPORT: u64 = 1 << 57;
/// The driver configures how the device maps received flows to queues (virtio 1.3, 5.1.3).
pub const RSS: u64 = 1 << 60;
/// The device reports the speed of its link.
pub const SPEED_DUPLEX: u64 = 1 << 63;

/// Protocol features of vhost-user ("Protocol features" in the specification), each as a mask.
pub mod protocol {
    /// Mask of `VHOST_USER_PROTOCOL_F_MQ`.
    pub const MQ: u64 = 1 << 0;
    /// Mask of `VHOST_USER_PROTOCOL_F_LOG_SHMFD`.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Mask of `VHOST_USER_PROTOCOL_F_RARP`.
    pub const RARP: u64 = 1 << 2;
    /// Mask of `VHOST_USER_PROTOCOL_F_REPLY_ACK`.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// Mask of `VHOST_USER_PROTOCOL_F_MTU`.
    pub const MTU: u64 = 1 << 4;
    /// Mask of `VHOST_USER_PROTOCOL_F_BACKEND_REQ`.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// Mask of `VHOST_USER_PROTOCOL_F_CONFIG`.
    pub const CONFIG: u64 = 1 << 9;
    /// Mask of `VHOST_USER_PROTOCOL_F_BACKEND_SEND_FD`.
    pub const BACKEND_SEND_FD: u64 = 1 << 10;
    /// Mask of `VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// Mask of `VHOST_USER_PROTOCOL_F_RESET_DEVICE`.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Mask of `VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS`.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// Mask of `VHOST_USER_PROTOCOL_F_STATUS`.
    pub const STATUS: u64 = 1 << 16;
    /// Mask of `VHOST_USER_PROTOCOL_F_DEVICE_STATE`.
    pub const DEVICE_STATE: u64 = 1 << 19;
}
